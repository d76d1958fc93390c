//! What the guard reads: counted by PostgreSQL, so that a plan that reads a whole day does not pass for one that looks.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use crate::inbox::database::Database;
use crate::inbox::{consumer, message};
use inbox::{Admission, Candidate, Scope};
use sqlx::{PgPool, Postgres};

cases! { "inbox/cost":
    postgres {
        a_batch_of_any_length_is_looked_up_by_the_index,
    }
}

/// Rows that were read in full scans of the days, by everybody until now.
async fn scanned(admin: &PgPool) -> i64 {
    let read = "SELECT coalesce(sum(seq_tup_read), 0)::bigint FROM pg_stat_all_tables \
        WHERE schemaname = current_schema() AND relname LIKE 'inbox\\_message\\_2%'";
    sqlx::query_scalar(read).fetch_one(admin).await.unwrap()
}

/// Goal: batches are looked up row by row by the index, in the guard and before the commit, however many messages a batch and a
/// day have. Oracle: the server's count of rows that full scans have read.
async fn a_batch_of_any_length_is_looked_up_by_the_index() {
    super::each::<Postgres>(looked_up_by_the_index).await;
}

async fn looked_up_by_the_index(database: &Database<Postgres>) {
    const REMEMBERED: usize = 6_000;
    let inbox = database.inbox().await;
    let billing = consumer("billing");
    let messages: Vec<_> = (0..REMEMBERED).map(|n| message(&n.to_string())).collect();
    let candidates: Vec<_> =
        messages.iter().map(|message| Candidate { scope: Scope::none(), message }).collect();
    for batch in candidates.chunks(1_000) {
        let mut tx = inbox.begin().await.unwrap();
        tx.admit_batch(&billing, batch).await.unwrap();
        assert_eq!(tx.commit().await.unwrap().len(), batch.len());
    }
    sqlx::query("ANALYZE inbox_message").execute(&database.admin).await.unwrap();
    for len in [1, 10, 100, 500, 2_000] {
        let before = scanned(&database.admin).await;
        let mut tx = inbox.begin().await.unwrap();
        let admissions = tx.admit_batch(&billing, &candidates[..len]).await.unwrap();
        assert!(admissions.iter().all(|admission| matches!(admission, Ok(Admission::Duplicate(_)))));
        // Told at the end of this transaction, not some time later.
        sqlx::query("SELECT pg_stat_force_next_flush()").execute(&mut **tx).await.unwrap();
        assert_eq!(tx.commit().await.unwrap().len(), len);
        assert_eq!(scanned(&database.admin).await - before, 0, "rows read in full scans by a batch of {len}");
    }
}
