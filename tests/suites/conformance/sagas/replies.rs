//! Replies to requests: kept, suppressed, late.

use super::*;
use inbox::{Admission, ConsumerName, Handler, HandlerError, Inbox, InboxOptions, Tenant};
use message::{EventType, HeaderName, HeaderValue, Message, Topic};
use outbox::CommitError;
use saga::{KEY_HEADER, Replied, ReplyError, Run, Stop, TOKEN_HEADER};

tests::cases! { "saga/replies/{on}/{case}":
    every {
        a_request_leaves_by_the_outbox_with_its_key,
        a_reply_wakes_the_saga,
        a_reply_that_comes_before_the_saga_waits_is_kept,
        a_reply_while_the_saga_goes_to_wait_is_not_missed,
        a_reply_for_another_step_while_the_saga_goes_to_wait_runs_nothing,
        a_reply_before_a_cancellation_reaches_the_undo,
        a_reply_keeps_every_digit,
        a_second_reply_is_suppressed,
        a_reply_for_another_step_wakes_nobody,
        a_late_reply_goes_to_its_handler,
        a_request_without_a_reply_in_time_is_undone,
        a_reply_that_does_not_fit_is_stuck_and_stays,
        a_message_that_is_no_reply_is_rejected,
        a_reply_of_a_service_that_did_not_get_the_request_is_refused,
        replies_that_nobody_asked_for_fill_no_mailbox,
        a_transaction_that_was_ended_keeps_no_reply,
    }
    on_postgres { a_reply_with_an_old_snapshot_of_its_step_is_a_conflict }
    night every { a_saga_that_waits_is_not_kept_by_a_late_renewal }
}

#[derive(serde::Serialize, serde::Deserialize)]
pub(super) struct ShipOrder {
    pub(super) order: i64,
}

impl message::Event for ShipOrder {
    const TOPIC: &'static str = "shipping";
    const KIND: &'static str = "ship.order";
}

async fn ship<DB: Tables>(saga: &mut Run<DB>, order: i64) -> Result<String, Stop> {
    let parcel: String = saga.request("ship", &ShipOrder { order }).await?;
    saga.step("note", async |tx| Ok(DB::apply(tx, format!("shipped {parcel}")).await?)).await?;
    Ok(parcel)
}

fn key(name: &str) -> StepKey {
    format!("checkout/{name}/ship").parse().unwrap()
}

async fn reply<DB: Tables>(db: &Database<DB>, sagas: &Sagas<DB>, name: &str, parcel: &str) -> Replied {
    let mut tx = Outbox::new().begin(&db.service).await.unwrap();
    let replied = sagas.reply(&mut tx, &key(name), &serde_json::Value::from(parcel)).await.unwrap();
    tx.commit().await.unwrap();
    replied
}

async fn waits<DB: Tables>(sagas: &Sagas<DB>, name: &str) {
    let is_so = |saga: &SagaRecord| {
        saga.outline.waits_for.as_deref() == Some("ship") && saga.outline.worker.is_none()
    };
    until(sagas, name, "waiting", is_so).await;
}

async fn a_request_leaves_by_the_outbox_with_its_key<DB: Tables>(db: Database<DB>) {
    let (sagas, worker) = begun(&db, sagas(&db).saga("checkout", 1, ship::<DB>), 7).await;
    waits(&sagas, "a").await;
    // When the saga runs again, it does not send again.
    db.execute(DB::NOW).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let headers = db.texts("SELECT CAST(headers AS text) FROM outbox_message").await.unwrap();
    assert!(matches!(&headers[..], [one] if one.contains("checkout/a/ship")), "{headers:?}");
    assert_eq!(token(&db, "a").await.len(), 64);
    worker.stop().await;
}

async fn a_reply_wakes_the_saga<DB: Tables>(db: Database<DB>) {
    let (sagas, worker) = begun(&db, sagas(&db).saga("checkout", 1, ship::<DB>), 7).await;
    waits(&sagas, "a").await;
    assert_eq!(show(&sagas, "a").await.0.outline.wake_at, None, "no process waits");
    assert_eq!(reply(&db, &sagas, "a", "P-1").await, Replied::Kept);
    assert_eq!(finished(&sagas, "a").await, "\"P-1\"");
    worker.stop().await;
    assert_eq!(effects(&db).await, ["shipped P-1"]);
}

async fn a_reply_that_comes_before_the_saga_waits_is_kept<DB: Tables>(db: Database<DB>) {
    let sagas = sagas(&db).saga("checkout", 1, ship::<DB>).open().await.unwrap();
    start(&db, &sagas, "a", 7).await;
    assert_eq!(reply(&db, &sagas, "a", "P-1").await, Replied::Kept);
    let worker = Worker::of(&sagas);
    assert_eq!(finished(&sagas, "a").await, "\"P-1\"");
    worker.stop().await;
    assert_eq!(db.integer("SELECT count(*) FROM outbox_message").await.unwrap(), 1);
}

/// Starts a saga that gets a reply after its worker has read the mailbox and before the worker lets
/// it wait. At that time the saga is about to send its request.
async fn replied_in_hand<DB: Tables>(db: &Database<DB>, step: &'static str) -> Sagas<DB> {
    let inner: Arc<Mutex<Option<Sagas<DB>>>> = Arc::default();
    let (there, shared) = (db.clone(), Arc::clone(&inner));
    let hook: saga::Hook = Arc::new(move |_, place| {
        let there = there.clone();
        let sagas =
            if place == saga::crash_points::AFTER_CLAIM { shared.lock().unwrap().take() } else { None };
        Box::pin(async move {
            if let Some(sagas) = sagas {
                let mut tx = Outbox::new().begin(&there.service).await.unwrap();
                let key = format!("checkout/a/{step}").parse().unwrap();
                let replied = sagas.reply(&mut tx, &key, &"P-1".into()).await.unwrap();
                assert_eq!(replied, Replied::Kept);
                tx.commit().await.unwrap();
            }
            false
        })
    });
    let sagas = sagas(db).hook(hook).saga("checkout", 1, ship::<DB>).open().await.unwrap();
    *inner.lock().unwrap() = Some(sagas.clone());
    start(db, &sagas, "a", 7).await;
    sagas
}

async fn a_reply_while_the_saga_goes_to_wait_is_not_missed<DB: Tables>(db: Database<DB>) {
    let sagas = replied_in_hand(&db, "ship").await;
    let worker = Worker::of(&sagas);
    assert_eq!(finished(&sagas, "a").await, "\"P-1\"");
    worker.stop().await;
}

/// Goal: replies without a request do not keep a saga busy. Oracle: the saga was claimed once, and
/// no timer wakes it.
async fn a_reply_for_another_step_while_the_saga_goes_to_wait_runs_nothing<DB: Tables>(db: Database<DB>) {
    let sagas = replied_in_hand(&db, "pay").await;
    let worker = Worker::of(&sagas);
    waits(&sagas, "a").await;
    worker.stop().await;
    let saga = show(&sagas, "a").await.0;
    assert_eq!((saga.outline.epoch, saga.outline.wake_at), (1, None));
    let worker = Worker::of(&sagas);
    assert_eq!(reply(&db, &sagas, "a", "P-2").await, Replied::Kept);
    assert_eq!(finished(&sagas, "a").await, "\"P-2\"");
    worker.stop().await;
}

async fn a_reply_before_a_cancellation_reaches_the_undo<DB: Tables>(db: Database<DB>) {
    let code = sagas(&db).saga("checkout", 1, async move |saga: &mut Run<DB>, order: i64| {
        let parcel: String = saga
            .request("ship", &ShipOrder { order })
            .undo(async |tx, parcel: Option<&String>| {
                Ok(DB::apply(tx, format!("cancel shipping, {parcel:?}")).await?)
            })
            .await?;
        Ok(parcel)
    });
    let (sagas, worker) = begun(&db, code, 7).await;
    waits(&sagas, "a").await;
    worker.stop().await;
    assert_eq!(reply(&db, &sagas, "a", "P-1").await, Replied::Kept);
    let operator = Sagas::builder(db.admin.clone(), Outbox::new()).open().await.unwrap();
    operator.cancel(&id("a"), &operators::alice()).await.unwrap();
    let worker = Worker::of(&sagas);
    undone(&sagas, "a").await;
    worker.stop().await;
    assert_eq!(effects(&db).await, ["cancel shipping, Some(\"P-1\")"]);
}

async fn a_reply_keeps_every_digit<DB: Tables>(db: Database<DB>) {
    let sagas = sagas(&db)
        .saga("checkout", 1, async move |saga: &mut Run<DB>, order: i64| {
            let amount: u128 = saga.request("ship", &ShipOrder { order }).await?;
            Ok(amount)
        })
        .open()
        .await
        .unwrap();
    let inbox = Inbox::open(db.admin.clone(), InboxOptions::default()).await.unwrap();
    let operator = Sagas::builder(db.admin.clone(), Outbox::new()).open().await.unwrap();
    start(&db, &sagas, "a", 7).await;
    let digits = u128::MAX.to_string();
    let worker = Worker::of(&sagas);
    waits(&sagas, "a").await;
    let reply = message(Some("checkout/a/ship"), Some(&token(&db, "a").await), &digits);
    deliver(&inbox, &operator.replies(), &reply).await.unwrap();
    sagas.wake();
    assert_eq!(finished(&sagas, "a").await, digits);
    worker.stop().await;
}

/// A renewal of the lease that runs while the wait commits, and is applied after the commit.
async fn a_saga_that_waits_is_not_kept_by_a_late_renewal<DB: Tables>(db: Database<DB>) {
    let mut options = fast();
    options.lease = Duration::from_secs(1);
    let hook: saga::Hook = Arc::new(move |_, place| {
        Box::pin(async move {
            if place == saga::crash_points::BEFORE_WAIT {
                tokio::time::sleep(Duration::from_millis(600)).await;
            }
            false
        })
    });
    let (sagas, worker) =
        begun(&db, sagas(&db).options(options).hook(hook).saga("checkout", 1, ship::<DB>), 7).await;
    waits(&sagas, "a").await;
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    let saga = show(&sagas, "a").await.0;
    assert_eq!((saga.outline.epoch, saga.outline.wake_at), (1, None), "nobody took it again");
    worker.stop().await;
}

async fn a_second_reply_is_suppressed<DB: Tables>(db: Database<DB>) {
    let sagas = sagas(&db).saga("checkout", 1, ship::<DB>).open().await.unwrap();
    start(&db, &sagas, "a", 7).await;
    assert_eq!(reply(&db, &sagas, "a", "P-1").await, Replied::Kept);
    assert_eq!(reply(&db, &sagas, "a", "P-2").await, Replied::Duplicate);
    let worker = Worker::of(&sagas);
    assert_eq!(finished(&sagas, "a").await, "\"P-1\"");
    worker.stop().await;
    assert_eq!(reply(&db, &sagas, "a", "P-3").await, Replied::Duplicate, "also when it has finished");
}

/// While a call is being retried, a needless wake-up would be an attempt without its backoff.
async fn a_reply_for_another_step_wakes_nobody<DB: Tables>(db: Database<DB>) {
    let code = sagas(&db).saga("checkout", 1, async |saga: &mut Run<DB>, order: i64| {
        saga.sleep("grace", Duration::from_secs(3_600)).await?;
        ship(saga, order).await
    });
    let (sagas, worker) = begun(&db, code, 7).await;
    let sleeps = |saga: &SagaRecord| {
        saga.outline.waits_for.as_deref() == Some("grace") && saga.outline.worker.is_none()
    };
    let asleep = until(&sagas, "a", "asleep", sleeps).await;
    worker.stop().await;
    assert_eq!(reply(&db, &sagas, "a", "P-1").await, Replied::Kept);
    assert_eq!(reply(&db, &sagas, "a", "P-2").await, Replied::Duplicate);
    assert_eq!(show(&sagas, "a").await.0.outline.wake_at, asleep.outline.wake_at, "it sleeps on");
}

/// Passes a message to the handler of replies, in the transaction that admits it.
async fn deliver<DB: Tables>(
    inbox: &Inbox<DB>,
    handler: &impl Handler<DB>,
    message: &Message,
) -> Result<(), HandlerError> {
    let consumer = ConsumerName::new("replies").unwrap();
    let mut tx = inbox.begin().await.unwrap();
    let Admission::Fresh(_) = tx.admit(&consumer, &Tenant::none(), message).await.unwrap() else {
        return Ok(());
    };
    handler.handle(&mut tx, message).await?;
    drop(tx.commit().await.unwrap());
    Ok(())
}

fn message(key: Option<&str>, token: Option<&str>, payload: &str) -> Message {
    let (topic, kind) = (Topic::new("replies").unwrap(), EventType::new("parcel").unwrap());
    let mut message = Message::new(topic, kind, payload.to_owned());
    for (name, value) in [(KEY_HEADER, key), (TOKEN_HEADER, token)] {
        if let Some(value) = value {
            let (name, value) = (HeaderName::new(name).unwrap(), HeaderValue::new(value).unwrap());
            message.headers.insert(name, value).unwrap();
        }
    }
    message
}

/// Returns the token of a request that was sent.
async fn token<DB: Tables>(db: &Database<DB>, name: &str) -> String {
    let sent = db.texts("SELECT CAST(headers AS text) FROM outbox_message").await.unwrap();
    let mut sent = sent.iter().map(|all| serde_json::from_str::<HashMap<String, String>>(all).unwrap());
    let request = sent.find(|all| all[KEY_HEADER] == key(name).to_string()).unwrap();
    request[TOKEN_HEADER].clone()
}

/// A request times out after the snapshot of the transaction that takes its reply. If the reply
/// were kept, nothing would ever read it.
async fn a_reply_with_an_old_snapshot_of_its_step_is_a_conflict(db: Database<Postgres>) {
    let sagas = sagas(&db).saga("checkout", 1, ship::<Postgres>).open().await.unwrap();
    start(&db, &sagas, "a", 7).await;
    let worker = Worker::of(&sagas);
    waits(&sagas, "a").await;
    worker.stop().await;
    let mut tx = Outbox::new().begin(&db.service).await.unwrap();
    for statement in ["SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", "SELECT FROM saga"] {
        sqlx::query(statement).execute(&mut *tx).await.unwrap();
    }
    db.execute("UPDATE saga_step SET state = 'timed_out'").await.unwrap();
    let replied = sagas.reply(&mut tx, &key("a"), &serde_json::Value::from("P-1")).await;
    let error = format!("{:?}", replied.unwrap_err());
    assert!(error.contains("could not serialize access"), "{error}");
}

async fn a_late_reply_goes_to_its_handler<DB: Tables>(db: Database<DB>) {
    let sagas = sagas(&db).saga("checkout", 1, ship::<DB>).open().await.unwrap();
    let inbox = Inbox::open(db.admin.clone(), InboxOptions::default()).await.unwrap();
    let operator = Sagas::builder(db.admin.clone(), Outbox::new()).open().await.unwrap();
    let replies = operator
        .replies()
        .late(|tx, key, _| Box::pin(async move { Ok(DB::apply(tx, format!("late {key}")).await?) }));
    let worker = Worker::of(&sagas);
    for name in ["a", "b"] {
        start(&db, &sagas, name, 7).await;
        waits(&sagas, name).await;
    }
    let tokens = [token(&db, "a").await, token(&db, "b").await];
    let first = message(Some("checkout/a/ship"), Some(&tokens[0]), "\"P-1\"");
    deliver(&inbox, &replies, &first).await.unwrap();
    deliver(&inbox, &replies, &first).await.unwrap();
    sagas.wake();
    finished(&sagas, "a").await;
    operator.cancel(&id("b"), &operators::alice()).await.unwrap();
    undone(&sagas, "b").await;
    worker.stop().await;
    // A second reply to an answered request is a duplicate, not a late reply.
    for (key, token) in [("a", &tokens[0]), ("b", &tokens[1]), ("nobody", &tokens[0])] {
        let key = format!("checkout/{key}/ship");
        deliver(&inbox, &replies, &message(Some(&key), Some(token), "\"P-2\"")).await.unwrap();
    }
    let effects = effects(&db).await;
    assert_eq!(effects, ["shipped P-1", "late checkout/b/ship", "late checkout/nobody/ship"]);
}

/// Goal: on a topic of replies that many services share, only the one that got a request can answer
/// it. Oracle: after every forged reply the mailbox is empty and the late handler has not run.
async fn a_reply_of_a_service_that_did_not_get_the_request_is_refused<DB: Tables>(db: Database<DB>) {
    let sagas = sagas(&db).saga("checkout", 1, ship::<DB>).open().await.unwrap();
    let inbox = Inbox::open(db.admin.clone(), InboxOptions::default()).await.unwrap();
    let operator = Sagas::builder(db.admin.clone(), Outbox::new()).open().await.unwrap();
    let replies = operator
        .replies()
        .late(|tx, key, _| Box::pin(async move { Ok(DB::apply(tx, format!("late {key}")).await?) }));
    let worker = Worker::of(&sagas);
    for name in ["a", "b"] {
        start(&db, &sagas, name, 7).await;
        waits(&sagas, name).await;
    }
    let (mine, other) = (token(&db, "a").await, token(&db, "b").await);
    let refused = async |key: &str, token: &str| {
        let forged = message(Some(key), Some(token), "\"P-0\"");
        let error = deliver(&inbox, &replies, &forged).await.unwrap_err();
        assert_eq!(error.next(), inbox::Next::Reject, "{error}");
        assert!(error.to_string().contains("saga-reply-token is not that of the request"), "{error}");
    };
    for token in [other.as_str(), "00", "no token", &mine[..62]] {
        refused("checkout/a/ship", token).await;
    }
    // The token of one request does not answer another request of the same saga either, whether
    // that one was sent or not.
    refused("checkout/a/fetch", &mine).await;
    assert_eq!(db.integer("SELECT count(*) FROM saga_reply").await.unwrap(), 0);
    assert_eq!(show(&sagas, "a").await.0.outline.epoch, 1, "it was not woken");
    operator.cancel(&id("b"), &operators::alice()).await.unwrap();
    undone(&sagas, "b").await;
    refused("checkout/b/ship", &mine).await;
    deliver(&inbox, &replies, &message(Some("checkout/a/ship"), Some(&mine), "\"P-1\"")).await.unwrap();
    sagas.wake();
    assert_eq!(finished(&sagas, "a").await, "\"P-1\"");
    refused("checkout/a/ship", &other).await;
    worker.stop().await;
    assert_eq!(effects(&db).await, ["shipped P-1"]);
}

async fn a_request_without_a_reply_in_time_is_undone<DB: Tables>(db: Database<DB>) {
    let code = sagas(&db).saga("checkout", 1, async move |saga: &mut Run<DB>, order: i64| {
        let shipped: Result<String, Stop> = saga
            .request("ship", &ShipOrder { order })
            .undo(async |tx, parcel: Option<&String>| {
                Ok(DB::apply(tx, format!("cancel shipping, {parcel:?}")).await?)
            })
            .within(Duration::from_secs(3_600))
            .await;
        let stop = shipped.unwrap_err();
        Err::<(), _>(if stop.is_timeout() { Stop::because("no parcel came") } else { stop })
    });
    let (sagas, worker) = begun(&db, code, 7).await;
    waits(&sagas, "a").await;
    db.execute(DB::NOW).await.unwrap();
    sagas.wake();
    assert_eq!(undone(&sagas, "a").await, "no parcel came");
    worker.stop().await;
    assert_eq!(effects(&db).await, ["cancel shipping, None"]);
    assert_eq!(reply(&db, &sagas, "a", "P-1").await, Replied::Late);
}

async fn a_reply_that_does_not_fit_is_stuck_and_stays<DB: Tables>(db: Database<DB>) {
    let code = sagas(&db).saga("checkout", 1, async move |saga: &mut Run<DB>, order: i64| {
        let parcel: i64 = saga.request("ship", &ShipOrder { order }).await?;
        Ok(parcel)
    });
    let (old, worker) = begun(&db, code, 7).await;
    waits(&old, "a").await;
    assert_eq!(reply(&db, &old, "a", "P-1").await, Replied::Kept);
    let told = stuck(&old, "a").await;
    assert!(told.contains("ship") && told.contains("i64") && !told.contains("P-1"), "{told}");
    worker.stop().await;
    let fixed = sagas(&db).saga("checkout", 1, ship::<DB>).open().await.unwrap();
    let operator = Sagas::builder(db.admin.clone(), Outbox::new()).open().await.unwrap();
    operator.retry(&id("a"), &operators::alice()).await.unwrap();
    let worker = Worker::of(&fixed);
    assert_eq!(finished(&fixed, "a").await, "\"P-1\"");
    worker.stop().await;
}

async fn a_message_that_is_no_reply_is_rejected<DB: Tables>(db: Database<DB>) {
    let sagas = sagas(&db).open().await.unwrap();
    let replies = sagas.replies();
    let mut tx = Outbox::new().begin(&db.service).await.unwrap();
    for (message, part) in [
        (message(None, None, "1"), "no header saga-key"),
        (message(Some("checkout/a"), None, "1"), "rejected"),
        (message(Some("checkout/a/ship"), None, "1"), "no header saga-reply-token"),
        (message(Some("checkout/a/ship"), Some("00"), "{"), "JSON"),
    ] {
        let error = replies.handle(&mut tx, &message).await.unwrap_err();
        assert_eq!(error.next(), inbox::Next::Reject, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
}

/// Goal: replies to steps that never begin cannot fill a mailbox, which every run reads, nor block
/// the reply to a real request. Oracle: the rows, and the saga's end.
async fn replies_that_nobody_asked_for_fill_no_mailbox<DB: Tables>(db: Database<DB>) {
    let sagas = sagas(&db).saga("checkout", 1, ship::<DB>).open().await.unwrap();
    start(&db, &sagas, "a", 7).await;
    let mut tx = Outbox::new().begin(&db.service).await.unwrap();
    for n in 0..105 {
        let key: StepKey = format!("checkout/a/none-{n}").parse().unwrap();
        let replied = sagas.reply(&mut tx, &key, &serde_json::Value::Null).await.unwrap();
        assert_eq!(replied, if n < 100 { Replied::Kept } else { Replied::Late }, "{n}");
    }
    tx.commit().await.unwrap();
    let worker = Worker::of(&sagas);
    waits(&sagas, "a").await;
    assert_eq!(reply(&db, &sagas, "a", "parcel 7").await, Replied::Kept);
    assert_eq!(finished(&sagas, "a").await, "\"parcel 7\"");
    worker.stop().await;
    assert_eq!(db.integer("SELECT count(*) FROM saga_reply").await.unwrap(), 101);
}

/// Goal: after sqlx has ended a transaction unnoticed by the caller, no reply is kept on its own.
/// Oracle: the rows, and every error.
async fn a_transaction_that_was_ended_keeps_no_reply<DB: Tables>(db: Database<DB>) {
    let sagas = sagas(&db).saga("checkout", 1, ship::<DB>).open().await.unwrap();
    start(&db, &sagas, "a", 7).await;
    let parcel = serde_json::Value::from("P-1");
    let mut tx = Outbox::new().begin(&db.service).await.unwrap();
    DB::apply(&mut tx, String::from("paid")).await.unwrap();
    tests::drop_a_begin(tx.connection()).await;
    let refused = sagas.reply(&mut tx, &key("a"), &parcel).await.unwrap_err();
    assert!(matches!(refused, ReplyError::Ended), "{refused:?}");
    let again = sagas.reply(&mut tx, &key("a"), &parcel).await.unwrap_err();
    assert!(matches!(again, ReplyError::Poisoned(_)), "{again:?}");
    assert!(matches!(tx.commit().await, Err(CommitError::Poisoned { retryable: false, .. })));
    let mut tx = db.service.begin().await.unwrap();
    tests::drop_a_begin(&mut *tx).await;
    let refused = sagas.reply(&mut tx, &key("a"), &parcel).await.unwrap_err();
    assert!(matches!(refused, ReplyError::Ended), "{refused:?}");
    drop(tx);
    assert_eq!(db.integer("SELECT count(*) FROM saga_reply").await.unwrap(), 0);
    assert_eq!(effects(&db).await, [""; 0]);
}
