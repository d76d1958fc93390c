//! The consumer loop: every message takes effect once, whatever fails.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::inbox::broker::Broker;
use crate::inbox::database::{Database, TestDatabase};
use crate::inbox::{consumer, keyed, message, message_of};
use async_trait::async_trait;
use inbox::{
    Backoff, Consumer, ConsumerBuilder, CrashPoint, DeadLetterQuery, Dialect, Handler, HandlerError, Inbox,
    Reason, RedriveOptions, RunError, Shutdown, Signature, Tx,
};
use message::{Malformed, Message, MessageId, OrderingKey};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

tests::cases! { "inbox/runner/{on}/{case}":
    every {
        every_message_takes_effect_once_in_the_order_of_its_key,
        a_batch_takes_effect_once_and_its_culprit_is_found,
        a_failing_message_holds_only_its_key_and_dies_at_the_bound,
        refused_and_malformed_deliveries_are_dead_lettered_and_settled,
        a_message_refused_by_its_time_is_dead_lettered_and_counted_once,
        a_message_from_the_near_future_waits_for_its_time,
        no_message_of_its_key_overtakes_one_from_the_near_future,
        a_crash_between_commit_and_settle_is_harmless,
        a_crash_between_effect_and_commit_is_harmless,
        lost_sessions_and_settlements_are_harmless,
        work_of_a_lost_session_is_finished_and_not_settled,
        a_graceful_shutdown_settles_and_hands_back,
        a_stop_hands_back_what_waits_for_its_first_turn,
        a_lost_session_ends_what_waits_for_its_first_turn,
        without_the_guard_duplicates_take_effect_twice,
        an_outage_counts_no_attempt,
        a_panic_of_the_handler_is_a_failure,
    }
    on_postgres {
        a_stop_begins_no_redrive_while_a_handler_runs_on_postgres,
        a_terminated_session_counts_no_attempt_on_postgres,
    }
}

/// The result after the effect, by message and call.
type Then = dyn Fn(&Message, u32) -> Result<(), HandlerError> + Send + Sync;

/// A handler that writes its effect and then returns what a test chooses.
#[derive(Clone)]
pub(super) struct Effect<DB> {
    then: Arc<Then>,
    calls: Arc<Mutex<Vec<(String, u32)>>>,
    database: std::marker::PhantomData<fn() -> DB>,
}

impl<DB> Effect<DB> {
    pub(super) fn new(
        then: impl Fn(&Message, u32) -> Result<(), HandlerError> + Send + Sync + 'static,
    ) -> Self {
        Self { then: Arc::new(then), calls: Arc::default(), database: std::marker::PhantomData }
    }

    pub(super) fn works() -> Self {
        Self::new(|_, _| Ok(()))
    }

    /// Counts a call of the handler for this payload. Returns the number of calls, with this one.
    fn call(&self, payload: &str) -> u32 {
        let mut calls = self.calls.lock().unwrap();
        match calls.iter_mut().find(|(known, _)| known == payload) {
            Some((_, count)) => {
                *count += 1;
                *count
            }
            None => {
                calls.push((payload.to_owned(), 1));
                1
            }
        }
    }
}

#[async_trait]
impl<DB: TestDatabase + Dialect> Handler<DB> for Effect<DB> {
    async fn handle(&self, tx: &mut Tx<DB>, message: &Message) -> Result<Option<Vec<u8>>, HandlerError> {
        DB::apply(tx, "billing", message).await?;
        let call = self.call(std::str::from_utf8(&message.payload).unwrap());
        (self.then)(message, call)?;
        Ok(Some(b"done".to_vec()))
    }
}

const QUICK: Backoff = Backoff { first: Duration::from_millis(1), max: Duration::from_millis(4) };

pub(super) fn builder<DB: TestDatabase>(
    inbox: &Inbox<DB>,
    broker: &Broker,
    handler: Effect<DB>,
) -> ConsumerBuilder<DB> {
    let broker = broker.clone();
    Consumer::builder(inbox.clone(), consumer("billing"))
        .subscribe(move || {
            let broker = broker.clone();
            async move { Ok(broker.subscribe()) }
        })
        .handler(handler)
        .backoff(QUICK)
        .keep_alive_interval(Duration::from_millis(20))
}

pub(super) struct Running {
    shutdown: Shutdown,
    task: JoinHandle<Result<(), RunError>>,
}

pub(super) fn start<DB: TestDatabase>(builder: ConsumerBuilder<DB>) -> Running {
    let shutdown = Shutdown::new();
    let task = tokio::spawn(builder.build().unwrap().run(shutdown.clone()));
    Running { shutdown, task }
}

impl Running {
    pub(super) async fn stop(self) {
        self.shutdown.graceful.cancel();
        self.task.await.unwrap().unwrap();
    }
}

fn three_keys(count: usize) -> Vec<Message> {
    (0..count).map(|n| keyed(&format!("key-{}", n % 3), &format!("{}:{n:03}", n % 3))).collect()
}

/// Asserts that each payload exists once and in order. Payloads are `key:number`, and the numbers
/// of one key ascend.
pub(super) fn assert_once_and_in_order(effects: &[String], expected: usize) {
    assert_eq!(effects.iter().collect::<HashSet<_>>().len(), expected, "each once: {effects:?}");
    assert_eq!(effects.len(), expected);
    for key in ["0:", "1:", "2:"] {
        let of_key: Vec<_> = effects.iter().filter(|payload| payload.starts_with(key)).collect();
        assert!(of_key.is_sorted(), "{of_key:?}");
    }
}

async fn every_message_takes_effect_once_in_the_order_of_its_key<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let messages = three_keys(60);
    let broker = Broker::new(messages.iter().flat_map(|message| [message.clone(), message.clone()]));
    let running = start(builder(&inbox, &broker, Effect::works()));
    broker.drained().await;
    running.stop().await;
    assert_once_and_in_order(&DB::effects(&database.pool, "billing").await, 60);
    assert_eq!(broker.counts(), (120, 0, 1));
}

pub(super) async fn a_batch_takes_effect_once_and_its_culprit_is_found<DB: TestDatabase>(
    database: &Database<DB>,
) {
    let inbox = database.inbox().await;
    let messages = three_keys(60);
    let doubled = messages.iter().flat_map(|message| [message.clone(), message.clone()]);
    let broker = Broker::new(
        doubled.chain([message_of(inbox.window().now - 90 * Duration::from_secs(86_400), "old")]),
    );
    // Two fail a few times, and one always fails.
    let handler = Effect::new(|message, call| match &message.payload[..] {
        b"1:007" if call < 4 => Err(HandlerError::retry("not yet")),
        b"2:008" if call < 3 => Err(HandlerError::unavailable("not there yet")),
        b"0:030" => Err(HandlerError::retry("never")),
        _ => Ok(()),
    });
    let batch = NonZeroUsize::new(25).unwrap();
    let running = start(builder(&inbox, &broker, handler).batch(batch).attempts_max(3));
    broker.drained().await;
    running.stop().await;
    let effects = DB::effects(&database.pool, "billing").await;
    assert!(!effects.contains(&String::from("0:030")));
    assert_once_and_in_order(&effects, 59);
    let dead = inbox.dead_letters(&DeadLetterQuery::default()).await.unwrap();
    let mut reasons: Vec<_> = dead.iter().map(|letter| (letter.reason.as_str(), letter.attempts)).collect();
    reasons.sort_unstable();
    assert_eq!(reasons, [("poison", 3), ("too_old", 0)]);
    assert_eq!(broker.counts().0, 121);
}

async fn a_failing_message_holds_only_its_key_and_dies_at_the_bound<DB: TestDatabase>(
    database: &Database<DB>,
) {
    let inbox = database.inbox().await;
    let poison = keyed("bad", "poison");
    let broker =
        Broker::new([poison.clone(), keyed("bad", "behind"), keyed("good", "other"), message("free")]);
    let others = Arc::new(Notify::new());
    let others_passed = Arc::clone(&others);
    let settled = broker.clone();
    let handler = Effect::new(move |message, _| match &message.payload[..] {
        b"poison" => {
            // The others must settle while this one fails; otherwise the test runs into its
            // deadline.
            if settled.counts().0 < 2 {
                return Err(HandlerError::unavailable("waits for the others"));
            }
            others_passed.notify_one();
            Err(HandlerError::retry("always"))
        }
        _ => Ok(()),
    });
    let running = start(builder(&inbox, &broker, handler).attempts_max(3));
    others.notified().await;
    broker.drained().await;
    running.stop().await;
    let effects = DB::effects(&database.pool, "billing").await;
    assert_eq!(
        effects.last().map(String::as_str),
        Some("behind"),
        "only after its key was free: {effects:?}"
    );
    assert_eq!(effects.len(), 3);
    let dead = inbox.dead_letters(&DeadLetterQuery::default()).await.unwrap();
    assert_eq!((dead.len(), dead[0].reason, dead[0].attempts), (1, Reason::Poison, 3));
    assert_eq!((dead[0].message_id, dead[0].error.as_str()), (Some(poison.id), "always"));

    // The handler is repaired, and the message is redriven with the same id.
    let works = Effect::<DB>::works();
    inbox.redrive(&consumer("billing"), dead[0].id, &works, RedriveOptions::default()).await.unwrap();
    let again = Broker::new([poison]);
    let running = start(builder(&inbox, &again, works));
    again.drained().await;
    running.stop().await;
    let effects = DB::effects(&database.pool, "billing").await;
    assert_eq!(effects.iter().filter(|payload| *payload == "poison").count(), 1);
}

async fn refused_and_malformed_deliveries_are_dead_lettered_and_settled<DB: TestDatabase>(
    database: &Database<DB>,
) {
    let inbox = database.inbox().await;
    let now = inbox.window().now;
    let hour = Duration::from_secs(3_600);
    let first = message("first");
    let broker = Broker::new([
        first.clone(),
        message_of(now - 24 * 20 * hour, "old"),
        message_of(now + 48 * hour, "early"),
        message("rejected"),
    ]);
    broker.send(Err(Malformed {
        problem: String::from("no id"),
        topic: String::from("orders"),
        payload: b"?".as_slice().into(),
        ..Malformed::default()
    }));
    let handler = Effect::new(|message, _| match &message.payload[..] {
        b"rejected" => Err(HandlerError::reject("cannot be right")),
        _ => Ok(()),
    });
    let running = start(builder(&inbox, &broker, handler));
    broker.settled_at_least(5).await;
    broker.send(Ok(message("second").with_id(first.id)));
    broker.settled_at_least(6).await;
    running.stop().await;
    assert_eq!(DB::effects(&database.pool, "billing").await, ["first"]);
    let dead = inbox.dead_letters(&DeadLetterQuery::default()).await.unwrap();
    let mut reasons: Vec<_> = dead.iter().map(|letter| letter.reason.as_str()).collect();
    reasons.sort_unstable();
    assert_eq!(reasons, ["from_the_future", "key_reused", "malformed", "rejected", "too_old"]);
}

/// Goal: while the database's clock is behind, the stream stops, and messages are dead-lettered
/// only if the clock stays behind. This holds for single messages and for a batch, which leaves out
/// refused messages and begins again. Oracle: the effect, once the clock has caught up.
async fn a_message_from_the_near_future_waits_for_its_time<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    for batch in [None, NonZeroUsize::new(4)] {
        let payload = format!("early {batch:?}");
        let ahead = inbox.window().newest_accepted_at() + Duration::from_millis(500);
        let broker = Broker::new([message_of(ahead, &payload)]);
        let consuming = builder(&inbox, &broker, Effect::works()).attempts_max(1);
        let running = start(match batch {
            Some(batch) => consuming.batch(batch),
            None => consuming,
        });
        broker.drained().await;
        running.stop().await;
        assert!(DB::effects(&database.pool, "billing").await.contains(&payload));
    }
    assert_eq!(inbox.dead_letters(&DeadLetterQuery::default()).await.unwrap(), []);
}

/// Goal: while a message waits for its time, the later messages of its key wait behind it, and
/// other keys continue. Oracle: the order of the effects, of single messages and of a batch.
async fn no_message_of_its_key_overtakes_one_from_the_near_future<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    for (round, batch) in [None, NonZeroUsize::new(4)].into_iter().enumerate() {
        let name = |payload: &str| format!("{payload} {round}");
        let ahead = inbox.window().newest_accepted_at() + Duration::from_millis(500);
        let key = OrderingKey::new(name("k")).unwrap();
        let early = message_of(ahead, &name("early")).with_key(key.clone());
        let behind = message(&name("behind")).with_key(key);
        let broker = Broker::new([early, message(&name("other")), behind]);
        let consuming = builder(&inbox, &broker, Effect::works());
        let running = start(match batch {
            Some(batch) => consuming.batch(batch),
            None => consuming,
        });
        broker.drained().await;
        running.stop().await;
        let effects = DB::effects(&database.pool, "billing").await;
        assert_eq!(effects[3 * round..], ["other", "early", "behind"].map(name));
    }
    assert_eq!(inbox.dead_letters(&DeadLetterQuery::default()).await.unwrap(), []);
}

async fn a_message_refused_by_its_time_is_dead_lettered_and_counted_once<DB: TestDatabase>(
    database: &Database<DB>,
) {
    let counters = tests::Counters::installed();
    let inbox = database.inbox().await;
    for batch in [None, NonZeroUsize::new(4)] {
        let hour = Duration::from_secs(3_600);
        let now = inbox.window().now;
        let (old, early) = (message_of(now - 24 * 20 * hour, "old"), message_of(now + 48 * hour, "early"));
        let broker = Broker::new([message("present"), old.clone(), early.clone()]);
        let name = format!("counted-{}", MessageId::new());
        let source = broker.clone();
        let mut consuming = Consumer::builder(inbox.clone(), consumer(&name))
            .subscribe(move || {
                let broker = source.clone();
                async move { Ok(broker.subscribe()) }
            })
            .handler(Effect::works());
        if let Some(batch) = batch {
            consuming = consuming.batch(batch);
        }
        let running = start(consuming);
        broker.drained().await;
        running.stop().await;
        for (reason, message) in [("too_old", old), ("from_the_future", early)] {
            let labels = [("consumer", name.as_str()), ("reason", reason)];
            assert_eq!(counters.value("inbox_refused_total", &labels), 1, "{reason}");
            assert_eq!(counters.value("inbox_dead_total", &labels), 1, "{reason}");
            let dead = inbox.dead_letters(&DeadLetterQuery::default()).await.unwrap();
            let letter =
                dead.iter().find(|dead| dead.consumer == name && dead.message_id == Some(message.id));
            let told = &letter.unwrap().error;
            assert!(told.contains(&message.id.generated_at().to_string()), "{told}");
        }
    }
}

async fn a_crash_between_commit_and_settle_is_harmless<DB: TestDatabase>(database: &Database<DB>) {
    for batch in [None, NonZeroUsize::new(4)] {
        let inbox = database.inbox().await;
        let broker = Broker::new(three_keys(9));
        let shutdown = Shutdown::new();
        let abort = shutdown.abort.clone();
        let crash = move |point, _: MessageId| {
            if point == CrashPoint::AfterCommit {
                abort.cancel();
            }
        };
        let mut crashing = builder(&inbox, &broker, Effect::works()).crash_hook(crash);
        let mut restarted = builder(&inbox, &broker, Effect::works());
        if let Some(batch) = batch {
            (crashing, restarted) = (crashing.batch(batch), restarted.batch(batch));
        }
        let crashed = crashing.build().unwrap().run(shutdown).await;
        assert!(matches!(crashed, Err(RunError::Aborted { unsettled: 9 })), "{crashed:?}");
        assert_eq!(broker.settled().len(), 0, "committed, and not settled");
        assert!(!DB::effects(&database.pool, "billing").await.is_empty());

        let running = start(restarted);
        broker.drained().await;
        running.stop().await;
        assert_once_and_in_order(&DB::effects(&database.pool, "billing").await, 9);
        let mut tx = database.admin.begin().await.unwrap();
        for statement in ["DELETE FROM effect", "DELETE FROM inbox_message"] {
            DB::sql(&mut tx, statement).await.unwrap();
        }
        tx.commit().await.unwrap();
    }
}

async fn a_crash_between_effect_and_commit_is_harmless<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let broker = Broker::new([message("one"), message("two")]);
    let crash = |point, _| assert_ne!(point, CrashPoint::AfterEffect, "the test stops the worker here");
    let crashing = builder(&inbox, &broker, Effect::works()).crash_hook(crash).build().unwrap();
    let crashed = crashing.run(Shutdown::new()).await;
    assert!(matches!(crashed, Err(RunError::Worker(_))), "{crashed:?}");
    assert_eq!(DB::effects(&database.pool, "billing").await.len(), 0, "rolled back");
    let running = start(builder(&inbox, &broker, Effect::works()));
    broker.drained().await;
    running.stop().await;
    let mut effects = DB::effects(&database.pool, "billing").await;
    effects.sort_unstable();
    assert_eq!(effects, ["one", "two"]);
}

pub(super) async fn lost_sessions_and_settlements_are_harmless<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let broker = Broker::new(three_keys(60));
    broker.lose_settlements(2);
    let breaks = AtomicU32::new(0);
    let breaking = broker.clone();
    let handler = Effect::new(move |_, _| {
        if breaks.fetch_add(1, Ordering::Relaxed) % 20 == 10 {
            breaking.lose_session();
        }
        Ok(())
    });
    let running = start(builder(&inbox, &broker, handler));
    broker.drained().await;
    running.stop().await;
    assert!(broker.subscriptions() > 3, "{}", broker.subscriptions());
    let effects = DB::effects(&database.pool, "billing").await;
    assert_once_and_in_order(&effects, 60);
    assert_eq!(broker.counts().1, 0);
}

/// Breaks the session, and returns only when the next session has begun.
struct Outlives {
    broker: Broker,
    calls: Arc<AtomicU32>,
}

#[async_trait]
impl<DB: TestDatabase + Dialect> Handler<DB> for Outlives {
    async fn handle(&self, tx: &mut Tx<DB>, message: &Message) -> Result<Option<Vec<u8>>, HandlerError> {
        DB::apply(tx, "billing", message).await?;
        if self.calls.fetch_add(1, Ordering::Relaxed) == 0 {
            self.broker.lose_session();
            self.broker.subscribed_at_least(2).await;
        }
        Ok(None)
    }
}

async fn work_of_a_lost_session_is_finished_and_not_settled<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    for batch in [None, NonZeroUsize::new(4)] {
        let broker = Broker::new([keyed("k", "outlives"), keyed("k", "behind")]);
        let calls = Arc::new(AtomicU32::new(0));
        let handler = Outlives { broker: broker.clone(), calls: Arc::clone(&calls) };
        let mut outliving = builder(&inbox, &broker, Effect::works()).handler(handler);
        if let Some(batch) = batch {
            outliving = outliving.batch(batch);
        }
        let running = start(outliving);
        // The broker panics on the token of a lost session.
        broker.drained().await;
        running.stop().await;
        assert_eq!(calls.load(Ordering::Relaxed), 2, "each message was handled once");
        assert_eq!(broker.counts(), (2, 0, 1));
    }
    assert_eq!(DB::effects(&database.pool, "billing").await.len(), 4);
}

pub(super) async fn a_graceful_shutdown_settles_and_hands_back<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let broker = Broker::new([keyed("k", "working"), keyed("k", "waiting"), message("failing")]);
    let shutdown = Shutdown::new();
    let stop = shutdown.graceful.clone();
    let handler = Effect::new(move |message, _| match &message.payload[..] {
        b"working" => {
            stop.cancel();
            Ok(())
        }
        _ => Err(HandlerError::unavailable("never")),
    });
    builder(&inbox, &broker, handler).build().unwrap().run(shutdown).await.unwrap();
    assert_eq!(broker.counts(), (1, 2, 1), "settled, handed back, closed");
    assert_eq!(DB::effects(&database.pool, "billing").await, ["working"]);
    assert!(inbox.dead_letters(&DeadLetterQuery::default()).await.unwrap().is_empty());
}

/// A handler whose calls, numbered from 0, wait for moments that a test chooses, at most 20
/// seconds.
struct Waits<F> {
    until: F,
    calls: Arc<AtomicU32>,
}

#[async_trait]
impl<DB, F, W> Handler<DB> for Waits<F>
where
    DB: TestDatabase + Dialect,
    F: Fn(u32) -> W + Send + Sync + 'static,
    W: Future<Output = ()> + Send + 'static,
{
    async fn handle(&self, tx: &mut Tx<DB>, message: &Message) -> Result<Option<Vec<u8>>, HandlerError> {
        DB::apply(tx, "billing", message).await?;
        let call = self.calls.fetch_add(1, Ordering::SeqCst);
        let waited = tokio::time::timeout(Duration::from_mins(4), (self.until)(call)).await;
        waited.expect("the moment that the test waits for");
        Ok(None)
    }
}

/// Makes a consumer that handles one message at a time.
fn one_at_a_time<DB, F, W>(inbox: &Inbox<DB>, broker: &Broker, handler: Waits<F>) -> ConsumerBuilder<DB>
where
    DB: TestDatabase,
    F: Fn(u32) -> W + Send + Sync + 'static,
    W: Future<Output = ()> + Send + 'static,
{
    let broker = broker.clone();
    Consumer::builder(inbox.clone(), consumer("billing"))
        .subscribe(move || {
            let broker = broker.clone();
            async move { Ok(broker.subscribe()) }
        })
        .handler(handler)
        .concurrency(NonZeroUsize::MIN)
        .backoff(QUICK)
}

/// Makes messages, each with its own key or without a key.
fn independent(count: usize) -> Vec<Message> {
    let text = |n: usize| format!("text-{n}");
    (0..count)
        .map(|n| if n % 2 == 0 { keyed(&format!("key-{n}"), &text(n)) } else { message(&text(n)) })
        .collect()
}

/// Goal: a stop takes as long as the handlers that run, not as everything that was prefetched.
/// Oracle: the calls of the handler, and what the broker got back while the first call ran.
async fn a_stop_hands_back_what_waits_for_its_first_turn<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let broker = Broker::new(independent(64));
    let shutdown = Shutdown::new();
    let calls = Arc::new(AtomicU32::new(0));
    let stop = shutdown.graceful.clone();
    let queue = broker.clone();
    let until = move |call: u32| {
        let stop = stop.clone();
        let queue = queue.clone();
        async move {
            if call == 0 {
                queue.in_hand(64).await;
                stop.cancel();
                queue.in_hand(1).await;
            }
        }
    };
    let handler = Waits { until, calls: Arc::clone(&calls) };
    one_at_a_time(&inbox, &broker, handler).build().unwrap().run(shutdown).await.unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 1, "nothing begins after the stop");
    assert_eq!(broker.counts(), (1, 63, 1), "settled, handed back, closed");
}

/// Goal: a consumer that stops begins no redrive while it waits for a handler. Oracle: the calls of
/// the handler. A message of the same key that is handed back shows that it stops; one more handler
/// could run. Not on SQLite, where the first one keeps all other writers waiting.
async fn a_stop_begins_no_redrive_while_a_handler_runs_on_postgres(database: &Database<sqlx::Postgres>) {
    let inbox = database.inbox().await;
    let broker = Broker::new([message("broken")]);
    let running = start(builder(&inbox, &broker, Effect::new(|_, _| Err(HandlerError::reject("broken")))));
    broker.drained().await;
    running.stop().await;
    let dead = inbox.dead_letters(&DeadLetterQuery::default()).await.unwrap().remove(0).id;

    let broker = Broker::new([keyed("k", "one"), keyed("k", "two")]);
    let shutdown = Shutdown::new();
    let calls = Arc::new(AtomicU32::new(0));
    let stop = shutdown.graceful.clone();
    let queue = broker.clone();
    let operator = inbox.clone();
    let until = move |call: u32| {
        let stop = stop.clone();
        let queue = queue.clone();
        let operator = operator.clone();
        async move {
            if call == 0 {
                queue.in_hand(2).await;
                stop.cancel();
                queue.in_hand(1).await;
                let by = Signature { actor: "ann".into(), note: "a test".into(), selection: None };
                operator.request_redrive(dead, RedriveOptions::default(), &by).await.unwrap();
                // Many of its intervals.
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
        }
    };
    let consuming = one_at_a_time(&inbox, &broker, Waits { until, calls: Arc::clone(&calls) })
        .concurrency(const { NonZeroUsize::new(2).unwrap() })
        .redrive_interval(Some(Duration::from_millis(5)));
    consuming.build().unwrap().run(shutdown).await.unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 1, "a redrive began after the stop");
    assert_eq!(inbox.dead_letters(&DeadLetterQuery::default()).await.unwrap().len(), 1, "it waits");
}

/// Goal: what lost sessions leave behind does not grow with their number. Oracle: after the call
/// during which they were lost, the next ones are for the current session, which settles them.
async fn a_lost_session_ends_what_waits_for_its_first_turn<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let broker = Broker::new(independent(64));
    let calls = Arc::new(AtomicU32::new(0));
    let settles = Arc::new(AtomicU32::new(0));
    let queue = broker.clone();
    let noted = Arc::clone(&settles);
    let until = move |call: u32| {
        let queue = queue.clone();
        let noted = Arc::clone(&noted);
        async move {
            if call == 0 {
                for session in 2..5 {
                    queue.in_hand(64).await;
                    queue.lose_session();
                    queue.subscribed_at_least(session).await;
                }
                queue.in_hand(64).await;
            } else if call == 2 {
                queue.settled_at_least(1).await;
                noted.store(1, Ordering::SeqCst);
            }
        }
    };
    let running = start(one_at_a_time(&inbox, &broker, Waits { until, calls: Arc::clone(&calls) }));
    broker.drained().await;
    running.stop().await;
    assert_eq!(settles.load(Ordering::SeqCst), 1, "a message was handled for a session that is lost");
    assert_eq!(calls.load(Ordering::SeqCst), 64, "each has one effect");
}

async fn without_the_guard_duplicates_take_effect_twice<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    for batch in [None, NonZeroUsize::new(4)] {
        let message = keyed("k", "unguarded");
        let broker = Broker::new([message.clone(), message]);
        let mut unguarded = builder(&inbox, &broker, Effect::works()).without_guard();
        if let Some(batch) = batch {
            unguarded = unguarded.batch(batch);
        }
        let running = start(unguarded);
        broker.drained().await;
        running.stop().await;
    }
    assert_eq!(DB::effects(&database.pool, "billing").await.len(), 4);
}

async fn an_outage_counts_no_attempt<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let message = message("patient");
    let broker = Broker::new([message.clone()]);
    let handler = Effect::new(|_, call| match call {
        1 => Err(HandlerError::unavailable("the service it needs is away")),
        2 => Err(sqlx::Error::PoolTimedOut.into()),
        3 => Err(HandlerError::retry("its own failure")),
        _ => Ok(()),
    });
    // Only one failure of the message's own is allowed.
    let running = start(builder(&inbox, &broker, handler).attempts_max(2));
    broker.drained().await;
    running.stop().await;
    assert_eq!(DB::effects(&database.pool, "billing").await, ["patient"]);
    let left = inbox.attempt(&consumer("billing"), &inbox::Tenant::none(), message.id).await.unwrap();
    assert_eq!(left, None, "forgotten with the success");
}

async fn a_panic_of_the_handler_is_a_failure<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let broker = Broker::new([message("panics"), message("fine")]);
    let handler = Effect::new(|message, _| {
        assert_ne!(&message.payload[..], b"panics", "on purpose");
        Ok(())
    });
    let running = start(builder(&inbox, &broker, handler).attempts_max(2));
    broker.drained().await;
    running.stop().await;
    let dead = inbox.dead_letters(&DeadLetterQuery::default()).await.unwrap();
    assert_eq!((dead.len(), dead[0].error.as_str()), (1, "the handler panicked"));
    assert_eq!(DB::effects(&database.pool, "billing").await, ["fine"]);
}

/// The server ends the session while the handler runs.
async fn a_terminated_session_counts_no_attempt_on_postgres(database: &Database<sqlx::Postgres>) {
    struct Terminated(AtomicU32);

    #[async_trait]
    impl Handler<sqlx::Postgres> for Terminated {
        async fn handle(
            &self,
            tx: &mut Tx<sqlx::Postgres>,
            message: &Message,
        ) -> Result<Option<Vec<u8>>, HandlerError> {
            sqlx::Postgres::apply(tx, "billing", message).await?;
            if self.0.fetch_add(1, Ordering::Relaxed) < 3 {
                sqlx::Postgres::sql(tx, "SELECT pg_terminate_backend(pg_backend_pid())").await?;
            }
            Ok(None)
        }
    }

    let inbox = database.inbox().await;
    let broker = Broker::new([message("survives")]);
    let running = start(
        builder(&inbox, &broker, Effect::works()).handler(Terminated(AtomicU32::new(0))).attempts_max(1),
    );
    broker.drained().await;
    running.stop().await;
    assert_eq!(sqlx::Postgres::effects(&database.pool, "billing").await, ["survives"]);
}
