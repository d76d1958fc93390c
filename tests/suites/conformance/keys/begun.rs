//! Calls that are dropped while their transaction begins.

use super::*;
use crate::begun::Line;

key_cases! { "keys/begun":
    every {}
    postgres {
        a_dropped_list_leaves_no_transaction,
    }
}

async fn a_dropped_list_leaves_no_transaction(db: Database<Postgres>) {
    let line = Line::beside(&db.service).await;
    let keys = IdempotencyKeys::open(line.pool.clone(), KeyOptions::default()).await.unwrap();
    line.arm();
    line.drop_while_it_begins(&db.admin, keys.stuck(std::num::NonZeroU32::MIN)).await;
    line.pool.close().await;
}
