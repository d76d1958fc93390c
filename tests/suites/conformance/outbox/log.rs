//! Reading the log: nothing is lost, nothing is read twice, and keys are in causal order.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::outbox::support::{Database, Follower, SMALL, TestDialect, granted, ids};
use outbox::NewMessage;
use outbox_log::PageLimit;
use sqlx::Postgres;

tests::cases! { "outbox/log/{on}/{case}":
    every {
        a_new_relay_starts_before_the_first_entry,
        pages_are_cut_by_rows_and_bytes_and_end_exactly,
        payloads_of_every_length_come_whole_in_pages_of_bounded_size,
        a_cursor_inside_a_difference_goes_on_where_it_stood,
        a_rollback_and_a_savepoint_leave_nothing,
        rows_of_plain_sql_are_read,
    }
    on_postgres { a_difference_with_few_rows_among_many_ids_is_read }
}

async fn a_new_relay_starts_before_the_first_entry<DB: TestDialect>(db: &Database<DB>) {
    db.enqueue((0..20).map(|n| NewMessage::new("orders").json(&n))).await;
    let (_, cursor) = granted(&mut db.checkpoint_store("a").await).await;
    let mut follower = Follower::new(db.reader().await, cursor);
    let entries = follower.all().await;
    assert_eq!(entries.len(), 20);
    let payloads: Vec<_> = entries.iter().map(|e| e.message.as_ref().unwrap().payload.clone()).collect();
    assert!((0..20).zip(&payloads).all(|(n, payload)| *payload == n.to_string().as_bytes()));
    assert!(ids(&entries).is_sorted());
    assert!(follower.next().await.is_none());
}

async fn pages_are_cut_by_rows_and_bytes_and_end_exactly<DB: TestDialect>(db: &Database<DB>) {
    db.enqueue((0..14).map(|_| NewMessage::new("orders").payload(vec![0; 100]))).await;
    let (_, cursor) = granted(&mut db.checkpoint_store("a").await).await;
    let mut follower = Follower::new(db.reader().await, cursor);
    let difference = follower.reader.next_difference(&follower.base).await.unwrap().unwrap();
    let mut lengths = Vec::new();
    for limit in [
        PageLimit { entries_max: 7, ..SMALL },
        PageLimit { entries_max: 13, ..SMALL },
        PageLimit { entries_max: 14, ..SMALL },
        PageLimit { entries_max: 99, bytes_max: 350, ..SMALL },
        PageLimit { entries_max: 99, bytes_max: 1, ..SMALL },
        PageLimit { entries_max: 99, bytes_max: 1400, ..SMALL },
    ] {
        let page = follower.reader.read_page(&difference, Default::default(), limit).await.unwrap();
        lengths.push((page.entries.len(), page.exhausted));
    }
    assert_eq!(lengths, [(7, false), (13, false), (14, true), (3, false), (1, false), (14, true)]);
}

/// The lengths vary within a page and from page to page, so that some payloads are read with their
/// rows and others after them.
async fn payloads_of_every_length_come_whole_in_pages_of_bounded_size<DB: TestDialect>(db: &Database<DB>) {
    let length = |n: usize| [10, 0, 70_000, 1_500, 9_000, 3][n % 6] * (1 + 3 * (n / 30 % 2));
    let payload = |n: usize| -> Vec<u8> { (0..length(n)).map(|byte| (byte * 31 + n) as u8).collect() };
    db.enqueue((0..120).map(|n| NewMessage::new("orders").payload(payload(n)))).await;
    let (_, cursor) = granted(&mut db.checkpoint_store("a").await).await;
    for (entries_max, bytes_max) in [(1_000, 100_000), (1_000, 8_000), (40, 2 << 20), (1, 1)] {
        let mut follower = Follower::new(db.reader().await, cursor.clone());
        follower.limit = PageLimit { entries_max, bytes_max, ..SMALL };
        let mut found = 0;
        while let Some(page) = follower.next().await {
            let lengths = page.iter().map(|entry| entry.message.as_ref().unwrap().payload.len());
            assert!(page.len() <= entries_max && (page.len() == 1 || lengths.sum::<usize>() <= bytes_max));
            for entry in page {
                assert!(entry.message.unwrap().payload == payload(found), "payload {found}");
                found += 1;
            }
        }
        assert_eq!(found, 120);
    }
}

async fn a_cursor_inside_a_difference_goes_on_where_it_stood<DB: TestDialect>(db: &Database<DB>) {
    db.enqueue((0..20).map(|n| NewMessage::new("orders").json(&n))).await;
    let mut checkpoint_store = db.checkpoint_store("a").await;
    let (lease, cursor) = granted(&mut checkpoint_store).await;
    let mut follower = Follower::new(db.reader().await, cursor);
    let first = follower.next().await.unwrap();
    assert_eq!(
        checkpoint_store.checkpoint(lease.epoch, &follower.cursor(), &[]).await.unwrap(),
        outbox_log::Fenced::Held
    );
    db.enqueue((20..25).map(|n| NewMessage::new("orders").json(&n))).await;

    let (_, cursor) = granted(&mut checkpoint_store).await;
    let mut follower = Follower::new(db.reader().await, cursor);
    let rest = follower.all().await;
    assert_eq!((first.len(), rest.len()), (7, 18));
}

async fn a_rollback_and_a_savepoint_leave_nothing<DB: TestDialect>(db: &Database<DB>) {
    let mut tx = db.outbox.begin(&db.pool).await.unwrap();
    tx.enqueue(NewMessage::new("orders")).await.unwrap();
    tx.rollback().await.unwrap();

    let mut tx = db.outbox.begin(&db.pool).await.unwrap();
    tx.enqueue(NewMessage::new("orders").key("kept")).await.unwrap();
    DB::execute(tx.connection(), "SAVEPOINT inner_one").await.unwrap();
    tx.enqueue(NewMessage::new("orders").key("dropped")).await.unwrap();
    DB::execute(tx.connection(), "ROLLBACK TO SAVEPOINT inner_one").await.unwrap();
    tx.commit().await.unwrap();

    let (_, cursor) = granted(&mut db.checkpoint_store("a").await).await;
    let entries = Follower::new(db.reader().await, cursor).all().await;
    assert_eq!(entries.iter().map(|e| e.key().unwrap()).collect::<Vec<_>>(), ["kept"]);
}

/// Goal: no page reads a whole difference in one statement, and none ends before its last row.
/// Oracle: rows before and after gaps of many steps, one of which no number of steps could cross.
async fn a_difference_with_few_rows_among_many_ids_is_read(db: &Database<Postgres>) {
    let mut late = db.outbox.begin(&db.pool).await.unwrap();
    late.enqueue(NewMessage::new("orders").json(&0)).await.unwrap();
    db.enqueue([NewMessage::new("orders").json(&1)]).await;
    let (_, cursor) = granted(&mut db.checkpoint_store("a").await).await;
    let mut follower = Follower::new(db.reader().await, cursor);
    assert_eq!(ids(&follower.all().await), [2]);
    late.commit().await.unwrap();
    let mut expected = vec![1];
    for id in [3, 2_500_000, 2_500_001, 1 << 41, (1 << 41) + 10_000_000] {
        db.run(&format!("SELECT setval('outbox_message_id_seq', {}, true)", id - 1)).await;
        db.enqueue([NewMessage::new("orders").json(&id)]).await;
        expected.push(id);
    }
    // No row has these ids.
    db.run(&format!("SELECT setval('outbox_message_id_seq', {}, true)", 1_i64 << 42)).await;
    let cursor = follower.cursor();
    assert_eq!(ids(&follower.all().await), expected);
    for entries_max in [1, 2] {
        let mut follower = Follower::new(db.reader().await, cursor.clone());
        follower.limit.entries_max = entries_max;
        assert_eq!(ids(&follower.all().await), expected, "{entries_max}");
    }
}

async fn rows_of_plain_sql_are_read<DB: TestDialect>(db: &Database<DB>) {
    let cast = if DB::NAME == "SQLite" { "CAST('{}' AS BLOB)" } else { "'{}'" };
    db.produce(&format!("INSERT INTO outbox_message (topic, key, payload) VALUES ('orders', 'k', {cast})"))
        .await;
    db.produce(&format!("INSERT INTO outbox_message (topic, payload) VALUES ('or ders', {cast})")).await;
    db.produce(&format!(
        "INSERT INTO outbox_message (topic, payload, headers) VALUES ('orders', {cast}, '{{\"a\": 1}}')"
    ))
    .await;
    for wrong in ["('', 'x')", "(NULL, 'x')"] {
        let mut connection = db.admin.acquire().await.unwrap();
        let insert = format!("INSERT INTO outbox_message (topic, key) VALUES {wrong}");
        assert!(DB::execute(&mut connection, &insert).await.is_err(), "{wrong}");
    }
    let (_, cursor) = granted(&mut db.checkpoint_store("a").await).await;
    let entries = Follower::new(db.reader().await, cursor).all().await;
    let message = entries[0].message.as_ref().unwrap();
    assert_eq!((message.kind.as_str(), message.source.as_str()), ("orders", "/test"));
    assert_eq!(message.content_type.as_str(), "application/json");
    let age = message.time - message.id.generated_at();
    assert!(age.abs() < std::time::Duration::from_secs(5), "{age}");
    assert!(entries[1].message.as_ref().unwrap_err().problem.contains("or ders"));
    assert!(entries[2].message.as_ref().unwrap_err().problem.contains("headers"));
}
