//! Functions as handlers: dispatch by kind, unknown kinds, facts, chosen delays, foreign messages.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::error::Error;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::inbox::broker::Broker;
use crate::inbox::database::{Database, TestDatabase};
use crate::inbox::failures::{BATCHES, in_batches};
use crate::inbox::message;
use inbox::{
    AfterDeadLetter, Backoff, BuildError, Consumer, ConsumerBuilder, DeadLetter, DeadLetterQuery,
    HandlerError, Inbox, Reason, Received, RedriveOptions, RunError, Signature, Tenant, Tx, UnknownKinds,
    Wait, WaitReason,
};
use message::{Event, EventType, ForeignMessage, Malformed, Message, MessageId, OrderingKey, Topic};
use serde::Deserialize;
use time::OffsetDateTime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

tests::cases! { "inbox/runner/{on}/{case}":
    every {
        events_reach_the_function_of_their_kind,
        a_function_sees_attempt_tenant_and_times,
        unknown_kinds_are_refused_by_default,
        unknown_kinds_are_skipped_on_demand,
        skipped_kinds_do_not_wait_behind_a_dead_letter,
        unknown_kinds_are_held_on_demand,
        json_that_does_not_fit_is_rejected_without_its_values,
        a_chosen_delay_replaces_the_backoff_and_counts,
        a_foreign_message_takes_effect_once,
        a_redrive_waits_for_a_process_that_knows_the_kind,
        redrives_behind_many_that_wait_are_carried_out,
        a_consumer_that_cannot_work_is_not_built,
    }
    night every { a_consumer_says_what_it_waits_for }
}

#[derive(Deserialize)]
pub(super) struct Placed {
    pub(super) order: i64,
}

impl Event for Placed {
    const TOPIC: &'static str = "orders";
    const KIND: &'static str = "order.placed";
}

#[derive(Deserialize)]
pub(super) struct Cancelled {
    pub(super) order: i64,
}

impl Event for Cancelled {
    const TOPIC: &'static str = "orders";
    const KIND: &'static str = "order.cancelled";
}

pub(super) async fn note<DB: TestDatabase>(tx: &mut Tx<DB>, text: String) -> Result<(), HandlerError> {
    Ok(DB::apply(tx, "billing", &message(&text)).await?)
}

async fn bill<DB: TestDatabase>(tx: &mut Tx<DB>, placed: Placed) -> Result<(), HandlerError> {
    note::<DB>(tx, format!("bill {}", placed.order)).await
}

pub(super) async fn refund<DB: TestDatabase>(
    tx: &mut Tx<DB>,
    cancelled: Cancelled,
    received: &Received,
) -> Result<Vec<u8>, HandlerError> {
    note::<DB>(tx, format!("refund {} of {}", cancelled.order, received.topic)).await?;
    Ok(b"refunded".to_vec())
}

async fn raw<DB: TestDatabase>(tx: &mut Tx<DB>, message: &Message) -> Result<(), HandlerError> {
    note::<DB>(tx, format!("raw {}", message.kind)).await
}

async fn third_time<DB: TestDatabase>(
    tx: &mut Tx<DB>,
    message: &Message,
    received: &Received,
) -> Result<(), HandlerError> {
    assert_eq!((received.message_id, received.enqueued_at), (message.id, message.time));
    assert_eq!(received.generated_at, message.id.generated_at());
    if received.attempt < 3 {
        return Err(HandlerError::retry("not yet"));
    }
    let Received { attempt, tenant, consumer, .. } = received;
    note::<DB>(tx, format!("attempt {attempt} of {} for {}", consumer.as_str(), tenant.as_str())).await
}

const CHOSEN: Duration = Duration::from_millis(400);

async fn later<DB: TestDatabase>(
    tx: &mut Tx<DB>,
    _message: &Message,
    received: &Received,
) -> Result<(), HandlerError> {
    match received.attempt {
        1 => Err(HandlerError::retry_after(CHOSEN, "later")),
        attempt => note::<DB>(tx, format!("attempt {attempt}")).await,
    }
}

pub(super) fn event(kind: &str, json: &str) -> Message {
    Message::new(Topic::new("orders").unwrap(), EventType::new(kind).unwrap(), json.to_owned())
}

pub(super) fn base<DB: TestDatabase>(inbox: &Inbox<DB>, broker: &Broker) -> ConsumerBuilder<DB> {
    let broker = broker.clone();
    Consumer::builder(inbox.clone(), "billing")
        .subscribe(move || {
            let broker = broker.clone();
            async move { Ok(broker.subscribe()) }
        })
        .backoff(Backoff { first: Duration::from_millis(1), max: Duration::from_millis(4) })
}

/// Goal: a consumer says why it does not settle a message: its handler runs, or it waits for the
/// next attempt, or for the end of an outage. Oracle: the reasons in its status, with the message.
async fn a_consumer_says_what_it_waits_for<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    for batch in BATCHES {
        let waiting = placed(1);
        let id = waiting.id;
        let broker = Broker::new([]);
        let (tries, tried) = tokio::sync::mpsc::unbounded_channel::<Result<(), HandlerError>>();
        let tried = Arc::new(tokio::sync::Mutex::new(tried));
        let answers = async move |_: &mut Tx<DB>, _: Placed| tried.lock().await.recv().await.unwrap();
        let consumer = in_batches(base(&inbox, &broker).on(answers), batch).build().unwrap();
        let status = consumer.status();
        assert!(status.waits().is_empty() && !status.is_alive(), "it does not run yet");
        let until = async |reason: WaitReason, error: &str| {
            tests::eventually(reason.as_str(), async || {
                let waits = status.waits();
                let has = |wait: &Wait| wait.error.as_deref().unwrap_or_default().contains(error);
                let is_it = |wait: &&Wait| wait.reason == reason && has(wait);
                Ok(waits.iter().find(is_it).map(|wait| (wait.message, wait.messages)))
            })
            .await
            .unwrap_or_else(|failure| panic!("{failure}: {:?}", status.waits()))
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let running = tokio::spawn(consumer.run(async move { drop(stopped.await) }));
        assert_eq!(until(WaitReason::Message, "").await, (None, 0));
        assert!(status.reads().is_some() && status.is_ready(Duration::from_secs(60)));
        broker.send(Ok(waiting));
        assert_eq!(until(WaitReason::Handler, "").await, (Some(id), 1));
        let fails = || Err(HandlerError::retry_after(Duration::from_secs(2), "the price is wrong"));
        if batch.is_some() {
            // It fails within a batch, so it is tried alone at once.
            tries.send(fails()).unwrap();
        }
        tries.send(fails()).unwrap();
        assert_eq!(until(WaitReason::Retry, "the price is wrong").await, (Some(id), 1));
        assert_eq!(until(WaitReason::Handler, "").await, (Some(id), 1));
        tries.send(Err(HandlerError::unavailable("the tax office is closed"))).unwrap();
        assert_eq!(until(WaitReason::Outage, "the tax office is closed").await, (Some(id), 1));
        assert_eq!(until(WaitReason::Handler, "").await, (Some(id), 1));
        tries.send(Ok(())).unwrap();
        assert_eq!(until(WaitReason::Message, "").await, (None, 0));
        stop.send(()).unwrap();
        running.await.unwrap().unwrap();
        assert!(status.waits().is_empty() && !status.is_alive(), "it has ended");
    }
}

/// Starts a consumer that runs until the sender is used or dropped.
pub(super) fn start<DB: TestDatabase>(
    builder: ConsumerBuilder<DB>,
) -> (oneshot::Sender<()>, JoinHandle<Result<(), RunError>>) {
    let (stop, stopped) = oneshot::channel::<()>();
    (stop, tokio::spawn(builder.run(async move { drop(stopped.await) })))
}

pub(super) async fn run_until_drained<DB: TestDatabase>(builder: ConsumerBuilder<DB>, broker: &Broker) {
    let (stop, running) = start(builder);
    broker.drained().await;
    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
}

pub(super) async fn effects<DB: TestDatabase>(database: &Database<DB>) -> Vec<String> {
    let mut effects = DB::effects(&database.pool, "billing").await;
    effects.sort_unstable();
    effects
}

pub(super) async fn dead<DB: TestDatabase>(inbox: &Inbox<DB>) -> Vec<DeadLetter> {
    let limit = NonZeroU32::new(1_000).unwrap();
    inbox.dead_letters(&DeadLetterQuery { limit, ..DeadLetterQuery::default() }).await.unwrap()
}

async fn events_reach_the_function_of_their_kind<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let placed = event("order.placed", r#"{"order":1}"#);
    let broker = Broker::new([
        placed.clone(),
        event("order.cancelled", r#"{"order":2}"#),
        event("order.noted", "any bytes"),
        placed,
    ]);
    let builder = base(&inbox, &broker).on(bill::<DB>).on(refund::<DB>).on_message("order.noted", raw::<DB>);
    run_until_drained(builder, &broker).await;
    assert_eq!(effects(database).await, ["bill 1", "raw order.noted", "refund 2 of orders"]);
    assert_eq!(dead(&inbox).await.len(), 0);
}

pub(super) fn placed(order: u32) -> Message {
    event("order.placed", &format!(r#"{{"order":{order}}}"#))
}

async fn a_function_sees_attempt_tenant_and_times<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let broker = Broker::new([event("order.placed", "x")]);
    let builder = base(&inbox, &broker)
        .try_tenant(|_| Tenant::new("acme"))
        .on_message("order.placed", third_time::<DB>);
    run_until_drained(builder, &broker).await;
    assert_eq!(effects(database).await, ["attempt 3 of billing for acme"]);
}

async fn unknown_kinds_are_refused_by_default<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let broker = Broker::new([event("order.lost", "{}"), event("order.placed", r#"{"order":1}"#)]);
    run_until_drained(base(&inbox, &broker).on(bill::<DB>).on(refund::<DB>), &broker).await;
    assert_eq!(effects(database).await, ["bill 1"]);
    let dead = dead(&inbox).await;
    assert_eq!((dead.len(), dead[0].reason), (1, Reason::Rejected));
    for part in ["order.lost", "order.cancelled, order.placed"] {
        assert!(dead[0].error.contains(part), "{}", dead[0].error);
    }
}

pub(super) async fn unknown_kinds_are_skipped_on_demand<DB: TestDatabase>(database: &Database<DB>) {
    let counters = tests::Counters::installed();
    let inbox = database.inbox().await;
    let broker = Broker::new([event("order.lost", "{}")]);
    let source = broker.clone();
    let name = format!("skips-{}", MessageId::new());
    let builder = Consumer::builder(inbox.clone(), name.clone())
        .subscribe(move || {
            let broker = source.clone();
            async move { Ok(broker.subscribe()) }
        })
        .on(bill::<DB>)
        .unknown_kinds(UnknownKinds::Skip);
    run_until_drained(builder, &broker).await;
    assert_eq!((effects(database).await.len(), dead(&inbox).await.len()), (0, 0));
    assert_eq!(counters.value("inbox_skipped_total", &[("consumer", name.as_str())]), 1);
}

/// Goal: a message without an effect never waits for its key, because no process would release it.
/// Oracle: the dead letters, and that everything is settled.
async fn skipped_kinds_do_not_wait_behind_a_dead_letter<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    for batch in BATCHES {
        let messages = [("order.placed", "{}"), ("order.lost", "{}"), ("order.placed", r#"{"order":1}"#)];
        let key = OrderingKey::new(MessageId::new().to_string()).unwrap();
        let broker = Broker::new(messages.map(|(kind, json)| event(kind, json).with_key(key.clone())));
        let consumer = base(&inbox, &broker)
            .on(bill::<DB>)
            .unknown_kinds(UnknownKinds::Skip)
            .after_dead_letter(AfterDeadLetter::HoldKey)
            .redrive_interval(None);
        run_until_drained(in_batches(consumer, batch), &broker).await;
        let dead: Vec<_> =
            dead(&inbox).await.into_iter().filter(|it| it.key.as_deref() == Some(key.as_str())).collect();
        let told: Vec<_> =
            dead.iter().map(|it| (it.reason, it.kind.as_deref().unwrap_or_default())).collect();
        assert_eq!(told, [(Reason::Rejected, "order.placed"), (Reason::Held, "order.placed")]);
    }
}

async fn unknown_kinds_are_held_on_demand<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let messages = [event("order.placed", r#"{"order":1}"#), event("order.cancelled", r#"{"order":7}"#)];
    let broker = Broker::new(messages);
    let old = base(&inbox, &broker).on(refund::<DB>).unknown_kinds(UnknownKinds::Hold).attempts_max(1);
    let (stop, running) = start(old.concurrency(NonZeroUsize::MIN));
    // Its only worker has seen the first message when it has handled the second one.
    broker.settled_at_least(1).await;
    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
    assert_eq!(effects(database).await, ["refund 7 of orders"]);
    assert!(dead(&inbox).await.is_empty());
    let new = base(&inbox, &broker).on(bill::<DB>);
    run_until_drained(new, &broker).await;
    assert_eq!(effects(database).await, ["bill 1", "refund 7 of orders"]);
}

async fn json_that_does_not_fit_is_rejected_without_its_values<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let broker = Broker::new([event("order.placed", r#"{"order":"s3cret"}"#)]);
    run_until_drained(base(&inbox, &broker).on(bill::<DB>), &broker).await;
    let dead = dead(&inbox).await;
    assert_eq!((dead.len(), dead[0].reason, dead[0].attempts), (1, Reason::Rejected, 1));
    let told = &dead[0].error;
    assert!(["order.placed", "Placed", "expected i64"].iter().all(|part| told.contains(part)), "{told}");
    assert!(!told.contains("s3cret"), "{told}");
}

async fn a_chosen_delay_replaces_the_backoff_and_counts<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let broker = Broker::new([event("order.placed", "x")]);
    let begun = Instant::now();
    run_until_drained(base(&inbox, &broker).on_message("order.placed", later::<DB>), &broker).await;
    assert!(begun.elapsed() >= CHOSEN, "{:?}", begun.elapsed());
    assert_eq!(effects(database).await, ["attempt 2"]);
}

fn foreign(malformed: &Malformed) -> Result<ForeignMessage, Box<dyn Error>> {
    let at = malformed.header("made_at").ok_or("no header made_at")?;
    let at = OffsetDateTime::from_unix_timestamp(at.parse()?)?;
    let id = MessageId::derived(at, [&malformed.payload])?;
    Ok(malformed.to_message(id, "order.placed")?)
}

async fn a_foreign_message_takes_effect_once<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let made_at = inbox.window().now.unix_timestamp().to_string();
    let malformed = |headers: Vec<(String, String)>| Malformed {
        problem: String::from("no id"),
        topic: String::from("orders"),
        headers,
        payload: br#"{"order":7}"#.as_slice().into(),
        ..Malformed::default()
    };
    let broker = Broker::new([]);
    let readable = malformed(vec![(String::from("made_at"), made_at)]);
    broker.send(Err(readable.clone()));
    broker.send(Err(readable.clone()));
    // Some headers were left out, so the handler would get an incomplete message.
    broker.send(Err(Malformed { is_cut: true, ..readable }));
    broker.send(Err(malformed(Vec::new())));
    broker.send(Err(malformed(vec![(String::from("made_at"), String::from("yesterday"))])));
    run_until_drained(base(&inbox, &broker).on(bill::<DB>).on_foreign(foreign), &broker).await;
    assert_eq!(effects(database).await, ["bill 7"]);
    let mut dead = dead(&inbox).await;
    dead.sort_unstable_by(|one, other| one.error.cmp(&other.error));
    assert!(dead.iter().all(|letter| letter.reason == Reason::Malformed));
    let [unreadable, without, cut] = &dead[..] else { panic!("three: {dead:?}") };
    assert_eq!(cut.error, "no id");
    assert!(unreadable.error.starts_with("invalid digit"), "{}", unreadable.error);
    assert_eq!(without.error, "no header made_at (its envelope: no id)");
    assert_eq!(broker.counts(), (5, 0, 1));
}

/// A process that skips unknown kinds must not close the dead letter either, because then its
/// effect would never happen.
async fn a_redrive_waits_for_a_process_that_knows_the_kind<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let messages = [event("order.placed", r#"{"order":1}"#), event("order.cancelled", r#"{"order":7}"#)];
    let broker = Broker::new(messages);
    run_until_drained(base(&inbox, &broker).on_message("other", raw::<DB>), &broker).await;
    let signature = Signature {
        actor: String::from("ann"),
        note: String::from("the new version is there"),
        selection: None,
    };
    let mut letters = dead(&inbox).await;
    letters.sort_by_key(|letter| letter.kind.as_deref() != Some("order.placed"));
    for letter in &letters {
        inbox.request_redrive(letter.id, RedriveOptions::default(), &signature).await.unwrap();
    }
    let often = Some(Duration::from_millis(10));
    let old = base(&inbox, &broker).on(refund::<DB>).unknown_kinds(UnknownKinds::Skip);
    let (stop, running) = start(old.redrive_interval(often));
    // It processes requests in order, so it has seen the first one when it carries out this one.
    tests::eventually("the request of its kind is carried out", async || {
        Ok((effects(database).await == ["refund 7 of orders"]).then_some(()))
    })
    .await
    .unwrap();
    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
    assert_eq!((effects(database).await.len(), dead(&inbox).await.len()), (1, 1));
    let (stop, running) = start(base(&inbox, &broker).on(bill::<DB>).redrive_interval(often));
    while !dead(&inbox).await.is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
    assert_eq!(effects(database).await, ["bill 1", "refund 7 of orders"]);
}

/// Goal: requests that this process cannot carry out do not hide later ones.
async fn redrives_behind_many_that_wait_are_carried_out<DB: TestDatabase>(database: &Database<DB>) {
    const WAITING: usize = 110;
    let inbox = database.inbox().await;
    let unknown = (0..WAITING).map(|order| placed(u32::try_from(order).unwrap()));
    let broker = Broker::new(unknown.chain([event("order.cancelled", r#"{"order":7}"#)]));
    run_until_drained(base(&inbox, &broker).on_message("other", raw::<DB>), &broker).await;
    let signature =
        Signature { actor: String::from("ann"), note: String::from("once more"), selection: None };
    let (known, waiting): (Vec<_>, Vec<_>) =
        dead(&inbox).await.into_iter().partition(|letter| letter.kind.as_deref() == Some("order.cancelled"));
    assert_eq!((waiting.len(), known.len()), (WAITING, 1));
    for letter in waiting.iter().chain(&known) {
        inbox.request_redrive(letter.id, RedriveOptions::default(), &signature).await.unwrap();
    }
    let consuming = base(&inbox, &broker).on(refund::<DB>);
    let (stop, running) = start(consuming.redrive_interval(Some(Duration::from_millis(10))));
    tests::eventually("the last one is redriven", async || {
        Ok((effects(database).await == ["refund 7 of orders"]).then_some(()))
    })
    .await
    .unwrap();
    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
    assert_eq!(dead(&inbox).await.len(), WAITING);
}

async fn a_consumer_that_cannot_work_is_not_built<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let broker = Broker::new([]);
    let twice = base(&inbox, &broker).on(bill::<DB>).on_message("order.placed", raw::<DB>).build();
    assert!(matches!(twice, Err(BuildError::DuplicateKind { kind }) if kind == "order.placed"));
    assert!(matches!(base(&inbox, &broker).build(), Err(BuildError::NoHandler)));
    let unsubscribed = Consumer::builder(inbox.clone(), "billing").on(bill::<DB>).build();
    assert!(matches!(unsubscribed, Err(BuildError::NoSubscription)));
    let unnamed = Consumer::builder(inbox.clone(), "").on(bill::<DB>).build();
    assert!(matches!(unnamed, Err(BuildError::Name(_))));
    let kindless = base(&inbox, &broker).on_message("", raw::<DB>).build();
    assert!(matches!(kindless, Err(BuildError::InvalidKind { .. })));
    // With an interval of zero, the consumer would query its database without a pause.
    let zero = Some(Duration::ZERO);
    for (setting, built) in [
        (
            "keep_alive_interval",
            base(&inbox, &broker).on(bill::<DB>).keep_alive_interval(Duration::ZERO).build(),
        ),
        ("maintain_interval", base(&inbox, &broker).on(bill::<DB>).maintain_interval(zero).build()),
        ("redrive_interval", base(&inbox, &broker).on(bill::<DB>).redrive_interval(zero).build()),
    ] {
        let told = built.err().map(|error| error.to_string());
        assert_eq!(told, Some(format!("{setting} is 0ns; choose at least 1ms")));
    }
    let run = Consumer::builder(inbox, "billing").on(bill::<DB>).run(std::future::ready(())).await;
    assert!(matches!(run, Err(RunError::Build(BuildError::NoSubscription))));
}
