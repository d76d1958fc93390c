//! Calls that are dropped while their transaction begins.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use inbox::{Inbox, Reason, RedriveOptions};
use sqlx::Postgres;
use tokio_util::task::AbortOnDropHandle;

use crate::begun::Line;
use crate::inbox::broker::Broker;
use crate::inbox::consumer::{base, start};
use crate::inbox::database::Database;
use crate::inbox::dead_letters::{WORKS, store_dead_letter};
use crate::inbox::held_keys::{SOON, signature};
use crate::inbox::message;

cases! { "inbox/begun":
    on_postgres {
        a_dropped_consumer_leaves_no_transaction,
    }
}

/// Goal: a consumer that is dropped while it begins a requested redrive leaves no session inside a
/// transaction. Oracle: the server's list of sessions.
async fn a_dropped_consumer_leaves_no_transaction(database: &Database<Postgres>) {
    let operators = database.inbox().await;
    let letter = store_dead_letter(&operators, &message("poison"), Reason::Poison).await;
    let line = Line::beside(&database.pool).await;
    let inbox = Inbox::open(line.pool.clone(), database.options()).await.unwrap();
    let idle = Broker::new([]);
    let (stop, running) = start(base(&inbox, &idle).handler(WORKS).redrive_interval(SOON));
    let running = AbortOnDropHandle::new(running);
    line.arm();
    operators.request_redrive(letter, RedriveOptions::default(), &signature()).await.unwrap();
    line.drop_while_it_begins(&database.admin, running).await;
    drop(stop);
    line.pool.close().await;
}
