//! A log that was restored into another cluster, where its transaction ids have no meaning, and
//! rows that were copied into a log in use.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::outbox::histories::{after_ten, keys, orders, read_anew};
use crate::outbox::support::{Database, Follower, TTL, granted};
use outbox::NewMessage;
use outbox_log::{Cursor, Fenced};
use sqlx::{Executor, PgConnection, Postgres};

tests::cases! { "outbox/restore/{on}/{case}":
    on_postgres {
        nothing_is_lost_after_a_restore_into_another_cluster,
        rows_from_the_future_are_proof_enough,
        a_row_of_another_transaction_is_refused_where_a_relay_reads,
        no_switch_of_a_session_lets_a_row_of_another_transaction_in,
        a_log_that_no_relay_reads_takes_the_rows_of_a_restore,
        no_relay_begins_while_rows_are_restored,
        a_row_that_brings_an_id_which_was_passed_is_read,
        an_id_below_one_is_refused_and_explained,
    }
}

/// Raises a row's transaction id far above any id that the test server has assigned.
const FOREIGN: &str = "xid = (xid::text::numeric + 4000000000)::text::xid8";

async fn nothing_is_lost_after_a_restore_into_another_cluster(db: &Database<Postgres>) {
    db.enqueue(orders(0..10)).await;
    let mut checkpoint_store = db.checkpoint_store("a").await;
    let (lease, cursor) = granted(&mut checkpoint_store).await;
    let mut follower = Follower::new(db.reader().await, cursor);
    assert_eq!(follower.all().await.len(), 10);

    // At the mark, a transaction is in flight that has the lowest of the later ids.
    let mut late = db.outbox.begin(&db.pool).await.unwrap();
    late.enqueue(NewMessage::new("orders").key("late")).await.unwrap();
    db.enqueue(orders(11..12)).await;
    assert_eq!(follower.all().await.len(), 1);
    assert_eq!(
        checkpoint_store.checkpoint(lease.epoch, &follower.cursor(), &[]).await.unwrap(),
        Fenced::Held
    );
    late.commit().await.unwrap();
    db.enqueue(orders(12..15)).await;
    assert_eq!(checkpoint_store.release(lease.epoch).await.unwrap(), Fenced::Held);
    drop((follower, checkpoint_store));

    // In a restored dump, the xids of the rows and of the cursor are those of another, older
    // cluster.
    let shifted = |cursor: &str| {
        let mark: Cursor = serde_json::from_str(cursor).unwrap();
        let text = mark.base.as_str().to_owned();
        let mut parts = text.split('@');
        let (floor, snapshot) = (parts.next().unwrap(), parts.next().unwrap());
        let shift = |xid: &str| (xid.parse::<u64>().unwrap() + 4_000_000_000).to_string();
        let parts: Vec<String> = snapshot
            .split(':')
            .map(|part| part.split(',').filter(|x| !x.is_empty()).map(shift).collect::<Vec<_>>().join(","))
            .collect();
        let base = outbox_log::Mark::new(format!("{floor}@{}", parts.join(":")));
        serde_json::to_string(&Cursor::at(base)).unwrap()
    };
    let cursor: String =
        sqlx::query_scalar("SELECT cursor FROM outbox_relay").fetch_one(&db.admin).await.unwrap();
    sqlx::query("UPDATE outbox_relay SET cursor = $1")
        .bind(shifted(&cursor))
        .execute(&db.admin)
        .await
        .unwrap();
    db.run(&format!("UPDATE outbox_message SET {FOREIGN}")).await;
    db.run("UPDATE outbox_identity SET system_identifier = '1'").await;

    let mut checkpoint_store = db.checkpoint_store("b").await;
    let (rebased, cursor) = granted(&mut checkpoint_store).await;
    assert!(rebased.epoch > lease.epoch + 1, "the old holder is fenced off");
    let mut follower = Follower::new(db.reader().await, cursor);
    let entries = follower.all().await;
    let again: Vec<_> = entries.iter().map(|entry| entry.key().unwrap()).collect();
    assert_eq!(again, ["late", "11", "12", "13", "14"]);
    db.enqueue(orders(15..16)).await;
    assert_eq!(follower.all().await.len(), 1);

    // A relay that is new in this cluster reads everything.
    let other = outbox_log::RelayName::new("other").unwrap();
    let (_, cursor) = granted(&mut db.log.checkpoint_store(&other, "c").await.unwrap()).await;
    let reader = db.log.reader(&other).await.unwrap();
    assert_eq!(Follower::new(reader, cursor).all().await.len(), 16);
    assert_eq!(
        checkpoint_store.checkpoint(rebased.epoch, &follower.cursor(), &[]).await.unwrap(),
        Fenced::Held
    );
}

async fn rows_from_the_future_are_proof_enough(db: &Database<Postgres>) {
    db.enqueue([NewMessage::new("orders")]).await;
    db.run(&format!("UPDATE outbox_message SET {FOREIGN}")).await;
    let (_, cursor) = granted(&mut db.checkpoint_store("a").await).await;
    assert_eq!(Follower::new(db.reader().await, cursor).all().await.len(), 1);
}

/// Runs a statement as the tables' owner. Returns the SQLSTATE and the text of its error.
async fn refused(db: &Database<Postgres>, sql: &'static str) -> (String, String) {
    let error = db.admin.execute(sql).await.unwrap_err();
    let error = error.as_database_error().unwrap();
    (error.code().unwrap().into_owned(), error.message().to_owned())
}

/// Copies two rows of an older cluster: their transaction ids are below every one of this server.
async fn copy(connection: &mut PgConnection, table: &str, ids: [i64; 2]) -> Result<u64, sqlx::Error> {
    let statement = format!("COPY {table} (xid, id, message_id, topic, key, payload) FROM STDIN");
    let mut copy = connection.copy_in_raw(&statement).await?;
    for (at, id) in ids.into_iter().enumerate() {
        let row =
            format!("100\t{id}\t01900000-0000-7000-8000-00000000000{at}\torders\tcopied-{at}\t\\\\x00\n");
        copy.send(row.as_bytes()).await?;
    }
    copy.finish().await
}

/// Goal: no row is stored that a relay would pass without publishing it. Oracle: the refusals, in
/// whatever way the row is written; the rows that the relay reads, among them those that were moved
/// as the error says, and those of a subtransaction.
async fn a_row_of_another_transaction_is_refused_where_a_relay_reads(db: &Database<Postgres>) {
    let (_store, _, mut follower) = after_ten(db).await;
    // Otherwise a key of a segment may refuse their ids.
    db.run("DELETE FROM outbox_message WHERE id <= 3").await;
    for sql in [
        "INSERT INTO outbox_message (xid, topic, payload) VALUES ('100', 'orders', '')",
        "INSERT INTO outbox_message (xid, topic, payload) VALUES ('1000000000000000000', 'orders', '')",
        "INSERT INTO outbox_message (xid, id, topic, payload) OVERRIDING SYSTEM VALUE VALUES ('100', 1, 'orders', '')",
        "INSERT INTO outbox_message (xid, topic, payload) SELECT xid, topic, payload FROM outbox_message",
    ] {
        let (code, text) = refused(db, sql).await;
        assert_eq!(code, "428C9", "{sql}: {text}");
        assert!(text.contains("brings the transaction id"), "{sql}: {text}");
    }
    let mut connection = db.admin.acquire().await.unwrap();
    for table in ["outbox_message", "outbox_message_0"] {
        let error = copy(&mut connection, table, [2, 3]).await.unwrap_err();
        assert!(error.to_string().contains("brings the transaction id 100"), "{table}: {error}");
    }
    assert_eq!(db.rows().await, 7);

    connection.execute("CREATE TABLE moved (LIKE outbox_message INCLUDING DEFAULTS)").await.unwrap();
    assert_eq!(copy(&mut connection, "moved", [2, 3]).await.unwrap(), 2);
    let columns = format!("{}, enqueued_at", outbox::ENQUEUED);
    db.run(&format!("INSERT INTO outbox_message ({columns}) SELECT {columns} FROM moved ORDER BY id")).await;
    db.produce(
        "DO $$ BEGIN
            INSERT INTO outbox_message (topic, key, payload) VALUES ('orders', 'outer', '');
            BEGIN
                INSERT INTO outbox_message (topic, key, payload) VALUES ('orders', 'inner', '');
            EXCEPTION WHEN division_by_zero THEN NULL;
            END;
        END $$",
    )
    .await;
    assert_eq!(keys(&follower.all().await), ["copied-0", "copied-1", "outer", "inner"]);
}

/// Goal: tools that replicate rows cannot bypass a relay, and disabling the check does not go
/// unnoticed. Oracle: the refusal in a session that is a replica; what the doctor finds once the
/// trigger does not fire, fires in usual sessions only, or is gone.
async fn no_switch_of_a_session_lets_a_row_of_another_transaction_in(db: &Database<Postgres>) {
    let (_store, _, mut follower) = after_ten(db).await;
    let mut replica = db.admin.begin().await.unwrap();
    replica.execute("SET LOCAL session_replication_role = replica").await.unwrap();
    for table in ["outbox_message", "outbox_message_0"] {
        replica.execute("SAVEPOINT before").await.unwrap();
        let error = copy(&mut replica, table, [12, 13]).await.unwrap_err();
        assert!(error.to_string().contains("brings the transaction id 100"), "{table}: {error}");
        replica.execute("ROLLBACK TO before").await.unwrap();
    }
    replica
        .execute("INSERT INTO outbox_message (topic, key, payload) VALUES ('orders', 'own', '')")
        .await
        .unwrap();
    replica.commit().await.unwrap();
    assert_eq!(keys(&follower.all().await), ["own"]);

    let missing = async || {
        let migrator = migrations::Migrator::<Postgres>::new(migrations::Line::Outbox);
        let mut connection = db.admin.acquire().await.unwrap();
        migrator.missing(&mut connection).await.unwrap()
    };
    assert_eq!(missing().await, [] as [String; 0]);
    let of = |table: &str| format!("trigger outbox_message_xid_is_own of {table}");
    let segment = of("outbox_message_3");
    db.run("ALTER TABLE outbox_message_3 DISABLE TRIGGER outbox_message_xid_is_own").await;
    assert_eq!(missing().await, std::slice::from_ref(&segment));
    db.run("ALTER TABLE outbox_message_3 ENABLE TRIGGER outbox_message_xid_is_own").await;
    assert_eq!(missing().await, [segment]);
    db.run("ALTER TABLE outbox_message DISABLE TRIGGER ALL").await;
    assert!(missing().await.contains(&of("outbox_message")));
    db.run("DROP TRIGGER outbox_message_xid_is_own ON outbox_message").await;
    assert_eq!(missing().await, ["trigger outbox_message_xid_is_own"]);
}

/// Goal: a restore of data only works, whether its transaction ids are ahead of this server's or
/// behind them. Oracle: what the first relay reads.
async fn a_log_that_no_relay_reads_takes_the_rows_of_a_restore(db: &Database<Postgres>) {
    db.enqueue(orders(0..1)).await;
    let mut connection = db.admin.acquire().await.unwrap();
    assert_eq!(copy(&mut connection, "outbox_message_0", [7, 9]).await.unwrap(), 2);
    db.run(
        "INSERT INTO outbox_message (xid, topic, key, payload) VALUES ('1000000000000000000', 'orders', 'ahead', '')",
    )
    .await;
    let mut found = read_anew(db).await;
    found.sort();
    assert_eq!(found, ["0", "ahead", "copied-0", "copied-1"]);
    db.enqueue(orders(1..2)).await;
    assert!(copy(&mut connection, "outbox_message_0", [11, 12]).await.is_err(), "a relay reads it");
}

/// Goal: a relay whose first mark falls into a restore misses none of its rows. Oracle: the relay
/// waits for the restore, and reads them.
async fn no_relay_begins_while_rows_are_restored(db: &Database<Postgres>) {
    let mut restore = db.admin.begin().await.unwrap();
    copy(&mut restore, "outbox_message", [1, 2]).await.unwrap();
    let begin =
        "SET lock_timeout = '200ms'; INSERT INTO outbox_relay (relay, epoch, cursor) VALUES ('x', 1, '{}')";
    let (code, text) = refused(db, begin).await;
    assert_eq!(code, "55P03", "{text}");
    restore.commit().await.unwrap();
    assert_eq!(read_anew(db).await, ["copied-0", "copied-1"]);
}

/// Goal: a row of its own transaction is published even if it has an id that relays have passed.
/// Oracle: the rows that are read at the next grant.
async fn a_row_that_brings_an_id_which_was_passed_is_read(db: &Database<Postgres>) {
    let (checkpoint_store, _, follower) = after_ten(db).await;
    db.run("DELETE FROM outbox_message WHERE id = 3").await;
    db.run(
        "INSERT INTO outbox_message (id, topic, key, payload) OVERRIDING SYSTEM VALUE VALUES (3, 'orders', 'third', '')",
    )
    .await;
    drop((checkpoint_store, follower));
    assert!(read_anew(db).await.contains(&String::from("third")));
}

/// Goal: an id below 1 is refused, and one that a table has from elsewhere stops no relay for good.
/// Oracle: the constraint; without it, the remedy in the error, and what is read after it.
async fn an_id_below_one_is_refused_and_explained(db: &Database<Postgres>) {
    drop(after_ten(db).await);
    let negative = "INSERT INTO outbox_message (id, topic, key, payload) OVERRIDING SYSTEM VALUE \
                    VALUES (-5, 'orders', 'negative', '')";
    let (code, text) = refused(db, negative).await;
    assert_eq!(code, "23514", "{text}");
    assert!(text.contains("outbox_message_id_is_positive"), "{text}");

    db.run("ALTER TABLE outbox_message DROP CONSTRAINT outbox_message_id_is_positive").await;
    db.run(negative).await;
    let error = db.checkpoint_store("a").await.acquire(TTL).await.map(drop).unwrap_err();
    let remedy = "UPDATE outbox_message SET id = DEFAULT WHERE id < 1";
    assert!(error.to_string().contains("has the id -5") && error.to_string().contains(remedy), "{error}");
    db.run(remedy).await;
    assert_eq!(read_anew(db).await, ["negative"]);
}
