//! Dead letters: nothing is lost, and a redrive takes effect only once.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::time::Duration;

use crate::inbox::database::{Database, TestDatabase};
use crate::inbox::{consumer, keyed, message, message_of};
use async_trait::async_trait;
use inbox::{
    Action, Admission, Backoff, Candidate, Cause, ConsumerName, DeadLetter, DeadLetterId, DeadLetterQuery,
    Dialect, Handler, HandlerError, Inbox, PayloadComparison, Reason, RedriveError, RedriveOptions, Redriven,
    Refusal, Resolution, Signature, Tenant, Tx,
};
use message::{ContentType, Delivery, DeliveryToken, Malformed, Message, TraceContext};

tests::cases! { "inbox/dead_letters/{on}/{case}":
    every {
        a_dead_letter_holds_the_whole_message,
        a_dead_letter_is_stored_once_and_its_deliveries_are_counted,
        a_list_without_payloads_is_small_however_large_the_dead_letters_are,
        a_message_leads_to_all_its_dead_letters,
        malformed_deliveries_of_one_payload_are_dead_letters_of_their_own,
        equal_arrivals_are_dead_letters_of_their_own_and_one_counts_a_redelivery,
        a_letter_that_dies_again_tells_what_happened_last,
        an_error_is_stored_whatever_it_holds,
        a_redrive_applies_once,
        a_late_message_is_redriven_only_when_accepted_and_only_once,
        a_late_message_with_several_dead_letters_takes_effect_once,
        a_late_redrive_reads_only_dead_letters_that_record_an_effect,
        a_failed_redrive_leaves_the_dead_letter_open,
        what_cannot_be_redriven_is_refused_and_can_be_discarded,
        a_dead_letter_stops_further_copies_until_it_is_redriven,
        a_discarded_dead_letter_is_never_applied,
        the_record_of_a_dead_letter_is_kept,
        attempts_are_counted_until_success,
        dead_letters_are_read_when_columns_are_added,
    }
}

pub(super) struct Effect {
    fails: bool,
}

#[async_trait]
impl<DB: TestDatabase + Dialect> Handler<DB> for Effect {
    async fn handle(&self, tx: &mut Tx<DB>, message: &Message) -> Result<Option<Vec<u8>>, HandlerError> {
        DB::apply(tx, "billing", message).await?;
        if self.fails { Err(HandlerError::retry("still broken")) } else { Ok(Some(b"done".to_vec())) }
    }
}

pub(super) const WORKS: Effect = Effect { fails: false };

pub(super) fn billing() -> ConsumerName {
    consumer("billing")
}

pub(super) fn delivery(message: Result<Message, Malformed>) -> Delivery {
    Delivery { token: DeliveryToken(1), message, redelivered: false, origin: String::from("orders[3]@17") }
}

pub(super) async fn store_dead_letter<DB: TestDatabase>(
    inbox: &Inbox<DB>,
    message: &Message,
    reason: Reason,
) -> DeadLetterId {
    let cause = Cause::new(reason, String::from("it broke"), 10);
    let delivery = delivery(Ok(message.clone()));
    let proof = inbox.dead_letter(&billing(), &Tenant::none(), &delivery, cause).await.unwrap();
    assert_eq!(proof.subject(), message.id.as_uuid());
    let letters = inbox.dead_letters(&DeadLetterQuery::default()).await.unwrap();
    letters.iter().rev().find(|letter| letter.message_id == Some(message.id)).unwrap().id
}

async fn a_dead_letter_holds_the_whole_message<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let mut whole = keyed("order-7", "{}").with_content_type(ContentType::json());
    whole.headers.insert("tenant", "Ä").unwrap();
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    whole.trace = Some(TraceContext::new(parent, Some(String::from("vendor=x"))).unwrap());
    let id = store_dead_letter(&inbox, &whole, Reason::Poison).await;
    let letter = inbox.dead_letter_by_id(id).await.unwrap().unwrap();
    let mut stored = letter.message().unwrap();
    assert!((stored.time - whole.time).abs() < Duration::from_millis(1));
    stored.time = whole.time;
    assert_eq!(stored, whole);
    assert_eq!((letter.reason, letter.attempts, letter.error.as_str()), (Reason::Poison, 10, "it broke"));
    assert_eq!((letter.origin.as_str(), letter.deliveries, letter.resolved), ("orders[3]@17", 1, None));
    assert!((letter.dead_at - inbox.window().now).abs() < Duration::from_secs(30));
}

async fn a_dead_letter_is_stored_once_and_its_deliveries_are_counted<DB: TestDatabase>(
    database: &Database<DB>,
) {
    let inbox = database.inbox().await;
    let one = message("one");
    let id = store_dead_letter(&inbox, &one, Reason::TooOld).await;
    assert_eq!(store_dead_letter(&inbox, &one, Reason::TooOld).await, id);
    assert_eq!(inbox.dead_letter_by_id(id).await.unwrap().unwrap().deliveries, 2);
    let other = message("other payload").with_id(one.id);
    assert_ne!(
        store_dead_letter(&inbox, &other, Reason::KeyReused).await,
        id,
        "two payloads of one id are two dead letters"
    );
    let source = message::Source::new("/t2").unwrap();
    let elsewhere = Message { source, ..one.clone() };
    let theirs = store_dead_letter(&inbox, &elsewhere, Reason::KeyReused).await;
    assert_ne!(theirs, id, "two sources of one id and payload are two dead letters");
    assert_eq!(store_dead_letter(&inbox, &elsewhere, Reason::KeyReused).await, theirs);
    assert_eq!(inbox.dead_letter_by_id(id).await.unwrap().unwrap().deliveries, 2);
    // A list begins with the oldest dead letter.
    let first = DeadLetterQuery { limit: std::num::NonZeroU32::MIN, ..DeadLetterQuery::default() };
    let page = inbox.dead_letters(&first).await.unwrap();
    assert_eq!(page.iter().map(|letter| letter.id).collect::<Vec<_>>(), [id]);
    let rest = inbox.dead_letters(&DeadLetterQuery { after: Some(id), ..first }).await.unwrap();
    assert!(rest.len() == 1 && rest[0].id > id);
    let nobody = DeadLetterQuery { consumer: Some(consumer("nobody")), ..DeadLetterQuery::default() };
    assert!(inbox.dead_letters(&nobody).await.unwrap().is_empty());
}

/// Goal: a list of 500 dead letters is not 500 sets of headers and keys of any length. Oracle: the
/// bytes of a dead letter in the list, and its whole text when it is read alone.
async fn a_list_without_payloads_is_small_however_large_the_dead_letters_are<DB: TestDatabase>(
    database: &Database<DB>,
) {
    let inbox = database.inbox().await;
    let small = Malformed {
        problem: String::from("no id"),
        topic: String::from("orders"),
        key: Some(String::from("é")),
        payload: b"{}".as_slice().into(),
        ..Malformed::default()
    };
    let headers = (0..200).map(|n| pair(&format!("name-{n}"), &"x".repeat(10_000))).collect();
    store_malformed(&inbox, Malformed { key: Some("é".repeat(100_000)), headers, ..small.clone() }).await;
    store_malformed(&inbox, small).await;
    for resolved_too in [false, true] {
        let query = DeadLetterQuery { resolved_too, ..DeadLetterQuery::default() };
        let [large, _] = &inbox.dead_letters(&query).await.unwrap()[..] else { panic!("two") };
        let bytes = |letter: &DeadLetter| {
            let headers = letter.headers.iter().map(|(name, value)| name.len() + value.len());
            letter.key.as_ref().map_or(0, String::len) + headers.sum::<usize>()
        };
        assert!(bytes(large) > 2_000_000, "read whole: {}", bytes(large));
        let query = DeadLetterQuery { with_payloads: false, ..query };
        let [large, small] = &inbox.dead_letters(&query).await.unwrap()[..] else { panic!("two") };
        assert!(bytes(large) < 4_000, "{}", bytes(large));
        let key = large.key.as_deref().unwrap();
        assert!(key.starts_with("éé") && key.ends_with("é...") && key.chars().count() == 1_027);
        assert_eq!(large.headers.len(), 100);
        assert_eq!(large.headers[1], pair("name-1", ""));
        assert_eq!((small.key.as_deref(), small.headers.len()), (Some("é"), 0));
    }
}

/// Goal: the history of a message contains its dead letters, including closed ones and those that
/// the guard refused, however many others there are. Oracle: the ids as they were stored and
/// closed.
async fn a_message_leads_to_all_its_dead_letters<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let one = message("one");
    let discarded = store_dead_letter(&inbox, &one, Reason::Poison).await;
    inbox.discard(discarded, &signature()).await.unwrap();
    let again = store_dead_letter(&inbox, &one, Reason::Poison).await;
    let refused = message("another payload").with_id(one.id);
    let refused = store_dead_letter(&inbox, &refused, Reason::KeyReused).await;
    store_dead_letter(&inbox, &message("other"), Reason::Poison).await;
    let of = async |id, consumer: Option<&ConsumerName>| {
        let letters = inbox.dead_letters_of(id, consumer).await.unwrap();
        assert!(letters.iter().all(|letter| letter.payload.is_empty() && letter.payload_bytes > 0));
        letters.iter().map(|letter| letter.id).collect::<Vec<_>>()
    };
    let id = one.id.as_uuid();
    assert_eq!(of(id, None).await, [refused, again, discarded], "open ones first");
    assert_eq!(of(id, Some(&billing())).await, [refused, again, discarded]);
    assert_eq!(of(id, Some(&consumer("shipping"))).await, []);
    assert_eq!(of(uuid::Uuid::now_v7(), None).await, []);
}

/// Returns a delivery of a queue whose broker assigns neither an id nor a position.
fn from_queue(malformed: Malformed) -> Delivery {
    Delivery { origin: String::from("queue orders"), ..delivery(Err(malformed)) }
}

fn pair(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

async fn store_malformed<DB: TestDatabase>(inbox: &Inbox<DB>, malformed: Malformed) {
    let cause = Cause::new(Reason::Malformed, malformed.problem.clone(), 0);
    let delivery = from_queue(malformed);
    let proof = inbox.dead_letter(&billing(), &Tenant::none(), &delivery, cause).await.unwrap();
    assert_eq!(proof.subject(), delivery.subject());
}

async fn letters<DB: TestDatabase>(inbox: &Inbox<DB>) -> Vec<DeadLetter> {
    inbox.dead_letters(&DeadLetterQuery::default()).await.unwrap()
}

/// Goal: of a foreign producer's deliveries with equal payloads, each is stored with all its parts
/// and recognised when redelivered. Oracle: the dead letters and their counts.
async fn malformed_deliveries_of_one_payload_are_dead_letters_of_their_own<DB: TestDatabase>(
    database: &Database<DB>,
) {
    let inbox = database.inbox().await;
    let one = Malformed {
        problem: String::from("no id"),
        topic: String::from("orders"),
        headers: vec![pair("tenant", "t1"), pair("trace", "a")],
        properties: vec![pair("amqp.correlation_id", "c-1")],
        broker_notes: vec![pair("x-delivery-count", "0")],
        payload: br#"{"amount":10}"#.as_slice().into(),
        ..Malformed::default()
    };
    let deliveries = [
        one.clone(),
        Malformed { headers: vec![pair("tenant", "t2"), pair("trace", "a")], ..one.clone() },
        // The same names and values of headers, split at another position.
        Malformed { headers: vec![pair("tenant", "t1tracea")], ..one.clone() },
        Malformed { properties: vec![pair("amqp.correlation_id", "c-2")], ..one.clone() },
        Malformed { key: Some(String::from("k")), ..one.clone() },
    ];
    for malformed in deliveries.clone() {
        store_malformed(&inbox, malformed).await;
    }
    let stored = letters(&inbox).await;
    let kept = |letter: &DeadLetter| (letter.key.clone(), letter.headers.clone(), letter.deliveries);
    let arrived = |it: &Malformed| {
        let all = [&it.headers, &it.properties, &it.broker_notes].into_iter().flatten().cloned();
        (it.key.clone(), all.collect::<Vec<_>>(), 1)
    };
    assert_eq!(
        stored.iter().map(kept).collect::<Vec<_>>(),
        deliveries.iter().map(arrived).collect::<Vec<_>>(),
        "each with everything that arrived"
    );
    for mut malformed in deliveries {
        malformed.broker_notes = vec![pair("x-delivery-count", "1"), pair("x-acquired-count", "2")];
        malformed.headers.reverse();
        store_malformed(&inbox, malformed).await;
    }
    let counts: Vec<u32> = letters(&inbox).await.iter().map(|letter| letter.deliveries).collect();
    assert_eq!(counts, [2; 5], "each came again");
}

/// Goal: two indistinguishable deliveries make two dead letters when the broker delivers each for
/// the first time. A redelivery is counted, and never lost. Oracle: the dead letters and their
/// counts.
async fn equal_arrivals_are_dead_letters_of_their_own_and_one_counts_a_redelivery<DB: TestDatabase>(
    database: &Database<DB>,
) {
    let inbox = database.inbox().await;
    let webhook = |first_arrival: Option<u128>| Malformed {
        problem: String::from("no id"),
        topic: String::from("orders"),
        first_arrival: first_arrival.map(uuid::Uuid::from_u128),
        payload: b"{}".as_slice().into(),
        ..Malformed::default()
    };
    let counts =
        async || -> Vec<u32> { letters(&inbox).await.iter().map(|letter| letter.deliveries).collect() };
    // A redelivery without a dead letter: its consumer ended during the first delivery.
    store_malformed(&inbox, webhook(None)).await;
    assert_eq!(counts().await, [1]);
    for arrival in 1..=3 {
        store_malformed(&inbox, webhook(Some(arrival))).await;
    }
    assert_eq!(counts().await, [1, 1, 1, 1]);
    // The answer to a commit was lost, so the same delivery is stored again.
    store_malformed(&inbox, webhook(Some(2))).await;
    assert_eq!(counts().await, [1, 1, 2, 1]);
    for _ in 0..3 {
        store_malformed(&inbox, webhook(None)).await;
    }
    assert_eq!(counts().await, [2, 2, 2, 2], "a redelivery counts where least was counted");
    for letter in letters(&inbox).await {
        assert_eq!(
            inbox.discard(letter.id, &signature()).await.unwrap(),
            Redriven::Now(Resolution::Discarded)
        );
    }
    store_malformed(&inbox, webhook(None)).await;
    assert_eq!(counts().await, [1], "nobody looks at what was given up");
}

/// The scope function is fixed, an old offset is read again, and now the handler fails.
async fn a_letter_that_dies_again_tells_what_happened_last<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let (open, given_up) = (message("open"), message("given up"));
    let id = store_dead_letter(&inbox, &open, Reason::NoTenant).await;
    let closed = store_dead_letter(&inbox, &given_up, Reason::NoTenant).await;
    assert_eq!(inbox.discard(closed, &signature()).await.unwrap(), Redriven::Now(Resolution::Discarded));
    assert_eq!(store_dead_letter(&inbox, &open, Reason::Poison).await, id);
    let successor = store_dead_letter(&inbox, &given_up, Reason::Poison).await;
    assert_ne!(successor, closed, "nobody looks at what was given up");
    // The scope function breaks again, but the later reason stays.
    assert_eq!(store_dead_letter(&inbox, &open, Reason::NoTenant).await, id);
    for (id, deliveries) in [(id, 3), (successor, 1)] {
        let letter = inbox.dead_letter_by_id(id).await.unwrap().unwrap();
        assert_eq!((letter.reason, letter.deliveries, letter.resolved), (Reason::Poison, deliveries, None));
        let redriven = inbox.redrive(&billing(), id, &WORKS, RedriveOptions::default()).await.unwrap();
        assert_eq!(redriven, Redriven::Now(Resolution::Applied));
        let copy = delivery(Ok(letter.message().unwrap()));
        let cause = Cause::new(Reason::TooOld, String::from("it took effect long ago"), 0);
        drop(inbox.dead_letter(&billing(), &Tenant::none(), &copy, cause).await.unwrap());
        let letter = inbox.dead_letter_by_id(id).await.unwrap().unwrap();
        assert_eq!((letter.reason, letter.deliveries), (Reason::Poison, deliveries + 1), "as it was closed");
    }
}

async fn an_error_is_stored_whatever_it_holds<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let cause = Cause::new(Reason::NoTenant, format!("tenant \0 {}", "ä".repeat(5_000)), 0);
    let dead = delivery(Ok(message("one")));
    drop(inbox.dead_letter(&billing(), &Tenant::none(), &dead, cause).await.unwrap());
    let [letter] = &inbox.dead_letters(&DeadLetterQuery::default()).await.unwrap()[..] else { panic!("one") };
    assert!(letter.error.starts_with("tenant \u{fffd} ä") && letter.error.len() <= 4_096, "{}", letter.error);
}

async fn a_redrive_applies_once<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let (poison, applied) = (message("poison"), message("applied meanwhile"));
    let options = RedriveOptions::default();
    let id = store_dead_letter(&inbox, &poison, Reason::Poison).await;
    let racing: Vec<_> = (0..4)
        .map(|_| {
            let inbox = inbox.clone();
            tokio::spawn(async move { inbox.redrive(&billing(), id, &WORKS, options).await.unwrap() })
        })
        .collect();
    let mut now = 0;
    for racer in racing {
        match racer.await.unwrap() {
            Redriven::Now(Resolution::Applied) => now += 1,
            Redriven::Before { resolution: Resolution::Applied, .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(now, 1);

    // The dead letter of a refused message stops no copies, because the message was not handled.
    let id = store_dead_letter(&inbox, &applied, Reason::TooOld).await;
    let mut tx = inbox.begin().await.unwrap();
    drop(tx.admit(&billing(), &Tenant::none(), &applied).await.unwrap());
    DB::apply(&mut tx, "billing", &applied).await.unwrap();
    drop(tx.commit().await.unwrap());
    let redriven = inbox.redrive(&billing(), id, &WORKS, options).await.unwrap();
    assert_eq!(redriven, Redriven::Now(Resolution::Duplicate));
    assert_eq!(DB::effects(&database.pool, "billing").await, ["poison", "applied meanwhile"]);
    assert!(inbox.dead_letters(&DeadLetterQuery::default()).await.unwrap().is_empty());

    // The inbox knows the redriven message and its result.
    let mut tx = inbox.begin().await.unwrap();
    let admission = tx.admit(&billing(), &Tenant::none(), &poison).await.unwrap();
    let Admission::Duplicate(duplicate) = admission else { panic!() };
    assert_eq!(duplicate.result.as_deref(), Some(&b"done"[..]));
}

async fn a_late_message_is_redriven_only_when_accepted_and_only_once<DB: TestDatabase>(
    database: &Database<DB>,
) {
    let day = Duration::from_secs(86_400);
    let inbox = database.inbox().await;
    let short = database.options().retention(day);
    let short = Inbox::<DB>::open(database.pool.clone(), short).await.unwrap();
    let now = inbox.window().now;
    let accept = RedriveOptions::default().accept_late(true);
    // The day of the first message has been dropped. The second is too old only for a short
    // retention.
    let (gone, late) = (message_of(now - 30 * day, "gone"), message_of(now - 5 * day, "late"));
    for (message, resolution) in [(&gone, Resolution::AppliedLate), (&late, Resolution::Applied)] {
        let id = store_dead_letter(&short, message, Reason::TooOld).await;
        let refused = short.redrive(&billing(), id, &WORKS, RedriveOptions::default()).await;
        assert!(matches!(refused, Err(RedriveError::Refused(Refusal::TooOld { .. }))), "{refused:?}");
        let redriven = short.redrive(&billing(), id, &WORKS, accept).await.unwrap();
        assert_eq!(redriven, Redriven::Now(resolution));
        // Another late delivery finds the closed dead letter, and a second redrive has no effect.
        let cause = Cause::new(Reason::TooOld, String::from("again"), 0);
        let again = delivery(Ok(message.clone()));
        drop(short.dead_letter(&billing(), &Tenant::none(), &again, cause).await.unwrap());
        let redriven = short.redrive(&billing(), id, &WORKS, accept).await.unwrap();
        assert!(matches!(redriven, Redriven::Before { .. }), "{redriven:?}");
    }
    assert_eq!(DB::effects(&database.pool, "billing").await, ["gone", "late"]);
}

/// Goal: a message that was sent again with other bytes, and is too old for an inbox row, takes
/// effect once, even if both dead letters are redriven at the same moment. Another payload under
/// its id stays refused. Oracle: the effects and the resolutions.
/// Goal: a late redrive does not load every other dead letter of its message, with its payload.
/// Oracle: the redrive succeeds although the other one, which is open, cannot be read.
async fn a_late_redrive_reads_only_dead_letters_that_record_an_effect<DB: TestDatabase>(
    database: &Database<DB>,
) {
    let inbox = database.inbox().await;
    let accept = RedriveOptions::default().accept_late(true);
    let billing = billing();
    let redrive = async |id| inbox.redrive(&billing, id, &WORKS, accept).await;
    let first = message_of(inbox.window().now - Duration::from_secs(90 * 86_400), "first");
    let id = store_dead_letter(&inbox, &first, Reason::TooOld).await;
    let other = message("other").with_id(first.id);
    store_dead_letter(&inbox, &other, Reason::KeyReused).await;
    let mut admin = database.admin.acquire().await.unwrap();
    let spoil = "UPDATE inbox_dead_letter SET headers = '5' WHERE reason = 'key_reused'";
    DB::sql(&mut admin, spoil).await.unwrap();
    assert_eq!(redrive(id).await.unwrap(), Redriven::Now(Resolution::AppliedLate));
    assert!(inbox.dead_letters(&DeadLetterQuery::default()).await.is_err(), "it cannot be read");
    assert_eq!(DB::effects(&database.pool, "billing").await.len(), 1);
}

async fn a_late_message_with_several_dead_letters_takes_effect_once<DB: TestDatabase>(
    database: &Database<DB>,
) {
    let options = database.options().payloads(PayloadComparison::CanonicalJson);
    let inbox = Inbox::<DB>::open(database.pool.clone(), options).await.unwrap();
    let accept = RedriveOptions::default().accept_late(true);
    let billing = billing();
    let redrive = |id| inbox.redrive(&billing, id, &WORKS, accept);
    let long_ago = inbox.window().now - Duration::from_secs(90 * 86_400);
    for round in 0..10 {
        let json =
            |payload: String| Message { content_type: ContentType::json(), ..message_of(long_ago, &payload) };
        let first = json(format!(r#"{{"round":{round},"cents":5}}"#));
        let again = json(format!(r#"{{"cents":5,"round":{round}}}"#)).with_id(first.id);
        let other = json(format!(r#"{{"cents":6,"round":{round}}}"#)).with_id(first.id);
        let mut ids = Vec::new();
        for copy in [&first, &again, &other] {
            ids.push(store_dead_letter(&inbox, copy, Reason::TooOld).await);
        }
        // A redrive that loses a deadlock is tried again.
        let (one, two) = tokio::join!(redrive(ids[0]), redrive(ids[1]));
        let mut resolutions = Vec::new();
        for (redriven, id) in [(one, ids[0]), (two, ids[1])] {
            let redriven = match redriven {
                Err(RedriveError::Store(error)) if error.is_transient() => redrive(id).await,
                redriven => redriven,
            };
            let Ok(Redriven::Now(resolution)) = redriven else { panic!("{redriven:?}") };
            resolutions.push(resolution.as_str());
        }
        resolutions.sort_unstable();
        assert_eq!(resolutions, ["applied_late", "duplicate"]);
        let refused = redrive(ids[2]).await;
        assert!(matches!(refused, Err(RedriveError::Refused(Refusal::KeyReused { .. }))), "{refused:?}");
        assert_eq!(inbox.dead_letter_by_id(ids[2]).await.unwrap().unwrap().resolved, None);
        assert_eq!(DB::effects(&database.pool, "billing").await.len(), round + 1);
    }
}

async fn a_failed_redrive_leaves_the_dead_letter_open<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let poison = message("poison");
    let id = store_dead_letter(&inbox, &poison, Reason::Poison).await;
    let fails = Effect { fails: true };
    let failed = inbox.redrive(&billing(), id, &fails, RedriveOptions::default()).await.unwrap_err();
    assert!(matches!(failed, RedriveError::Handler(_)) && failed.report().ends_with("still broken"));
    assert!(DB::effects(&database.pool, "billing").await.is_empty());
    assert_eq!(inbox.dead_letter_by_id(id).await.unwrap().unwrap().resolved, None);
    let redriven = inbox.redrive(&billing(), id, &WORKS, RedriveOptions::default()).await.unwrap();
    assert_eq!(redriven, Redriven::Now(Resolution::Applied));
}

async fn what_cannot_be_redriven_is_refused_and_can_be_discarded<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let malformed = Malformed {
        problem: String::from("no id"),
        topic: String::from("orders\0"),
        headers: vec![(String::from("x\0"), String::from("\u{1}y"))],
        payload: b"\0raw".as_slice().into(),
        ..Malformed::default()
    };
    let malformed = delivery(Err(malformed));
    let cause = Cause::new(Reason::Malformed, String::from("no id"), 0);
    let proof = inbox.dead_letter(&billing(), &Tenant::none(), &malformed, cause).await.unwrap();
    assert_eq!(proof.subject(), malformed.subject());
    let id = inbox.dead_letters(&DeadLetterQuery::default()).await.unwrap()[0].id;
    let redrive = |name: &str, id| {
        let (inbox, name) = (inbox.clone(), consumer(name));
        async move { inbox.redrive(&name, id, &WORKS, RedriveOptions::default()).await }
    };
    assert!(matches!(redrive("billing", id).await, Err(RedriveError::NotAMessage { .. })));
    assert!(matches!(redrive("shipping", id).await, Err(RedriveError::OtherConsumer { .. })));
    let nowhere = DeadLetterId(uuid::Uuid::nil());
    assert!(matches!(redrive("billing", nowhere).await, Err(RedriveError::NotFound { .. })));
    assert_eq!(inbox.discard(id, &signature()).await.unwrap(), Redriven::Now(Resolution::Discarded));
    assert!(matches!(inbox.discard(id, &signature()).await.unwrap(), Redriven::Before { .. }));
    let decisions = inbox.decisions(std::num::NonZeroU32::MIN).await.unwrap();
    let [decision] = &decisions[..] else { panic!("{decisions:?}") };
    assert_eq!(
        (decision.subject.dead_letter, decision.action, &decision.signature),
        (id, Action::Discard, &signature())
    );
    assert_eq!(decision.subject.outcome.as_deref(), Some("discarded"));
    assert_eq!(inbox.decisions_of(&[nowhere, id], std::num::NonZeroU32::MIN).await.unwrap(), decisions);
    assert_eq!(inbox.decisions_of(&[nowhere], std::num::NonZeroU32::MIN).await.unwrap(), []);
}

fn signature() -> Signature {
    Signature { actor: String::from("ann"), note: String::from("no longer wanted"), selection: None }
}

/// Admits a copy alone and as part of a batch. Returns the dead letter that stops each.
async fn admitted_again<DB: TestDatabase>(inbox: &Inbox<DB>, copy: &Message) -> [Option<DeadLetterId>; 2] {
    let mut tx = inbox.begin().await.unwrap();
    let alone = tx.admit(&billing(), &Tenant::none(), copy).await.unwrap();
    let candidates = [Candidate { tenant: Tenant::none(), message: copy }];
    let mut batch = tx.admit_batch(&billing(), &candidates).await.unwrap();
    tx.rollback().await.unwrap();
    [alone, batch.remove(0).unwrap()].map(|admission| match admission {
        Admission::Duplicate(duplicate) => duplicate.dead_letter,
        Admission::Fresh(_) => panic!("a copy of a dead letter would take effect"),
    })
}

async fn a_dead_letter_stops_further_copies_until_it_is_redriven<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    for reason in [Reason::Poison, Reason::Rejected] {
        let dead = message(reason.as_str());
        let id = store_dead_letter(&inbox, &dead, reason).await;
        assert_eq!(admitted_again(&inbox, &dead).await, [Some(id), Some(id)], "open");
        let fails = Effect { fails: true };
        drop(inbox.redrive(&billing(), id, &fails, RedriveOptions::default()).await.unwrap_err());
        assert_eq!(admitted_again(&inbox, &dead).await, [Some(id), Some(id)], "failed again");
        let redriven = inbox.redrive(&billing(), id, &WORKS, RedriveOptions::default()).await.unwrap();
        assert_eq!(redriven, Redriven::Now(Resolution::Applied));
        assert_eq!(admitted_again(&inbox, &dead).await, [None, None], "took effect");
    }
}

async fn a_discarded_dead_letter_is_never_applied<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let now = inbox.window().now;
    // An open dead letter of the early message leaves no row, because the message is refused at
    // present.
    let early = message_of(now + Duration::from_secs(3_600), "early");
    for (dead, reason) in [
        (message("poison"), Reason::Poison),
        (message("rejected"), Reason::Rejected),
        (early, Reason::FromTheFuture),
    ] {
        let id = store_dead_letter(&inbox, &dead, reason).await;
        assert_eq!(inbox.discard(id, &signature()).await.unwrap(), Redriven::Now(Resolution::Discarded));
        let wide = database.options().skew_max(Duration::from_secs(7_200));
        let later = Inbox::<DB>::open(database.pool.clone(), wide).await.unwrap();
        assert_eq!(admitted_again(&later, &dead).await, [Some(id), Some(id)], "{reason}");
        let redriven = inbox.redrive(&billing(), id, &WORKS, RedriveOptions::default()).await.unwrap();
        assert!(matches!(redriven, Redriven::Before { resolution: Resolution::Discarded, .. }));
    }
    // A message whose day is forgotten is refused because of its time.
    let gone = message_of(now - Duration::from_secs(90 * 86_400), "gone");
    let id = store_dead_letter(&inbox, &gone, Reason::TooOld).await;
    assert_eq!(inbox.discard(id, &signature()).await.unwrap(), Redriven::Now(Resolution::Discarded));
    // A message whose day lies further ahead than days are created is refused because of its time
    // as well.
    let far = message_of(now + Duration::from_secs(800 * 86_400), "far");
    let id = store_dead_letter(&inbox, &far, Reason::FromTheFuture).await;
    assert_eq!(inbox.discard(id, &signature()).await.unwrap(), Redriven::Now(Resolution::Discarded));
    // If the message has taken effect meanwhile, its discard reports that.
    let early = message_of(now + Duration::from_secs(7_000), "applied");
    let id = store_dead_letter(&inbox, &early, Reason::FromTheFuture).await;
    let wide = database.options().skew_max(Duration::from_secs(7_200));
    let later = Inbox::<DB>::open(database.pool.clone(), wide).await.unwrap();
    let mut tx = later.begin().await.unwrap();
    drop(tx.admit(&billing(), &Tenant::none(), &early).await.unwrap());
    drop(tx.commit().await.unwrap());
    assert_eq!(inbox.discard(id, &signature()).await.unwrap(), Redriven::Now(Resolution::Duplicate));
}

async fn the_record_of_a_dead_letter_is_kept<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let gone = message_of(inbox.window().now - Duration::from_secs(90 * 86_400), "gone");
    let id = store_dead_letter(&inbox, &gone, Reason::TooOld).await;
    let remove = "DELETE FROM inbox_dead_letter";
    let reopen = "UPDATE inbox_dead_letter SET resolution = NULL, resolved_at = NULL";
    let sql = async |statement: &'static str| {
        let mut tx = inbox.begin().await.unwrap();
        let done = DB::sql(&mut tx, statement).await;
        tx.rollback().await.unwrap();
        done
    };
    assert!(sql(remove).await.is_err(), "it is open");
    let accept = RedriveOptions::default().accept_late(true);
    let redriven = inbox.redrive(&billing(), id, &WORKS, accept).await.unwrap();
    assert_eq!(redriven, Redriven::Now(Resolution::AppliedLate));
    assert!(sql(remove).await.is_err() && sql(reopen).await.is_err());
    assert!(inbox.dead_letter_by_id(id).await.unwrap().unwrap().resolved.is_some());
}

async fn attempts_are_counted_until_success<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let (none, message) = (Tenant::none(), message("x"));
    assert_eq!(inbox.attempt(&billing(), &none, message.id).await.unwrap(), None);
    let backoff = Backoff::MESSAGES;
    // A failure that does not count as an attempt is still recorded.
    let noted = inbox.record_failure(&billing(), &none, message.id, "away", None).await.unwrap();
    assert_eq!((noted.attempts, noted.delay), (0, Duration::ZERO));
    let attempt = inbox.attempt(&billing(), &none, message.id).await.unwrap().unwrap();
    assert_eq!((attempt.attempts, attempt.last_error.as_str()), (0, "away"));
    for expected in 1..=3 {
        let error = format!("failure {expected}");
        let counted =
            inbox.record_failure(&billing(), &none, message.id, &error, Some(backoff)).await.unwrap();
        assert!(counted.attempts == expected && counted.delay <= backoff.bound(expected));
        assert!(counted.age < Duration::from_secs(60), "{counted:?}");
    }
    let attempt = inbox.attempt(&billing(), &none, message.id).await.unwrap().unwrap();
    assert_eq!((attempt.attempts, attempt.last_error.as_str()), (3, "failure 3"));
    assert!(attempt.next_at >= attempt.first_failed_at);
    assert_eq!(inbox.attempt(&consumer("shipping"), &none, message.id).await.unwrap(), None);
}

/// An upgrade adds columns while consumers of the previous version keep running, with statements
/// that their connections have prepared.
async fn dead_letters_are_read_when_columns_are_added<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let id = store_dead_letter(&inbox, &message("poison"), Reason::Poison).await;
    let query = DeadLetterQuery { resolved_too: true, ..DeadLetterQuery::default() };
    let some = std::num::NonZeroU32::new(10).unwrap();
    let read = async || {
        assert_eq!(inbox.dead_letters(&query).await.unwrap()[0].id, id);
        assert_eq!(inbox.dead_letter_by_id(id).await.unwrap().unwrap().error, "it broke");
        inbox.incomplete(some).await.unwrap();
        inbox.decisions(some).await.unwrap().len()
    };
    assert_eq!(read().await, 0);
    let mut tx = database.admin.begin().await.unwrap();
    for table in ["inbox_dead_letter", "inbox_audit", "inbox_chunk_set"] {
        let place = database.schema.as_ref().map(|schema| format!("{schema}.")).unwrap_or_default();
        let sql = format!("ALTER TABLE {place}{table} ADD COLUMN later text");
        DB::sql(&mut tx, Box::leak(sql.into_boxed_str())).await.unwrap();
    }
    tx.commit().await.unwrap();
    assert_eq!(inbox.discard(id, &signature()).await.unwrap(), Redriven::Now(Resolution::Discarded));
    assert_eq!(read().await, 1);
}
