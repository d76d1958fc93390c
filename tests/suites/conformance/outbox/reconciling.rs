//! Reading the log as `relay verify` does, where its rows are large.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use outbox_log::reconcile::{Row, Rows};
use uuid::Uuid;

use crate::outbox::retention::{messages, rows};
use crate::outbox::support::{Database, TestDialect};

tests::cases! { "outbox/reconciling/{on}/{case}":
    every { a_batch_of_large_rows_ends_early_and_none_is_left_out }
}

const ROWS: i32 = 5;

/// Returns the numbers of rows in each batch of all rows, and the rows.
async fn pages(rows: &mut Box<dyn Rows>) -> (Vec<usize>, Vec<Row>) {
    let (mut sizes, mut found) = (Vec::new(), Vec::<Row>::new());
    loop {
        let after = found.last().map_or(Uuid::nil(), |row| row.id);
        let page = rows.page(after, Uuid::max(), 1_000).await.unwrap();
        if page.is_empty() {
            return (sizes, found);
        }
        sizes.push(page.len());
        found.extend(page);
    }
}

/// Returns the numbers of rows in each answer about these ids, and the ids found.
async fn answers(rows: &mut Box<dyn Rows>, ids: &[Uuid]) -> (Vec<usize>, Vec<Uuid>) {
    let (mut sizes, mut found) = (Vec::new(), Vec::new());
    let mut left = ids.to_vec();
    loop {
        let answer = rows.find(&left).await.unwrap();
        let Some(last) = answer.last().map(|row| row.id) else { return (sizes, found) };
        left.retain(|id| *id > last);
        sizes.push(answer.len());
        found.extend(answer.into_iter().map(|row| row.id));
    }
}

/// Goal: one call holds and hashes a bounded number of bytes, however large the rows are, and the
/// calls together find every row. Oracle: the number of rows in each batch: two payloads of 30 MiB
/// are less than 64 MiB, and two headers of 3 MB are less than 8 MiB; and the ids of small rows.
async fn a_batch_of_large_rows_ends_early_and_none_is_left_out<DB: TestDialect>(db: &Database<DB>) {
    db.enqueue(messages(ROWS)).await;
    let mut rows = rows(db).await;
    let (sizes, small) = pages(&mut rows).await;
    assert_eq!(sizes, [5], "small rows are read at once");
    let ids: Vec<Uuid> = small.iter().map(|row| row.id).collect();
    let is_sqlite = DB::DIALECT == migrations::Dialect::Sqlite;
    let large = if is_sqlite { "zeroblob(31457280)" } else { "decode(repeat('00', 31457280), 'hex')" };
    let headers = if is_sqlite {
        "json_object('h', replace(hex(zeroblob(1500000)), '0', 'x'))"
    } else {
        "jsonb_build_object('h', repeat('x', 3000000))"
    };
    for change in
        [format!("payload = {large}"), format!("payload = substr(payload, 1, 1), headers = {headers}")]
    {
        let mut connection = db.admin.acquire().await.unwrap();
        DB::execute(&mut connection, &format!("UPDATE outbox_message SET {change}")).await.unwrap();
        drop(connection);
        let (sizes, found) = pages(&mut rows).await;
        assert_eq!(sizes, [2, 2, 1], "{change}");
        assert_eq!(found.iter().map(|row| row.id).collect::<Vec<_>>(), ids);
        assert_eq!(answers(&mut rows, &ids).await, (vec![2, 2, 1], ids.clone()), "{change}");
    }
}
