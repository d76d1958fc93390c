//! Keys that wait behind a dead letter: no message overtakes, none is stuck, and all other keys
//! continue.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::inbox::broker::Broker;
use crate::inbox::chunks::chunks_of;
use crate::inbox::database::{Database, TestDatabase};
use crate::inbox::failures::{BATCHES, dead_letters, in_batches, until};
use crate::inbox::runner::{Effect, assert_once_and_in_order, builder, start};
use crate::inbox::{consumer, keyed, message, message_of};
use inbox::{
    AfterDeadLetter, Cause, ConsumerBuilder, DeadLetter, DeadLetterQuery, HandlerError, Inbox, Reason,
    RedriveError, RedriveOptions, Redriven, Requested, Resolution, Signature, Tenant,
};
use message::{Delivery, DeliveryToken, Message, OrderingKey, Topic};
use migrations::Dialect as Name;

tests::cases! { "inbox/held_keys/{on}/{case}":
    every {
        by_default_the_key_goes_on,
        what_comes_behind_a_dead_letter_follows_it_in_order,
        a_batch_leaves_out_the_held_keys_alone,
        a_discarded_dead_letter_lets_its_key_go_on,
        a_held_message_that_fails_holds_those_behind_it,
        a_held_message_is_tried_again_after_a_backoff,
        a_held_message_waits_out_an_outage,
        a_clock_that_was_days_ahead_keeps_no_held_message_waiting,
        a_long_pause_of_another_process_is_kept,
        copies_of_a_held_message_do_not_reset_its_count,
        two_consumers_that_take_turns_keep_the_order,
        held_messages_are_redriven_after_a_restart_that_lets_keys_go_on,
        a_held_message_is_not_redriven_before_its_turn,
        a_discarded_held_message_lets_those_behind_it_go_on,
        only_the_key_of_its_tenant_and_topic_waits,
        a_message_refused_by_its_time_holds_its_key_and_a_reused_id_does_not,
        a_message_in_chunks_is_held_whole,
        held_messages_go_in_the_order_of_arrival_whatever_their_ids,
        a_held_message_older_than_the_memory_takes_effect,
        a_late_letter_of_what_took_effect_holds_nothing,
    }
}

pub(super) const SOON: Option<Duration> = Some(Duration::from_millis(2));

/// The payloads that the handler rejects until they are repaired.
#[derive(Clone, Default)]
pub(super) struct Rejects(Arc<Mutex<HashSet<String>>>);

impl Rejects {
    pub(super) fn these<T: Into<String>>(payloads: impl IntoIterator<Item = T>) -> Self {
        Self(Arc::new(Mutex::new(payloads.into_iter().map(Into::into).collect())))
    }

    pub(super) fn repair(&self, payload: &str) {
        self.0.lock().unwrap().remove(payload);
    }

    pub(super) fn handler<DB>(&self) -> Effect<DB> {
        let broken = Arc::clone(&self.0);
        Effect::new(move |message, _| {
            if broken.lock().unwrap().contains(&text(&message.payload)) {
                Err(HandlerError::reject("no such price"))
            } else {
                Ok(())
            }
        })
    }
}

pub(super) fn text(payload: &[u8]) -> String {
    String::from_utf8(payload.to_vec()).unwrap()
}

/// Configures a consumer that holds keys.
pub(super) fn holding<DB: TestDatabase>(
    inbox: &Inbox<DB>,
    broker: &Broker,
    handler: Effect<DB>,
    batch: Option<NonZeroUsize>,
) -> ConsumerBuilder<DB> {
    let holding = builder(inbox, broker, handler).after_dead_letter(AfterDeadLetter::HoldKey);
    in_batches(holding.redrive_interval(SOON), batch)
}

pub(super) fn signature() -> Signature {
    Signature { actor: String::from("ann"), note: String::from("prices are back"), selection: None }
}

pub(super) async fn request<DB: TestDatabase>(inbox: &Inbox<DB>, letter: &DeadLetter) -> Requested {
    inbox.request_redrive(letter.id, RedriveOptions::default(), &signature()).await.unwrap()
}

/// Returns the open dead letters by payload and reason, in the order of the payloads.
pub(super) fn told(letters: &[DeadLetter]) -> Vec<(String, &'static str)> {
    let mut told: Vec<_> =
        letters.iter().map(|letter| (text(&letter.payload), letter.reason.as_str())).collect();
    told.sort_unstable();
    told
}

pub(super) fn of<'a>(letters: &'a [DeadLetter], payload: &str) -> &'a DeadLetter {
    letters.iter().find(|letter| letter.payload == payload.as_bytes()).expect("an open letter")
}

pub(super) async fn none_is_open<DB: TestDatabase>(inbox: &Inbox<DB>) {
    until("no dead letter is open", async || dead_letters(inbox).await.is_empty()).await;
}

pub(super) async fn effects<DB: TestDatabase>(database: &Database<DB>) -> Vec<String> {
    DB::effects(&database.pool, "billing").await
}

/// Sends these messages of one key to a consumer that holds keys, and waits until all are settled.
pub(super) async fn settled<DB: TestDatabase>(inbox: &Inbox<DB>, rejects: &Rejects, payloads: &[&str]) {
    let broker = Broker::new(payloads.iter().map(|payload| keyed("k", payload)));
    let waiting = holding(inbox, &broker, rejects.handler(), None).redrive_interval(None);
    let running = start(waiting);
    broker.drained().await;
    running.stop().await;
}

async fn by_default_the_key_goes_on<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    for (round, batch) in BATCHES.into_iter().enumerate() {
        let [a, b] = ["a", "b"].map(|payload| format!("{payload}{round}"));
        let rejects = Rejects::these([&a]);
        let broker = Broker::new([keyed("k", &a), keyed("k", &b)]);
        let running = start(in_batches(builder(&inbox, &broker, rejects.handler()), batch));
        broker.drained().await;
        running.stop().await;
        assert_eq!(effects(database).await.last(), Some(&b));
        let letters = dead_letters(&inbox).await;
        assert_eq!(told(&letters), [(a, "rejected")]);
        inbox.discard(letters[0].id, &signature()).await.unwrap();
    }
}

/// Goal: the messages behind a rejected one wait in the database, other keys continue, and the
/// waiting messages follow once the rejected one is redriven. Oracle: the order of the effects.
async fn what_comes_behind_a_dead_letter_follows_it_in_order<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let mut expected = Vec::new();
    for (round, batch) in BATCHES.into_iter().enumerate() {
        let [a, b, c, d, other] = ["a", "b", "c", "d", "other"].map(|payload| format!("{payload}{round}"));
        let rejects = Rejects::these([&a]);
        let (key, copied) = (format!("k{round}"), keyed(&format!("k{round}"), &b));
        let broker = Broker::new([keyed(&key, &a), copied.clone(), keyed(&key, &c), keyed("x", &other)]);
        let running = start(holding(&inbox, &broker, rejects.handler(), batch));
        broker.settled_at_least(4).await;
        broker.send(Ok(copied));
        broker.settled_at_least(5).await;
        expected.push(other);
        assert_eq!(effects(database).await, expected, "nothing of the key");
        let letters = dead_letters(&inbox).await;
        let held = [(a.clone(), "rejected"), (b.clone(), "held"), (c.clone(), "held")];
        assert_eq!(told(&letters), held);
        let first = of(&letters, &a);
        for payload in [&b, &c] {
            let letter = of(&letters, payload);
            assert!(letter.error.contains(&first.id.to_string()), "{}", letter.error);
            assert_eq!((letter.attempts, letter.deliveries), (0, 1), "a copy is a duplicate");
        }
        rejects.repair(&a);
        assert_eq!(request(&inbox, first).await, Requested::Now);
        none_is_open(&inbox).await;
        broker.send(Ok(keyed(&key, &d)));
        broker.settled_at_least(6).await;
        running.stop().await;
        expected.extend([a, b, c, d]);
        assert_eq!(effects(database).await, expected);
        assert!(dead_letters(&inbox).await.is_empty());
    }
}

/// Goal: when a batch meets an open dead letter, the messages of its key are held in their order,
/// and the others take effect. Oracle: the effects, then their order.
async fn a_batch_leaves_out_the_held_keys_alone<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let rejects = Rejects::these(["a"]);
    settled(&inbox, &rejects, &["a"]).await;
    let broker =
        Broker::new([keyed("x", "1"), keyed("k", "b"), keyed("y", "2"), keyed("k", "c"), keyed("x", "3")]);
    let running = start(holding(&inbox, &broker, rejects.handler(), NonZeroUsize::new(10)));
    broker.drained().await;
    assert_eq!(effects(database).await, ["1", "2", "3"]);
    let letters = dead_letters(&inbox).await;
    assert_eq!(
        told(&letters),
        [("a", "rejected"), ("b", "held"), ("c", "held")].map(|(p, r)| (p.to_owned(), r))
    );
    inbox.discard(of(&letters, "a").id, &signature()).await.unwrap();
    none_is_open(&inbox).await;
    running.stop().await;
    assert_eq!(effects(database).await, ["1", "2", "3", "b", "c"]);
}

async fn a_discarded_dead_letter_lets_its_key_go_on<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let rejects = Rejects::these(["a"]);
    let broker = Broker::new(["a", "b", "c"].map(|payload| keyed("k", payload)));
    let running = start(holding(&inbox, &broker, rejects.handler(), None));
    broker.drained().await;
    assert!(effects(database).await.is_empty());
    let letters = dead_letters(&inbox).await;
    let discarded = inbox.discard(of(&letters, "a").id, &signature()).await.unwrap();
    assert_eq!(discarded, Redriven::Now(Resolution::Discarded));
    none_is_open(&inbox).await;
    running.stop().await;
    assert_eq!(effects(database).await, ["b", "c"]);
}

/// Goal: a held message that is rejected, or reaches the maximum of attempts, is an ordinary dead
/// letter with its own reason, error and attempts. The rest stays held. Oracle: the dead letters,
/// then the order of the effects.
async fn a_held_message_that_fails_holds_those_behind_it<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let (rejects, fails) = (Rejects::these(["a", "b"]), Rejects::these(["c"]));
    let (rejecting, failing) = (Arc::clone(&rejects.0), Arc::clone(&fails.0));
    let handler = Effect::new(move |message, _| {
        let payload = text(&message.payload);
        if rejecting.lock().unwrap().contains(&payload) {
            return Err(HandlerError::reject("no such price"));
        }
        if failing.lock().unwrap().contains(&payload) { Err(HandlerError::retry("not yet")) } else { Ok(()) }
    });
    let broker = Broker::new(["a", "b", "c", "d"].map(|payload| keyed("k", payload)));
    let running = start(holding(&inbox, &broker, handler, None).attempts_max(3));
    broker.drained().await;
    let is = async |payload: &str, reason: Reason| {
        let what = format!("{payload} is {reason}");
        until(&what, async || of(&dead_letters(&inbox).await, payload).reason == reason).await;
        dead_letters(&inbox).await
    };
    let letters = is("a", Reason::Rejected).await;
    inbox.discard(of(&letters, "a").id, &signature()).await.unwrap();
    let letters = is("b", Reason::Rejected).await;
    assert_eq!((of(&letters, "b").error.as_str(), of(&letters, "b").attempts), ("no such price", 1));
    assert_eq!((of(&letters, "c").reason, of(&letters, "d").reason), (Reason::Held, Reason::Held));
    rejects.repair("b");
    assert_eq!(request(&inbox, of(&letters, "b")).await, Requested::Now);
    let letters = is("c", Reason::Poison).await;
    assert_eq!((of(&letters, "c").error.as_str(), of(&letters, "c").attempts), ("not yet", 3));
    assert_eq!(of(&letters, "d").reason, Reason::Held);
    assert_eq!(effects(database).await, ["b"]);
    fails.repair("c");
    assert_eq!(request(&inbox, of(&letters, "c")).await, Requested::Now);
    none_is_open(&inbox).await;
    running.stop().await;
    assert_eq!(effects(database).await, ["b", "c", "d"]);
}

async fn a_held_message_is_tried_again_after_a_backoff<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let rejects = Rejects::these(["a"]);
    let broken = Arc::clone(&rejects.0);
    let handler = Effect::new(move |message, call| match text(&message.payload).as_str() {
        "b" if call < 3 => Err(HandlerError::retry("not yet")),
        "b" if call == 3 => Err(HandlerError::retry_after(Duration::from_millis(20), "not yet")),
        payload if broken.lock().unwrap().contains(payload) => Err(HandlerError::reject("no such price")),
        _ => Ok(()),
    });
    let messages = ["a", "b", "c"].map(|payload| keyed("k", payload));
    let id = messages[1].id;
    let broker = Broker::new(messages);
    let running = start(holding(&inbox, &broker, handler, None).attempts_max(4));
    broker.drained().await;
    let letters = dead_letters(&inbox).await;
    inbox.discard(of(&letters, "a").id, &signature()).await.unwrap();
    none_is_open(&inbox).await;
    running.stop().await;
    assert_eq!(effects(database).await, ["b", "c"]);
    let left = inbox.attempt(&consumer("billing"), &Tenant::none(), id).await.unwrap();
    assert_eq!(left, None, "forgotten with the success");
}

/// Goal: an outage counts no attempt of a held message. Oracle: it takes effect although a single
/// counted failure would dead-letter it.
async fn a_held_message_waits_out_an_outage<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let handler = Effect::new(|message, call| match text(&message.payload).as_str() {
        "a" => Err(HandlerError::reject("no such price")),
        "b" if call < 3 => Err(HandlerError::unavailable("the service it needs is away")),
        "b" if call < 5 => Err(sqlx::Error::PoolTimedOut.into()),
        _ => Ok(()),
    });
    let broker = Broker::new(["a", "b"].map(|payload| keyed("k", payload)));
    let running = start(holding(&inbox, &broker, handler, None).attempts_max(1));
    broker.drained().await;
    let letters = dead_letters(&inbox).await;
    inbox.discard(of(&letters, "a").id, &signature()).await.unwrap();
    none_is_open(&inbox).await;
    running.stop().await;
    assert_eq!(effects(database).await, ["b"]);
}

/// Goal: a held message that failed while the server's clock was days ahead is tried again once the
/// clock is right, like a delivery. Oracle: its effect, while its next attempt is due in two days.
async fn a_clock_that_was_days_ahead_keeps_no_held_message_waiting<DB: TestDatabase>(
    database: &Database<DB>,
) {
    let inbox = database.inbox().await;
    let rejects = Rejects::these(["a"]);
    let messages = ["a", "b", "c"].map(|payload| keyed("k", payload));
    let id = messages[1].id;
    let broker = Broker::new(messages);
    let running = start(holding(&inbox, &broker, rejects.handler(), None).redrive_interval(None));
    broker.drained().await;
    running.stop().await;
    let pause = Some(inbox::Backoff { first: Duration::from_secs(60), max: Duration::from_secs(60) });
    let failed = inbox.record_failure(&consumer("billing"), &Tenant::none(), id, "not yet", pause).await;
    assert_eq!(failed.unwrap().attempts, 1);
    let mut tx = database.admin.begin().await.unwrap();
    let statement = match DB::DIALECT {
        Name::Postgres => "UPDATE inbox_attempt SET next_at = next_at + interval '2 days'",
        Name::Sqlite => "UPDATE inbox_attempt SET next_at = next_at + 172800000000",
    };
    DB::sql(&mut tx, statement).await.unwrap();
    tx.commit().await.unwrap();
    let letters = dead_letters(&inbox).await;
    inbox.discard(of(&letters, "a").id, &signature()).await.unwrap();
    let running = start(holding(&inbox, &broker, rejects.handler(), None));
    none_is_open(&inbox).await;
    running.stop().await;
    assert_eq!(effects(database).await, ["b", "c"]);
}

/// Goal: a held message that failed in a process with longer pauses is not tried early by a process
/// with shorter ones. Oracle: a message of another key takes effect in the same walk, and the held
/// one only once its pause is over.
async fn a_long_pause_of_another_process_is_kept<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let rejects = Rejects::these(["a", "y"]);
    let [a, b, y, z] = [("k", "a"), ("k", "b"), ("x", "y"), ("x", "z")].map(|(key, p)| keyed(key, p));
    let id = b.id;
    let broker = Broker::new([a, b, y, z]);
    let running = start(holding(&inbox, &broker, rejects.handler(), None).redrive_interval(None));
    broker.drained().await;
    running.stop().await;
    let pause = Some(inbox::Backoff { first: Duration::from_secs(60), max: Duration::from_secs(60) });
    inbox.record_failure(&consumer("billing"), &Tenant::none(), id, "not yet", pause).await.unwrap();
    let moved = async |hours: i64| {
        let statement = match DB::DIALECT {
            Name::Postgres => {
                format!("UPDATE inbox_attempt SET next_at = next_at + interval '{hours} hours'")
            }
            Name::Sqlite => format!("UPDATE inbox_attempt SET next_at = next_at + {hours} * 3600000000"),
        };
        let mut tx = database.admin.begin().await.unwrap();
        DB::sql(&mut tx, Box::leak(statement.into_boxed_str())).await.unwrap();
        tx.commit().await.unwrap();
    };
    // A process whose backoff grows to six hours can postpone it this far.
    moved(4).await;
    let letters = dead_letters(&inbox).await;
    for payload in ["a", "y"] {
        inbox.discard(of(&letters, payload).id, &signature()).await.unwrap();
    }
    let running = start(holding(&inbox, &broker, rejects.handler(), None));
    // The walk goes from key to key, and `k` is before `x`.
    until("the other key goes on", async || effects(database).await == ["z"]).await;
    running.stop().await;
    assert_eq!(told(&dead_letters(&inbox).await), [(String::from("b"), "held")]);
    moved(-5).await;
    let running = start(holding(&inbox, &broker, rejects.handler(), None));
    none_is_open(&inbox).await;
    running.stop().await;
    assert_eq!(effects(database).await, ["z", "b"]);
}

/// Goal: copies of a held message that arrive alone or in a batch change neither its failures nor
/// its backoff. Oracle: the record of its attempts.
async fn copies_of_a_held_message_do_not_reset_its_count<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let rejects = Rejects::these(["a"]);
    let messages = ["a", "b"].map(|payload| keyed("k", payload));
    let copy = messages[1].clone();
    let broker = Broker::new(messages);
    let running = start(holding(&inbox, &broker, rejects.handler(), None).redrive_interval(None));
    broker.drained().await;
    running.stop().await;
    let (billing, scope) = (consumer("billing"), Tenant::none());
    let backoff = Some(inbox::Backoff::MESSAGES);
    inbox.record_failure(&billing, &scope, copy.id, "not yet", backoff).await.unwrap();
    let noted = inbox.attempt(&billing, &scope, copy.id).await.unwrap();
    assert_eq!(noted.as_ref().map(|attempt| attempt.attempts), Some(1));
    for (round, batch) in BATCHES.into_iter().enumerate() {
        let broker = Broker::new([keyed("x", &format!("other {round}")), copy.clone()]);
        let running = start(holding(&inbox, &broker, rejects.handler(), batch).redrive_interval(None));
        broker.drained().await;
        running.stop().await;
        assert_eq!(inbox.attempt(&billing, &scope, copy.id).await.unwrap(), noted, "{batch:?}");
    }
}

/// Goal: the order of each key holds while two consumers take the session from each other, messages
/// die and are redriven, and new ones arrive during the redrives. Oracle: the order of all effects,
/// including those of redriven messages.
async fn two_consumers_that_take_turns_keep_the_order<DB: TestDatabase>(database: &Database<DB>) {
    const MESSAGES: usize = 240;
    let inbox = database.inbox().await;
    let payload = |n: usize| format!("{}:{n:03}", n % 3);
    let messages = |n: usize| keyed(&format!("key-{}", n % 3), &payload(n));
    let rejects = Rejects::these((0..MESSAGES).filter(|n| n % 10 == 4).map(payload));
    let broker = Broker::new([]);
    let both = BATCHES.map(|batch| start(holding(&inbox, &broker, rejects.handler(), batch)));
    let operator = async {
        let mut decided = 0;
        while decided < MESSAGES / 10 {
            for letter in dead_letters(&inbox).await {
                if letter.reason == Reason::Rejected {
                    rejects.repair(&text(&letter.payload));
                    decided += usize::from(request(&inbox, &letter).await == Requested::Now);
                }
            }
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    };
    let sender = async {
        for n in 0..MESSAGES {
            broker.send(Ok(messages(n)));
            if n % 60 == 30 {
                broker.lose_session();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::join!(operator, sender);
    broker.drained().await;
    none_is_open(&inbox).await;
    for running in both {
        running.stop().await;
    }
    assert_once_and_in_order(&effects(database).await, MESSAGES);
}

async fn held_messages_are_redriven_after_a_restart_that_lets_keys_go_on<DB: TestDatabase>(
    database: &Database<DB>,
) {
    let inbox = database.inbox().await;
    let rejects = Rejects::these(["a"]);
    settled(&inbox, &rejects, &["a", "b", "c"]).await;
    let letters = dead_letters(&inbox).await;
    let broker = Broker::new([keyed("k", "d")]);
    let running = start(builder(&inbox, &broker, rejects.handler()).redrive_interval(SOON));
    broker.drained().await;
    assert_eq!(effects(database).await, ["d"], "its key goes on");
    rejects.repair("a");
    assert_eq!(request(&inbox, of(&letters, "a")).await, Requested::Now);
    none_is_open(&inbox).await;
    running.stop().await;
    assert_eq!(effects(database).await, ["d", "a", "b", "c"]);
}

async fn a_held_message_is_not_redriven_before_its_turn<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let rejects = Rejects::these(["a"]);
    settled(&inbox, &rejects, &["a", "b", "c"]).await;
    let letters = dead_letters(&inbox).await;
    let (a, c) = (of(&letters, "a").id, of(&letters, "c").id);
    let (options, billing, handler) = (RedriveOptions::default(), consumer("billing"), rejects.handler());
    let redriven = inbox.redrive(&billing, c, &handler, options).await;
    let requested = inbox.request_redrive(c, options, &signature()).await;
    for refused in [redriven.unwrap_err(), requested.unwrap_err()] {
        assert!(
            matches!(refused, RedriveError::Held { id, behind } if (id, behind) == (c, a)),
            "{refused:?}"
        );
        assert!(refused.to_string().contains("requeue or discard that one first"), "{refused}");
    }
    assert!(
        effects(database).await.is_empty()
            && inbox.decisions(10.try_into().unwrap()).await.unwrap().is_empty()
    );
    // In their order, all of them can be redriven by hand.
    rejects.repair("a");
    for payload in ["a", "b", "c"] {
        let redriven = inbox.redrive(&billing, of(&letters, payload).id, &handler, options).await.unwrap();
        assert_eq!(redriven, Redriven::Now(Resolution::Applied));
    }
    assert_eq!(effects(database).await, ["a", "b", "c"]);
}

async fn a_discarded_held_message_lets_those_behind_it_go_on<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let rejects = Rejects::these(["a"]);
    settled(&inbox, &rejects, &["a", "b", "c"]).await;
    let letters = dead_letters(&inbox).await;
    let discarded = inbox.discard(of(&letters, "b").id, &signature()).await.unwrap();
    assert_eq!(discarded, Redriven::Now(Resolution::Discarded));
    rejects.repair("a");
    let broker = Broker::new([of(&letters, "b").message().unwrap()]);
    let running = start(holding(&inbox, &broker, rejects.handler(), None));
    request(&inbox, of(&letters, "a")).await;
    none_is_open(&inbox).await;
    broker.drained().await;
    running.stop().await;
    assert_eq!(effects(database).await, ["a", "c"], "a copy of what was given up has no effect");
}

/// Goal: messages without a key, of another topic or of another tenant do not wait. Oracle: the
/// effects, alone and in a batch.
async fn only_the_key_of_its_tenant_and_topic_waits<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    for (round, batch) in BATCHES.into_iter().enumerate() {
        let name = |payload: &str| format!("{payload} {round}");
        let elsewhere = Message::new(Topic::new("refunds").unwrap(), message("x").kind, name("other topic"))
            .with_key(OrderingKey::new("k").unwrap());
        let broker = Broker::new([
            message(&name("dead without a key")),
            message(&name("without a key")),
            keyed("k", &name("dead")),
            keyed("k", &name("behind")),
            elsewhere,
            keyed("k", &name("tenant other")),
        ]);
        let handler = Effect::new(|message, _| {
            if message.payload.starts_with(b"dead") {
                Err(HandlerError::reject("no such price"))
            } else {
                Ok(())
            }
        });
        let tenant = |message: &Message| {
            if message.payload.starts_with(b"tenant other") {
                Tenant::new("other").unwrap()
            } else {
                Tenant::none()
            }
        };
        let running = start(holding(&inbox, &broker, handler, batch).tenant(tenant));
        broker.drained().await;
        running.stop().await;
        let mut effects = effects(database).await.split_off(3 * round);
        effects.sort_unstable();
        assert_eq!(effects, ["other topic", "tenant other", "without a key"].map(name));
        let letters = dead_letters(&inbox).await;
        let reasons = [("behind", "held"), ("dead", "rejected"), ("dead without a key", "rejected")];
        assert_eq!(told(&letters), reasons.map(|(payload, reason)| (name(payload), reason)));
        for letter in ["dead without a key", "behind", "dead"].map(|payload| of(&letters, &name(payload))) {
            inbox.discard(letter.id, &signature()).await.unwrap();
        }
    }
}

async fn a_message_refused_by_its_time_holds_its_key_and_a_reused_id_does_not<DB: TestDatabase>(
    database: &Database<DB>,
) {
    let inbox = database.inbox().await;
    let old = inbox.window().now - 20 * Duration::from_secs(86_400);
    for (round, batch) in BATCHES.into_iter().enumerate() {
        let name = |payload: &str| format!("{payload} {round}");
        let key = |key: &str| OrderingKey::new(format!("{key} {round}")).unwrap();
        let first = message(&name("first")).with_key(key("reused"));
        let broker = Broker::new([
            first.clone(),
            message(&name("again")).with_id(first.id).with_key(key("reused")),
            message(&name("passes")).with_key(key("reused")),
            message_of(old, &name("old")).with_key(key("old")),
            message(&name("waits")).with_key(key("old")),
        ]);
        let running = start(holding(&inbox, &broker, Effect::works(), batch));
        broker.drained().await;
        running.stop().await;
        assert_eq!(effects(database).await.split_off(2 * round), ["first", "passes"].map(name));
        let letters = dead_letters(&inbox).await;
        let reasons = [("again", "key_reused"), ("old", "too_old"), ("waits", "held")];
        assert_eq!(told(&letters), reasons.map(|(payload, reason)| (name(payload), reason)));
        for letter in ["again", "waits", "old"].map(|payload| of(&letters, &name(payload))) {
            inbox.discard(letter.id, &signature()).await.unwrap();
        }
    }
}

async fn a_message_in_chunks_is_held_whole<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let rejects = Rejects::these(["a"]);
    let whole = keyed("k", &format!("whole{}", "x".repeat(5_000)));
    let chunks = chunks_of(&whole);
    let broker = Broker::new([keyed("k", "a")].into_iter().chain(chunks.clone()).chain([keyed("k", "c")]));
    let running = start(holding(&inbox, &broker, rejects.handler(), None));
    broker.drained().await;
    let letters = dead_letters(&inbox).await;
    let held = of(&letters, &text(&whole.payload));
    assert_eq!((held.reason, held.message_id, letters.len()), (Reason::Held, Some(whole.id), 3));
    assert!(inbox.incomplete(10.try_into().unwrap()).await.unwrap().is_empty(), "its chunks are forgotten");
    broker.send(Ok(chunks[0].clone()));
    broker.drained().await;
    inbox.discard(of(&letters, "a").id, &signature()).await.unwrap();
    none_is_open(&inbox).await;
    running.stop().await;
    assert_eq!(effects(database).await, [text(&whole.payload), String::from("c")]);
}

/// Goal: a process whose clock runs ahead changes no order. Oracle: the order of the effects, after
/// the first held dead letter was given the highest possible id.
async fn held_messages_go_in_the_order_of_arrival_whatever_their_ids<DB: TestDatabase>(
    database: &Database<DB>,
) {
    let inbox = database.inbox().await;
    let rejects = Rejects::these(["a"]);
    settled(&inbox, &rejects, &["a", "b", "c"]).await;
    let letters = dead_letters(&inbox).await;
    let (b, last) = (of(&letters, "b").id, "ffffffff-ffff-7fff-bfff-ffffffffffff");
    let place = database.schema.as_ref().map(|schema| format!("{schema}.")).unwrap_or_default();
    let mut tx = database.admin.begin().await.unwrap();
    for sql in [
        format!("UPDATE {place}inbox_dead_letter SET id = '{last}' WHERE id = '{b}'"),
        format!("UPDATE {place}inbox_message SET dead_letter = '{last}' WHERE dead_letter = '{b}'"),
    ] {
        DB::sql(&mut tx, Box::leak(sql.into_boxed_str())).await.unwrap();
    }
    tx.commit().await.unwrap();
    inbox.discard(of(&letters, "a").id, &signature()).await.unwrap();
    let broker = Broker::new([]);
    let running = start(holding(&inbox, &broker, rejects.handler(), None));
    none_is_open(&inbox).await;
    running.stop().await;
    assert_eq!(effects(database).await, ["b", "c"]);
}

/// Goal: a message that was held until its day was forgotten still takes effect, and only once.
/// Oracle: the effects, even after a copy.
async fn a_held_message_older_than_the_memory_takes_effect<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let rejects = Rejects::these(["a"]);
    settled(&inbox, &rejects, &["a", "b"]).await;
    let letters = dead_letters(&inbox).await;
    let later = database.inbox().await;
    later.advance(Duration::from_secs(20 * 86_400));
    // As if its day had been dropped: the test cannot move the database's clock.
    let place = database.schema.as_ref().map(|schema| format!("{schema}.")).unwrap_or_default();
    let mut tx = database.admin.begin().await.unwrap();
    let forget = format!("DELETE FROM {place}inbox_message");
    DB::sql(&mut tx, Box::leak(forget.into_boxed_str())).await.unwrap();
    tx.commit().await.unwrap();
    inbox.discard(of(&letters, "a").id, &signature()).await.unwrap();
    let copy = of(&letters, "b").message().unwrap();
    let broker = Broker::new([copy.clone()]);
    let running = start(holding(&later, &broker, rejects.handler(), None).redrive_interval(None));
    broker.drained().await;
    running.stop().await;
    let letters = dead_letters(&inbox).await;
    let held = of(&letters, "b");
    assert_eq!(
        (held.reason, held.deliveries, letters.len()),
        (Reason::Held, 2, 1),
        "refused, and held still"
    );
    let broker = Broker::new([]);
    let running = start(holding(&later, &broker, rejects.handler(), None));
    none_is_open(&inbox).await;
    broker.send(Ok(copy));
    broker.drained().await;
    running.stop().await;
    assert_eq!(effects(database).await, ["b"]);
}

/// Goal: a process that lost its partition and stores a dead letter late does not hold the key for
/// no reason. Oracle: no dead letter is open afterwards.
async fn a_late_letter_of_what_took_effect_holds_nothing<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let applied = keyed("k", "applied");
    let broker = Broker::new([applied.clone()]);
    let running = start(holding(&inbox, &broker, Effect::works(), None));
    broker.drained().await;
    for (reason, letters) in [(Reason::Held, 0), (Reason::Rejected, 1), (Reason::Held, 1)] {
        let late = Delivery {
            token: DeliveryToken(1),
            message: Ok(applied.clone()),
            redelivered: false,
            origin: String::from("orders[3]@17"),
        };
        let cause = Cause::new(reason, String::from("late"), 0);
        let proof = inbox.dead_letter(&consumer("billing"), &Tenant::none(), &late, cause).await.unwrap();
        assert_eq!(proof.subject(), applied.id.as_uuid());
        let query = DeadLetterQuery { resolved_too: true, ..DeadLetterQuery::default() };
        let all = inbox.dead_letters(&query).await.unwrap();
        assert!(dead_letters(&inbox).await.is_empty() && all.len() == letters, "{all:?}");
    }
    broker.send(Ok(keyed("k", "behind")));
    broker.drained().await;
    running.stop().await;
    assert_eq!(effects(database).await, ["applied", "behind"]);
}
