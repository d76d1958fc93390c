//! Calls that are dropped while their transaction begins, by their caller or by their time limit.

use super::*;
use crate::begun::Line;

tests::cases! { "keys/begun/{on}/{case}":
    on_postgres {
        a_dropped_list_leaves_no_transaction,
        a_late_begin_of_a_key_loses_no_later_write,
    }
}

async fn a_dropped_list_leaves_no_transaction(db: Database<Postgres>) {
    let line = Line::beside(&db.service).await;
    let keys = IdempotencyKeys::open(line.pool.clone(), KeyOptions::default()).await.unwrap();
    line.arm();
    line.drop_while_it_begins(&db.admin, keys.stuck(std::num::NonZeroU32::MIN)).await;
    line.pool.close().await;
}

/// Goal: the time limit of a call leaves no session inside a transaction. Oracle: another session
/// sees what the next users of the pool write.
async fn a_late_begin_of_a_key_loses_no_later_write(db: Database<Postgres>) {
    let line = Line::beside(&db.service).await;
    let options = KeyOptions::default().call_timeout(Line::LIMIT);
    let keys = IdempotencyKeys::open(line.pool.clone(), options).await.unwrap();
    let id = key("a");
    let options = ClaimOptions::default();
    line.outlast(&db.admin, keys.begin(&id, request("a"), &options)).await;
    line.outlast(&db.admin, keys.claim(&id, request("a"), &options)).await;
    line.outlast(&db.admin, keys.stuck(std::num::NonZeroU32::MIN)).await;
    line.outlast(&db.admin, keys.maintain()).await;
    line.pool.close().await;
}
