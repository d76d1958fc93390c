//! Enqueueing: atomic, recognisable, never partial.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::begun::Line;
use crate::outbox::support::{Database, Follower, TestDialect, granted};
use message::token::DriftWindow;
use message::{HeaderName, IdReused, MessageId, SizeLimit, Topic, TraceContext};
use outbox::{
    CommitError, Dialect, Difference, EnqueueError, Enqueued, NewMessage, OnDuplicate, Outbox,
    OutboxTransaction, Rollback, TransactionError, trace,
};
use sqlx::{AssertSqlSafe, Executor, Postgres, Sqlite};
use tests::Dialect as _;
use tokio::time::timeout;
use uuid::Uuid;

tests::cases! { "outbox/producer/{on}/{case}":
    every {
        a_batch_answers_in_order_and_recognises_duplicates,
        the_same_id_with_another_content_is_an_error,
        the_same_id_for_another_receiver_is_an_error,
        a_message_that_is_forwarded_under_its_own_id_is_an_error,
        a_command_that_is_repeated_later_is_a_duplicate,
        a_duplicate_is_an_error_when_asked_for,
        an_id_that_is_made_twice_is_an_error,
        everything_of_a_message_arrives,
        an_event_brings_its_topic_kind_and_key,
        missing_tables_are_named_with_the_remedy,
        a_business_reason_rolls_back,
        sizes_are_checked_per_topic,
        a_failed_enqueue_makes_commit_refuse,
        an_enqueue_that_is_dropped_makes_commit_refuse,
        staged_messages_are_stored_at_commit,
        a_dropped_caller_does_not_stop_its_transaction,
        an_error_of_the_work_rolls_back,
        a_commit_wakes_the_relay,
        a_conflict_runs_again_with_the_same_ids,
        traces_are_captured_and_carried_into_the_task,
        a_transaction_that_was_ended_by_a_dropped_begin_stores_nothing,
        a_transaction_that_was_ended_in_sql_stores_no_staged_message,
        a_conflict_that_is_swallowed_runs_again,
    }
    on_postgres {
        a_swallowed_error_does_not_turn_commit_into_a_silent_rollback,
        functions_for_other_languages_enqueue_and_explain,
        two_transactions_racing_for_one_id_store_it_once,
        a_begin_that_is_dropped_by_a_time_limit_loses_no_later_write,
    }
    on_sqlite { a_full_disk_spoils_no_connection_on_sqlite }
    night on_postgres { a_begin_that_gets_no_answer_closes_its_session }
}

async fn entries<DB: TestDialect>(db: &Database<DB>) -> Vec<outbox_log::Entry> {
    let (_, cursor) = granted(&mut db.checkpoint_store("a").await).await;
    Follower::new(db.reader().await, cursor).all().await
}

fn named(id: MessageId, payload: &'static str) -> NewMessage {
    NewMessage::new("orders").id(id).payload(payload)
}

async fn a_batch_answers_in_order_and_recognises_duplicates<DB: TestDialect>(db: &Database<DB>) {
    let [a, b, c] = [MessageId::new(), MessageId::new(), MessageId::new()];
    db.enqueue([named(b, "b")]).await;
    let mut tx = db.pool.begin().await.unwrap();
    let batch = [named(c, "c"), named(b, "b"), named(a, "a"), named(c, "c")];
    let answers = db.outbox.enqueue_batch(&mut tx, batch).await.unwrap();
    tx.commit().await.unwrap();
    use Enqueued::{Duplicate, Stored};
    assert_eq!(answers, [Stored(c), Duplicate(b), Stored(a), Duplicate(c)]);
    let ids: Vec<_> = entries(db).await.iter().map(|e| e.message.as_ref().unwrap().id).collect();
    assert_eq!(ids, [b, c, a]);
    let mut tx = db.pool.begin().await.unwrap();
    assert!(db.outbox.enqueue_batch(&mut tx, [] as [NewMessage; 0]).await.unwrap().is_empty());
    tx.rollback().await.unwrap();
}

async fn the_same_id_with_another_content_is_an_error<DB: TestDialect>(db: &Database<DB>) {
    let id = MessageId::new();
    db.enqueue([named(id, "a")]).await;
    for other in [named(id, "b"), named(id, "a").kind("other"), named(id, "a").content_type("text/plain")] {
        let mut tx = db.outbox.begin(&db.pool).await.unwrap();
        let error = tx.enqueue(other).await.unwrap_err();
        assert!(matches!(&error, EnqueueError::IdReused(reused) if reused.id == id), "{error}");
        assert!(matches!(tx.commit().await, Err(CommitError::Poisoned { .. })));
    }
    assert_eq!(db.rows().await, 1);
}

/// Goal: no message is dropped because another one has its id, if the two differ in topic, key or
/// tenant, alone and in a batch. Oracle: the error and the parts that it names.
async fn the_same_id_for_another_receiver_is_an_error<DB: TestDialect>(db: &Database<DB>) {
    let id = MessageId::new();
    let order = || named(id, "a").key("7").header("tenant", "schlüssel").header("empty", "");
    db.enqueue([order()]).await;
    let tenant = || Difference::Header("tenant".into());
    let cases: [(NewMessage, Vec<Difference>); 5] = [
        (order().kind("orders").topic("bills"), vec![Difference::Topic]),
        (order().key("8"), vec![Difference::Key]),
        (order().header("tenant", "b"), vec![tenant()]),
        (order().header("region", "eu"), vec![Difference::Header("region".into())]),
        (
            named(id, "b").header("tenant", "b").header("empty", ""),
            vec![Difference::Content, Difference::Key, tenant()],
        ),
    ];
    for (other, expected) in cases {
        let batches = [vec![other.clone()], vec![NewMessage::new("orders"), other.clone()]];
        for batch in batches {
            let mut tx = db.outbox.begin(&db.pool).await.unwrap();
            let error = tx.enqueue_batch(batch).await.unwrap_err();
            let EnqueueError::IdReused(IdReused { id: reused, differs, .. }) = &error else {
                panic!("{error}")
            };
            assert_eq!((*reused, differs), (id, &expected), "{error}");
            assert!(matches!(tx.commit().await, Err(CommitError::Poisoned { .. })));
        }
        // The same within one batch, under an id that is not stored yet.
        let new = MessageId::new();
        let mut tx = db.outbox.begin(&db.pool).await.unwrap();
        let error = tx.enqueue_batch([order().id(new), other.id(new)]).await.unwrap_err();
        assert!(matches!(&error, EnqueueError::IdReused(reused) if reused.differs == expected), "{error}");
        tx.rollback().await.unwrap();
    }
    assert_eq!(db.rows().await, 1);
}

/// Goal: in a service that sends and receives with one database, a received message that is
/// forwarded unchanged to another topic is not lost; with its own id it is sent. Oracle: the error,
/// and the topics in the outbox.
async fn a_message_that_is_forwarded_under_its_own_id_is_an_error<DB: TestDialect>(db: &Database<DB>) {
    db.enqueue([NewMessage::new("orders").key("7").header("tenant", "a").json(&7)]).await;
    let received = entries(db).await.remove(0).message.unwrap();
    let forwarded = || NewMessage::from(received.clone()).topic("bills");
    let mut tx = db.outbox.begin(&db.pool).await.unwrap();
    let error = tx.enqueue(forwarded()).await.unwrap_err();
    assert!(
        matches!(&error, EnqueueError::IdReused(reused) if reused.differs == [Difference::Topic]),
        "{error}"
    );
    assert!(error.to_string().contains("for topic bills was already enqueued with another topic"), "{error}");
    tx.rollback().await.unwrap();
    db.enqueue([forwarded().id(MessageId::new())]).await;
    assert_eq!(db.number("SELECT count(*) FROM outbox_message WHERE topic = 'bills'").await, 1);
}

/// Goal: a command that is repeated under its id is a duplicate, although its trace, its time of
/// delivery and the headers of its request differ. Oracle: the answers.
async fn a_command_that_is_repeated_later_is_a_duplicate<DB: TestDialect>(db: &Database<DB>) {
    let outbox = Outbox::<DB>::builder().varying_headers(["attempt"]).build();
    let id = MessageId::new();
    let command = |n: u8| {
        let parent = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b{n}-01");
        named(id, "a")
            .key("7")
            .header("tenant", "a")
            .header("X-Request-Id", format!("request-{n}"))
            .header("baggage", format!("n={n}"))
            .header("Attempt", n.to_string())
            .trace(TraceContext::new(&parent, Some(format!("a={n}"))).unwrap())
            .deliver_at(time::OffsetDateTime::now_utc() + time::Duration::minutes(n.into()))
    };
    for (n, expected) in [(1, Enqueued::Stored(id)), (2, Enqueued::Duplicate(id))] {
        let mut tx = outbox.begin(&db.pool).await.unwrap();
        assert_eq!(tx.enqueue(command(n)).await.unwrap(), expected);
        tx.commit().await.unwrap();
    }
    let mut tx = outbox.begin(&db.pool).await.unwrap();
    let answers = tx.enqueue_batch([command(3), command(4)]).await.unwrap();
    assert_eq!(answers, [Enqueued::Duplicate(id), Enqueued::Duplicate(id)]);
    tx.commit().await.unwrap();
    assert_eq!(db.rows().await, 1);
}

async fn a_duplicate_is_an_error_when_asked_for<DB: TestDialect>(db: &Database<DB>) {
    let strict = Outbox::<DB>::builder().on_duplicate(OnDuplicate::Error).build();
    let id = MessageId::new();
    db.enqueue([named(id, "a")]).await;
    let mut tx = strict.begin(&db.pool).await.unwrap();
    let error = tx.enqueue(named(id, "a")).await.unwrap_err();
    assert!(matches!(error, EnqueueError::DuplicateId { .. }), "{error}");
    tx.rollback().await.unwrap();
}

/// Ids that the outbox generates name different facts, whatever their content.
async fn an_id_that_is_made_twice_is_an_error<DB: TestDialect>(db: &Database<DB>) {
    #[derive(Debug)]
    struct Stuck(MessageId);
    impl message::token::IdGenerator for Stuck {
        fn mint(&self) -> Result<MessageId, message::token::MintError> {
            Ok(self.0)
        }
    }
    let outbox = Outbox::<DB>::builder().ids(Stuck(MessageId::new())).build();
    let order = || NewMessage::new("orders").payload("a");
    let twice = async |first: usize, second: usize| {
        let mut tx = db.pool.begin().await.unwrap();
        for count in [first, second] {
            outbox.enqueue_batch(&mut tx, std::iter::repeat_with(order).take(count)).await?;
        }
        Ok(())
    };
    for (first, second) in [(1, 1), (2, 0)] {
        let error: EnqueueError = twice(first, second).await.unwrap_err();
        assert!(matches!(error, EnqueueError::NotUnique { .. }), "{first}, {second}: {error}");
        assert!(!error.is_retryable() && error.fault() == message::Fault::Operator);
    }
    // The same with an id from the caller.
    let stuck = Stuck(MessageId::new());
    db.enqueue([named(stuck.0, "a")]).await;
    let outbox = Outbox::<DB>::builder().ids(stuck).build();
    let mut tx = db.pool.begin().await.unwrap();
    let error = outbox.enqueue_batch(&mut tx, [order(), named(MessageId::new(), "b")]).await.unwrap_err();
    assert!(matches!(error, EnqueueError::NotUnique { .. }), "{error}");
    drop(tx);
}

async fn everything_of_a_message_arrives<DB: TestDialect>(db: &Database<DB>) {
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let context = TraceContext::new(parent, Some("a=b".into())).unwrap();
    let soon = time::OffsetDateTime::now_utc() + time::Duration::hours(1);
    db.enqueue([NewMessage::new("orders")
        .kind("order.placed")
        .key("schlüssel-7 'quoted' \"twice\"")
        .header("tenant", "acme, {\"x\"}")
        .trace(context.clone())
        .deliver_at(soon)
        .content_type("text/plain; charset=utf-8")
        .payload(&b"\x00\xff'{}"[..])])
        .await;
    let entry = entries(db).await.remove(0);
    let wait = entry.deliver_in.unwrap();
    assert!(wait.as_secs() > 3_500 && wait.as_secs() <= 3_600, "{wait:?}");
    let message = entry.message.unwrap();
    assert_eq!((message.kind.as_str(), message.topic.as_str()), ("order.placed", "orders"));
    assert_eq!(message.key.unwrap().as_str(), "schlüssel-7 'quoted' \"twice\"");
    assert_eq!(message.headers.get("tenant"), Some("acme, {\"x\"}"));
    assert_eq!(message.trace, Some(context));
    assert_eq!(message.content_type.as_str(), "text/plain; charset=utf-8");
    assert_eq!(&message.payload[..], b"\x00\xff'{}");
}

#[derive(Clone, serde::Serialize)]
struct OrderPlaced {
    order: i64,
    customer: String,
}

impl message::Event for OrderPlaced {
    const TOPIC: &'static str = "orders";
    const KIND: &'static str = "order.placed";

    fn key(&self) -> Option<String> {
        Some(format!("order-{}", self.order))
    }
}

/// Events are enqueued in every way: immediately, staged, in a batch, and in the caller's own
/// transaction.
async fn an_event_brings_its_topic_kind_and_key<DB: TestDialect>(db: &Database<DB>) {
    let event = |order| OrderPlaced { order, customer: String::from("acme") };
    // The event is moved into the work, which uses it by reference.
    let given = event(1);
    db.outbox
        .transaction(&db.pool, async move |tx: &mut OutboxTransaction<DB>| {
            tx.enqueue(&given).await?;
            tx.stage(&event(2))?;
            Ok::<_, EnqueueError>(given.customer.len())
        })
        .await
        .unwrap();
    let mut tx = db.pool.begin().await.unwrap();
    db.outbox.enqueue(&mut tx, &event(3)).await.unwrap();
    db.outbox.enqueue_batch(&mut tx, &[event(4), event(5)]).await.unwrap();
    tx.commit().await.unwrap();
    for (entry, order) in entries(db).await.into_iter().zip(1..=5) {
        let message = entry.message.unwrap();
        assert_eq!((message.topic.as_str(), message.kind.as_str()), ("orders", "order.placed"));
        assert_eq!(message.key.unwrap().as_str(), format!("order-{order}"));
        assert!(message.content_type.is_json());
        assert_eq!(message.payload, format!(r#"{{"order":{order},"customer":"acme"}}"#));
    }
    assert_eq!(db.rows().await, 5);
}

async fn missing_tables_are_named_with_the_remedy<DB: TestDialect>(db: &Database<DB>) {
    db.run("ALTER TABLE outbox_message RENAME TO elsewhere").await;
    let mut tx = db.outbox.begin(&db.pool).await.unwrap();
    let error = tx.enqueue(NewMessage::new("orders")).await.unwrap_err();
    assert!(matches!(error, EnqueueError::NoTables(_)), "{error:?}");
    assert!(error.to_string().contains("relay migrate up --line outbox"), "{error}");
    assert!(!error.is_retryable());
    drop(tx);
    db.run("ALTER TABLE elsewhere RENAME TO outbox_message").await;
}

async fn a_business_reason_rolls_back<DB: TestDialect>(db: &Database<DB>) {
    let work = async |tx: &mut OutboxTransaction<DB>| {
        tx.enqueue(NewMessage::new("orders")).await?;
        Err::<(), _>(Rollback::because("over the limit"))
    };
    let done = db.outbox.transaction(&db.pool, work).await;
    let Err(TransactionError::Work(Rollback::Because(reason))) = done else { panic!("{done:?}") };
    assert_eq!((reason.as_str(), db.rows().await), ("over the limit", 0));
}

async fn sizes_are_checked_per_topic<DB: TestDialect>(db: &Database<DB>) {
    let big = SizeLimit { destination: "the archive", message_bytes_max: 4 << 20 };
    let archive = Topic::new("archive").unwrap();
    let outbox = Outbox::<DB>::builder().topic_limit(archive, big).build();
    let mut tx = db.pool.begin().await.unwrap();
    let payload = vec![7_u8; 2 << 20];
    outbox.enqueue(&mut tx, NewMessage::new("archive").payload(payload.clone())).await.unwrap();
    let error = outbox.enqueue(&mut tx, NewMessage::new("orders").payload(payload)).await.unwrap_err();
    assert!(error.to_string().contains("every broker takes at most 1000000"), "{error}");
    tx.rollback().await.unwrap();
}

async fn a_failed_enqueue_makes_commit_refuse<DB: TestDialect>(db: &Database<DB>) {
    db.run("CREATE TABLE business (n integer)").await;
    let mut tx = db.outbox.begin(&db.pool).await.unwrap();
    DB::execute(tx.connection(), "INSERT INTO business VALUES (1)").await.unwrap();
    assert!(matches!(tx.enqueue(NewMessage::new("")).await, Err(EnqueueError::Invalid(_))));
    let error = tx.enqueue(NewMessage::new("orders")).await.unwrap_err();
    assert!(matches!(error, EnqueueError::Poisoned { .. }), "{error}");
    assert!(matches!(tx.stage(NewMessage::new("orders")), Err(EnqueueError::Poisoned { .. })));
    let error = tx.commit().await.unwrap_err();
    assert!(
        matches!(&error, CommitError::Poisoned { first, .. } if first.contains("topic is empty")),
        "{error}"
    );
    assert_eq!(db.number("SELECT count(*) FROM business").await, 0);
}

/// A batch is several statements. A future that is dropped in between has stored part of it.
async fn an_enqueue_that_is_dropped_makes_commit_refuse<DB: TestDialect>(db: &Database<DB>) {
    let orders = |count: usize| std::iter::repeat_with(|| NewMessage::new("orders")).take(count);
    let mut tx = db.outbox.begin(&db.pool).await.unwrap();
    tx.enqueue_batch(orders(2)).await.unwrap();
    {
        let mut batch = std::pin::pin!(tx.enqueue_batch(orders(6_000)));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(batch.as_mut().poll(&mut context).is_pending());
    }
    let error = tx.enqueue(NewMessage::new("orders")).await.unwrap_err();
    assert!(matches!(error, EnqueueError::Poisoned { .. }), "{error}");
    let refused = tx.commit().await.unwrap_err();
    assert!(matches!(refused, CommitError::Poisoned { retryable: false, .. }), "{refused}");
    assert!(refused.to_string().contains("dropped"), "{refused}");
    assert_eq!(db.rows().await, 0);
}

async fn staged_messages_are_stored_at_commit<DB: TestDialect>(db: &Database<DB>) {
    let mut tx = db.outbox.begin(&db.pool).await.unwrap();
    let first = tx.stage(NewMessage::new("orders").key("a")).unwrap();
    tx.enqueue(NewMessage::new("orders").key("b")).await.unwrap();
    tx.stage(NewMessage::new("orders").key("c")).unwrap();
    tx.commit().await.unwrap();
    let entries = entries(db).await;
    assert_eq!(entries.iter().map(|e| e.key().unwrap()).collect::<Vec<_>>(), ["b", "a", "c"]);
    assert_eq!(entries[1].message_id(), first.to_string());
}

async fn a_dropped_caller_does_not_stop_its_transaction<DB: TestDialect>(db: &Database<DB>) {
    let (started, has_started) = tokio::sync::oneshot::channel();
    let (go, may_go) = tokio::sync::oneshot::channel::<()>();
    let signals = Arc::new(std::sync::Mutex::new(Some((started, may_go))));
    let wake = db.outbox.wake_up().notify();
    let (outbox, pool) = (db.outbox.clone(), db.pool.clone());
    let caller = tokio::spawn(async move {
        outbox
            .transaction(&pool, async move |tx: &mut OutboxTransaction<DB>| {
                let (started, may_go) = signals.lock().unwrap().take().unwrap();
                started.send(()).unwrap();
                may_go.await.unwrap();
                tx.stage(NewMessage::new("orders"))?;
                Ok::<_, EnqueueError>(())
            })
            .await
    });
    has_started.await.unwrap();
    caller.abort();
    assert!(caller.await.unwrap_err().is_cancelled());
    go.send(()).unwrap();
    wake.notified().await;
    assert_eq!(db.rows().await, 1);
}

#[derive(Debug, thiserror::Error)]
enum Business {
    #[error("out of stock")]
    OutOfStock,
    #[error(transparent)]
    Enqueue(#[from] EnqueueError),
    #[error("conflict")]
    Conflict(#[source] sqlx::Error),
}

async fn an_error_of_the_work_rolls_back<DB: TestDialect>(db: &Database<DB>) {
    let done: Result<(), _> = db
        .outbox
        .transaction(&db.pool, async |tx: &mut OutboxTransaction<DB>| {
            tx.enqueue(NewMessage::new("orders")).await?;
            Err(Business::OutOfStock)
        })
        .await;
    assert!(matches!(done, Err(TransactionError::Work(Business::OutOfStock))));
    assert_eq!(db.rows().await, 0);
}

async fn a_commit_wakes_the_relay<DB: TestDialect>(db: &Database<DB>) {
    let wake = db.outbox.wake_up().notify();
    db.enqueue([NewMessage::new("orders")]).await;
    wake.notified().await;
}

/// The work fails with the database's own conflict error. On PostgreSQL a statement raises it; on
/// SQLite a second connection causes it.
async fn a_conflict_runs_again_with_the_same_ids<DB: TestDialect>(db: &Database<DB>) {
    let attempts = Arc::new(AtomicUsize::new(0));
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let (counted, noted) = (Arc::clone(&attempts), Arc::clone(&seen));
    // Each attempt gets its own clone of the event.
    let event = OrderPlaced { order: 7, customer: String::from("acme") };
    let conflict = if <DB as sqlx::Database>::NAME == "SQLite" {
        None
    } else {
        Some("DO $$ BEGIN RAISE EXCEPTION 'conflict' USING ERRCODE = '40001'; END $$")
    };
    db.outbox
        .transaction(&db.pool, async move |tx: &mut OutboxTransaction<DB>| {
            let ids = [tx.stage(&event)?, tx.stage(NewMessage::new("orders"))?];
            drop(event);
            noted.lock().unwrap().push(ids);
            if counted.fetch_add(1, Ordering::SeqCst) < 2 {
                return Err(Business::Conflict(fail_with_conflict::<DB>(tx.connection(), conflict).await));
            }
            Ok(())
        })
        .await
        .unwrap();
    let seen = seen.lock().unwrap().clone();
    assert_eq!((seen.len(), seen[0], seen[1]), (3, seen[2], seen[2]));
    assert_eq!(db.rows().await, 2);
}

async fn fail_with_conflict<DB: TestDialect>(
    connection: &mut DB::Connection,
    raise: Option<&str>,
) -> sqlx::Error {
    match raise {
        Some(raise) => DB::execute(connection, raise).await.unwrap_err(),
        // A connection that wants to write while another one writes.
        None => busy().await,
    }
}

async fn busy() -> sqlx::Error {
    use sqlx::{ConnectOptions, sqlite::SqliteConnectOptions};
    let directory = tempfile::tempdir().unwrap();
    let options = SqliteConnectOptions::new()
        .filename(directory.path().join("busy.db"))
        .create_if_missing(true)
        .busy_timeout(std::time::Duration::ZERO);
    let (mut one, mut two) = (options.connect().await.unwrap(), options.connect().await.unwrap());
    one.execute("BEGIN IMMEDIATE").await.unwrap();
    two.execute("BEGIN IMMEDIATE").await.unwrap_err()
}

async fn traces_are_captured_and_carried_into_the_task<DB: TestDialect>(db: &Database<DB>) {
    let context = TraceContext::new("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", None).unwrap();
    let work = db.outbox.transaction(&db.pool, async |tx: &mut OutboxTransaction<DB>| {
        tx.enqueue(NewMessage::new("orders")).await.map(|_| ())
    });
    trace::scope(context.clone(), work).await.unwrap();
    assert_eq!(entries(db).await[0].message.as_ref().unwrap().trace, Some(context));
}

/// Goal: after sqlx has ended a transaction unnoticed by the caller, no message is stored on its
/// own, and no commit succeeds. Oracle: the rows, and every error.
async fn a_transaction_that_was_ended_by_a_dropped_begin_stores_nothing<DB: TestDialect>(db: &Database<DB>) {
    for before in ["nothing", "enqueued", "staged"] {
        let mut tx = db.outbox.begin(&db.pool).await.unwrap();
        match before {
            "enqueued" => drop(tx.enqueue(NewMessage::new("orders")).await.unwrap()),
            "staged" => drop(tx.stage(NewMessage::new("orders")).unwrap()),
            _ => {}
        }
        tests::drop_a_begin(tx.connection()).await;
        let error = tx.commit().await.unwrap_err();
        assert!(matches!(error, CommitError::Ended), "{before}: {error:?}");
    }
    let mut tx = db.outbox.begin(&db.pool).await.unwrap();
    tests::drop_a_begin(tx.connection()).await;
    let error = tx.enqueue(NewMessage::new("orders")).await.unwrap_err();
    assert!(matches!(error, EnqueueError::Ended), "{error:?}");
    assert!(matches!(tx.commit().await, Err(CommitError::Poisoned { .. })));
    let mut tx = db.pool.begin().await.unwrap();
    tests::drop_a_begin(&mut *tx).await;
    let error = db.outbox.enqueue(&mut tx, NewMessage::new("orders")).await.unwrap_err();
    assert!(matches!(error, EnqueueError::Ended), "{error:?}");
    drop(tx);
    assert_eq!(db.rows().await, 0);
    // A savepoint that begins and ends correctly does no harm.
    let mut tx = db.outbox.begin(&db.pool).await.unwrap();
    let mut savepoint = sqlx::Connection::begin(tx.connection()).await.unwrap();
    db.outbox.enqueue(&mut savepoint, NewMessage::new("orders")).await.unwrap();
    savepoint.commit().await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(db.rows().await, 1);
}

/// Goal: after a statement has ended the transaction unnoticed by the client, the staged messages
/// are not stored without the business rows. Oracle: the rows, and every error.
async fn a_transaction_that_was_ended_in_sql_stores_no_staged_message<DB: TestDialect>(db: &Database<DB>) {
    db.run("CREATE TABLE business (n integer PRIMARY KEY)").await;
    let known = MessageId::new();
    db.enqueue([named(known, "a")]).await;
    let new = || NewMessage::new("orders");
    let staged = [vec![new()], vec![new(), new()], vec![new().id(MessageId::new())], vec![named(known, "a")]];
    for ends in DB::ENDS_TRANSACTION {
        for (staged, messages) in staged.iter().enumerate() {
            let mut tx = db.outbox.begin(&db.pool).await.unwrap();
            DB::execute(tx.connection(), "INSERT INTO business VALUES (1)").await.unwrap();
            // An error of it is swallowed.
            drop(DB::execute(tx.connection(), ends).await);
            for message in messages {
                tx.stage(message.clone()).unwrap();
            }
            let error = tx.commit().await.unwrap_err();
            assert!(matches!(error, CommitError::Ended), "{ends}, {staged}: {error:?}");
        }
        let mut tx = db.outbox.begin(&db.pool).await.unwrap();
        drop(DB::execute(tx.connection(), ends).await);
        tx.rollback().await.unwrap();
    }
    assert_eq!(db.rows().await, 1, "the known one");
    assert_eq!(db.number("SELECT count(*) FROM business").await, 0);
    // A savepoint that SQL begins and does not end does no harm.
    let mut tx = db.outbox.begin(&db.pool).await.unwrap();
    DB::execute(tx.connection(), "SAVEPOINT mine").await.unwrap();
    DB::execute(tx.connection(), "INSERT INTO business VALUES (1)").await.unwrap();
    tx.stage(new()).unwrap();
    tx.stage(named(known, "a")).unwrap();
    tx.commit().await.unwrap();
    assert_eq!((db.rows().await, db.number("SELECT count(*) FROM business").await), (2, 1));
}

/// Goal: work that ignores a conflict and meets it again in its next call runs again. Oracle: the
/// number of its runs, and the rows.
async fn a_conflict_that_is_swallowed_runs_again<DB: TestDialect>(db: &Database<DB>) {
    let tries = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&tries);
    let id = MessageId::new();
    let work = async move |tx: &mut OutboxTransaction<DB>| {
        if counter.fetch_add(1, Ordering::Relaxed) == 0 {
            let failed = outbox::FailedCall {
                first: String::from("deadlock"),
                remedy: outbox::Remedy::RunAgain,
                retryable: true,
            };
            tx.begin_call()?;
            tx.end_call_of_another_part(Some(failed));
        }
        tx.enqueue(named(id, "a")).await?;
        Ok(())
    };
    db.outbox.transaction(&db.pool, work).await.unwrap();
    assert_eq!((tries.load(Ordering::Relaxed), db.rows().await), (2, 1));
}

async fn a_swallowed_error_does_not_turn_commit_into_a_silent_rollback(db: &Database<Postgres>) {
    for staged in [false, true] {
        let mut tx = db.outbox.begin(&db.pool).await.unwrap();
        if staged {
            tx.stage(NewMessage::new("orders")).unwrap();
        } else {
            tx.enqueue(NewMessage::new("orders")).await.unwrap();
        }
        assert!(tx.connection().execute("SELECT * FROM no_such_table").await.is_err());
        let error = tx.commit().await.unwrap_err();
        assert!(matches!(error, CommitError::Aborted(_)), "{error:?}");
    }
    let mut tx = db.outbox.begin(&db.pool).await.unwrap();
    tx.enqueue(NewMessage::new("orders")).await.unwrap();
    tx.connection().execute("ROLLBACK").await.unwrap();
    let error = tx.commit().await.unwrap_err();
    assert!(matches!(error, CommitError::Ended), "{error:?}");
    assert_eq!(db.rows().await, 0);
}

/// SQLite ends a transaction by itself when the disk is full, and its client does not notice.
async fn a_full_disk_spoils_no_connection_on_sqlite(db: &Database<Sqlite>) {
    let options = (*db.pool.connect_options()).clone();
    let one = outbox::pool_options::<Sqlite>().max_connections(1).connect_with(options).await.unwrap();
    for is_committed in [false, true] {
        let mut tx = db.outbox.begin(&one).await.unwrap();
        let pages: i64 = sqlx::query_scalar("PRAGMA page_count").fetch_one(&mut *tx).await.unwrap();
        let limit = format!("PRAGMA max_page_count = {}", pages + 4);
        sqlx::query(AssertSqlSafe(limit)).execute(&mut *tx).await.unwrap();
        let large = NewMessage::new("orders").payload("x".repeat(100_000));
        tx.enqueue(large).await.unwrap_err();
        if is_committed {
            tx.commit().await.unwrap_err();
        } else {
            drop(tx);
        }
        // The pool uses the same connection or its replacement.
        let mut tx = db.outbox.begin(&one).await.unwrap();
        sqlx::query("PRAGMA max_page_count = 1000000").execute(&mut *tx).await.unwrap();
        tx.enqueue(NewMessage::new("orders")).await.unwrap();
        tx.commit().await.unwrap();
    }
    assert_eq!(db.rows().await, 2);
    one.close().await;
}

async fn functions_for_other_languages_enqueue_and_explain(db: &Database<Postgres>) {
    db.produce(
        "SELECT outbox_enqueue_json('orders', '{\"a\": 1}', key => 'k', kind => 'order.placed', \
         headers => '{\"tenant\": \"acme\"}')",
    )
    .await;
    db.produce(
        "SELECT outbox_enqueue('orders', 'bytes', traceparent => \
            '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01')",
    )
    .await;
    let entries = entries(db).await;
    let message = entries[0].message.as_ref().unwrap();
    assert_eq!((message.kind.as_str(), message.headers.get("tenant")), ("order.placed", Some("acme")));
    assert!(entries[1].message.as_ref().unwrap().trace.is_some());
    for (call, expected) in [
        ("outbox_enqueue(repeat('t', 256), '')", "topic has 256 bytes; it must have 1 to 255"),
        ("outbox_enqueue('or ders', '')", "topic \"or ders\" has characters"),
        ("outbox_enqueue('orders', NULL)", "must not be null"),
        ("outbox_enqueue('orders', '', headers => '[]')", "headers are a JSON array"),
        ("outbox_enqueue('orders', '', headers => '{\"a\": 1}')", "header \"a\" must be a text"),
        (
            "outbox_enqueue('orders', '', headers => '{\"a\": \"1\\n2\"}')",
            "header \"a\" has a control character",
        ),
        ("outbox_enqueue('orders', '', message_id => gen_random_uuid())", "is not a version 7 UUID"),
        ("outbox_enqueue('orders', '', traceparent => 'x')", "traceparent \"x\""),
        (
            "outbox_enqueue('orders', '', content_type => 'application/vnd.outbox.erased')",
            "content type application/vnd.outbox.erased is reserved for messages that an operator has erased",
        ),
    ] {
        let mut connection = db.pool.acquire().await.unwrap();
        let error = Postgres::execute(&mut connection, &format!("SELECT {call}")).await.unwrap_err();
        assert!(error.to_string().contains(expected), "{call}: {error}");
    }
    // The library refuses these names with the same error.
    for name in
        ["ce_id", "Ce-Source", "CLOUDEVENTS_type", "Content-Type", "traceparent", "TraceState", "MESSAGE-ID"]
    {
        let mut connection = db.pool.acquire().await.unwrap();
        let expected = HeaderName::new(name).unwrap_err().to_string();
        for call in ["outbox_enqueue('orders', ''", "outbox_enqueue_json('orders', '{}'"] {
            let call = format!("SELECT {call}, headers => '{{\"{name}\": \"x\"}}')");
            let error = Postgres::execute(&mut connection, &call).await.unwrap_err();
            assert!(error.to_string().contains(&expected), "{call}: {error}");
        }
    }
    // Ids are refused with the library's error, and so are times that no window accepts.
    let at = |days: i64| {
        MessageId::derived(time::OffsetDateTime::now_utc() + time::Duration::days(days), ["a"]).unwrap()
    };
    let variant: Uuid = "01a22798-5126-72a1-0dd2-000000000001".parse().unwrap();
    let endless: Uuid = "ffffffff-5126-72a1-8dd2-000000000001".parse().unwrap();
    let words = |id: Uuid| [MessageId::try_from(id).unwrap_err().to_string(), String::new()];
    let times = |id: MessageId| {
        let told =
            DriftWindow::WIDEST.at(time::OffsetDateTime::now_utc()).validate(id).unwrap_err().to_string();
        // The texts around the two times.
        let parts = told.split("+00:00:00").map(|part| part.split(" 20").next().unwrap().to_owned());
        let parts: Vec<String> = parts.collect();
        [parts[0].clone(), parts[2].clone()]
    };
    let [late, early] = [at(-367), at(2)];
    for (id, expected) in [
        (variant, words(variant)),
        (endless, words(endless)),
        (late.as_uuid(), times(late)),
        (early.as_uuid(), times(early)),
    ] {
        for call in ["outbox_enqueue('orders', ''", "outbox_enqueue_json('orders', '{}'"] {
            let mut connection = db.pool.acquire().await.unwrap();
            let call = format!("SELECT {call}, message_id => '{id}')");
            let error = Postgres::execute(&mut connection, &call).await.unwrap_err().to_string();
            assert!(expected.iter().all(|text| error.contains(text)), "{call}: {error}, not {expected:?}");
        }
    }
    for id in [at(-365), at(0)] {
        db.produce(&format!("SELECT outbox_enqueue('orders', '', message_id => '{id}')")).await;
    }
    for name in ["ce", "cent", "content-type-2", "my-traceparent"] {
        db.produce(&format!("SELECT outbox_enqueue('orders', '', headers => '{{\"{name}\": \"a\\tb\"}}')"))
            .await;
    }
}

async fn two_transactions_racing_for_one_id_store_it_once(db: &Database<Postgres>) {
    let id = MessageId::new();
    let mut first = db.outbox.begin(&db.pool).await.unwrap();
    first.enqueue(named(id, "a")).await.unwrap();
    let (outbox, pool) = (db.outbox.clone(), db.pool.clone());
    let second = tokio::spawn(async move {
        let mut tx = outbox.begin(&pool).await.unwrap();
        let answer = tx.enqueue(named(id, "a")).await.unwrap();
        tx.commit().await.unwrap();
        answer
    });
    let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'";
    while db.number(waiting).await == 0 {
        tokio::task::yield_now().await;
    }
    first.commit().await.unwrap();
    assert_eq!(second.await.unwrap(), Enqueued::Duplicate(id));
    assert_eq!(db.rows().await, 1);
}

fn _the_trait_is_usable_in_bounds<DB: Dialect>(outbox: &Outbox<DB>) -> Outbox<DB> {
    outbox.clone()
}

/// Goal: a caller may bound the wait for its transaction, on any pool. Oracle: another session sees
/// what the next users of the pool write.
async fn a_begin_that_is_dropped_by_a_time_limit_loses_no_later_write(db: &Database<Postgres>) {
    let line = Line::beside(&db.pool).await;
    line.outlast(&db.admin, timeout(Line::LIMIT, db.outbox.begin(&line.pool))).await;
    line.pool.close().await;
}

/// Goal: a session that does not answer is neither kept nor handed on. Oracle: the pool's count of
/// connections while the answer is withheld, then the server's list of sessions.
async fn a_begin_that_gets_no_answer_closes_its_session(db: &Database<Postgres>) {
    let line = Line::beside(&db.pool).await;
    line.arm();
    assert!(timeout(Line::LIMIT, db.outbox.begin(&line.pool)).await.is_err());
    let closed = async || Ok((line.pool.size() == 0).then_some(()));
    tests::eventually("its connection is closed", closed).await.unwrap();
    line.answer_late(&db.admin).await;
    line.pool.close().await;
}
