//! Calls that are dropped while their transaction begins, by their caller or by their time limit.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use inbox::{Cause, Inbox, Reason, RedriveOptions, Tenant};
use sqlx::Postgres;
use tokio_util::task::AbortOnDropHandle;

use crate::begun::Line;
use crate::inbox::broker::Broker;
use crate::inbox::consumer::{base, start};
use crate::inbox::database::Database;
use crate::inbox::dead_letters::{WORKS, billing, delivery, store_dead_letter};
use crate::inbox::held_keys::{SOON, signature};
use crate::inbox::message;

tests::cases! { "inbox/begun/{on}/{case}":
    on_postgres {
        a_dropped_consumer_leaves_no_transaction,
        a_late_begin_of_a_consumer_loses_no_later_write,
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

/// Goal: the time limit of a call leaves no session inside a transaction. Oracle: another session
/// sees what the next users of the pool write.
async fn a_late_begin_of_a_consumer_loses_no_later_write(database: &Database<Postgres>) {
    let line = Line::beside(&database.pool).await;
    let options = database.options().call_timeout(Line::LIMIT);
    let inbox = Inbox::open(line.pool.clone(), options).await.unwrap();
    line.outlast(&database.admin, inbox.begin()).await;
    let poison = delivery(Ok(message("poison")));
    let cause = Cause::new(Reason::Poison, String::from("it broke"), 1);
    line.outlast(&database.admin, inbox.dead_letter(&billing(), &Tenant::none(), &poison, cause)).await;
    line.pool.close().await;
}
