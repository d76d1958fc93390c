//! Operations against a database with scripted answers.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::convert::Infallible;

use message::token::{Drift, DriftWindow, ScheduledTooFar};
use message::{
    ConsumerName, Delivery, DeliveryToken, Event, Malformed, Message, MessageId, NewMessage, SizeLimit,
};
use serde_json::json;
use time::{Duration, OffsetDateTime};

use crate::{
    Admission, Call, Enqueued, Error, Failed, Failure, Inbox, Known, Operation, Outbox, Refusal, Refused,
    Row, Statement, Value,
};

/// A database that answers each statement with its next row, and keeps what was sent.
#[derive(Default)]
struct Database {
    answers: Vec<serde_json::Value>,
    sent: Vec<Statement>,
}

impl Database {
    fn answering(answers: impl IntoIterator<Item = serde_json::Value>) -> Self {
        let mut answers: Vec<_> = answers.into_iter().collect();
        answers.reverse();
        Self { answers, sent: Vec::new() }
    }

    fn run<O: Operation>(&mut self, operation: O) -> Result<O::Output, Error<Infallible>> {
        let mut call = Call::new(operation);
        while let Some(statement) = call.statement() {
            let answer = self.answers.pop().map(|answer| answer.to_string());
            call.answer(Ok(answer.map(|answer| Row { answer: Some(answer), payload: None })));
            self.sent.push(statement);
        }
        call.end()
    }

    /// Returns what the statements do, in a word each.
    fn did(&self) -> Vec<&'static str> {
        const WORDS: [&str; 9] = [
            "inbox_count_failure",
            "inbox_store_dead_letter",
            "inbox_admit",
            "inbox_maintain",
            "outbox_enqueue",
            "outbox_stored",
            "inbox_message",
            "outbox_message",
            "roll it back",
        ];
        let word = |text: &str| WORDS.into_iter().find(|word| text.contains(word)).unwrap();
        self.sent.iter().map(|statement| word(statement.text())).collect()
    }
}

fn refused(message: NewMessage, outbox: &Outbox) -> String {
    let mut database = Database::default();
    let error = database.run(outbox.enqueue(message)).unwrap_err();
    // Nothing but the statement that keeps the transaction from committing.
    assert_eq!(database.did(), ["roll it back"], "{error}");
    error.to_string()
}

fn now() -> OffsetDateTime {
    OffsetDateTime::now_utc()
}

fn look(at: OffsetDateTime, known: serde_json::Value) -> serde_json::Value {
    json!({"now": at.unix_timestamp_nanos() / 1_000, "known": known})
}

fn message() -> Message {
    let message = Message::new("orders".parse().unwrap(), "order.placed".parse().unwrap(), "{}");
    message.with_key("ann".parse().unwrap())
}

fn inbox() -> Inbox {
    Inbox::new(ConsumerName::new("billing").unwrap())
}

#[test]
fn a_message_that_breaks_a_rule_is_refused_before_its_statement_with_the_librarys_text() {
    let outbox = Outbox::new();
    for (message, expected) in [
        (NewMessage::new(""), "topic is empty; give it 1 to 255 bytes"),
        (NewMessage::new("orders").key("k".repeat(256)), "has 256 bytes; the limit is 255"),
        (NewMessage::new("orders").header("ce_id", "x"), "reserved"),
        (NewMessage::new("orders").header("tenant", "a\0b"), "'\\0'"),
        (NewMessage::new("orders").header("tenant", "x".repeat(8_193)), "8193 bytes; the limit is 8192"),
    ] {
        let library = prepared(message.clone()).unwrap_err().to_string();
        let text = refused(message, &outbox);
        assert!(text == library && text.contains(expected), "{text}");
    }
}

fn prepared(message: NewMessage) -> Result<message::Prepared, message::InvalidMessage> {
    message.prepare(|| Ok(MessageId::new()), || None)
}

#[test]
fn a_message_over_the_limit_of_its_topic_is_refused_and_one_of_exactly_the_limit_is_not() {
    let envelope = SizeLimit { message_bytes_max: 0, ..SizeLimit::SQS };
    let outbox = Outbox::new().topic_limit("orders".parse().unwrap(), SizeLimit::SQS);
    let overhead = envelope.check_without_source(&message()).unwrap_err().bytes - message().payload.len();
    let of = |bytes| NewMessage::from(Message { payload: vec![0; bytes].into(), ..message() });
    let largest = SizeLimit::SQS.message_bytes_max - overhead;
    let text = refused(of(largest + 1), &outbox);
    assert!(text.contains("SQS takes at most 1048576: shorten the payload"), "{text}");
    let mut database = Database::default();
    let _ = database.run(outbox.enqueue(of(largest)));
    assert_eq!(database.did()[0], "outbox_stored");
}

#[test]
fn a_message_that_no_consumer_would_accept_at_delivery_is_refused() {
    let (id, deliver_at) = (MessageId::new(), now() + Duration::days(15));
    let text = refused(NewMessage::new("orders").id(id).deliver_at(deliver_at), &Outbox::new());
    let latest_at = id.generated_at() + Duration::days(14);
    assert_eq!(text, ScheduledTooFar { id, deliver_at, latest_at }.to_string());
    let outbox = Outbox::new().ids_accepted(DriftWindow::WIDEST);
    let mut database = Database::default();
    let _ = database.run(outbox.enqueue(NewMessage::new("orders").deliver_at(deliver_at)));
    assert_eq!(database.did()[0], "outbox_enqueue");
}

#[test]
fn the_transaction_of_a_message_is_returned() {
    let id = MessageId::new();
    let mut database = Database::answering([json!({"id": id, "transaction": "7"})]);
    let enqueued = database.run(Outbox::new().enqueue(NewMessage::new("orders"))).unwrap();
    assert_eq!(enqueued, Enqueued { id, transaction: Some(String::from("7")) });
    assert!(!enqueued.is_duplicate());
    let mut database = Database::answering([json!({"is_held": false})]);
    let error = database.run(Outbox::new().verify(&enqueued)).unwrap_err();
    assert!(matches!(error.refused(), Some(Refused::Ended { .. })), "{error}");
    assert_eq!(database.did(), ["outbox_message", "roll it back"]);
}

#[test]
fn a_supplied_id_is_checked_by_the_clock_of_the_database() {
    let at = now() - Duration::days(20);
    let id = MessageId::derived(at, ["order-7"]).unwrap();
    let enqueue = |now| {
        let mut database =
            Database::answering([look(now, json!(null)), json!({"id": id, "transaction": "7"})]);
        let done = database.run(Outbox::new().enqueue(NewMessage::new("orders").id(id)));
        (done, database.did())
    };
    let (done, did) = enqueue(at);
    assert_eq!((done.unwrap().id(), did), (id, vec!["outbox_stored", "outbox_enqueue"]));
    let (done, did) = enqueue(now());
    let error = done.unwrap_err();
    assert!(
        matches!(error.refused(), Some(Refused::Drift(drift)) if matches!(**drift, Drift::TooOld { .. }))
    );
    assert_eq!(did, ["outbox_stored", "roll it back"]);
}

#[test]
fn a_message_under_an_id_that_is_known_is_a_duplicate_or_refused_with_what_differs() {
    let message = message();
    let known = |topic: &str, tenant: &str| {
        json!({
            "fingerprint": message::Fingerprint::of(&message).to_string(),
            "topic": topic, "key": "ann", "headers": {"tenant": message::digest("tenant", tenant).to_string()}
        })
    };
    let enqueue = |known| {
        let again = NewMessage::from(message.clone()).header("tenant", "acme").header("x-request-id", "2");
        let mut database = Database::answering([look(now(), known)]);
        let done = database.run(Outbox::new().enqueue(again));
        (done, database.did())
    };
    let (done, did) = enqueue(known("orders", "acme"));
    assert!(done.unwrap().is_duplicate() && did == ["outbox_stored"]);
    let (done, did) = enqueue(known("bills", "other"));
    let error = done.unwrap_err();
    let Some(Refused::IdReused(reused)) = error.refused() else { panic!("{error}") };
    assert_eq!((reused.id, reused.topic.as_str()), (message.id, "orders"));
    assert!(error.to_string().contains("topic and another header tenant"), "{error}");
    assert_eq!(did, ["outbox_stored", "roll it back"]);
}

#[test]
fn an_event_has_its_topic_kind_and_key_and_the_parameters_have_an_order() {
    #[derive(serde::Serialize)]
    struct Placed(u32);
    impl Event for Placed {
        const TOPIC: &'static str = "orders";
        const KIND: &'static str = "order.placed";
        fn key(&self) -> Option<String> {
            Some(String::from("ann"))
        }
    }
    let mut call: Call<_, Infallible> = Call::new(Outbox::new().enqueue(&Placed(7)));
    let statement = call.statement().unwrap();
    let text = |text: &str| Value::Text(Some(text.to_owned()));
    let none = Value::Text(None);
    let [topic, payload, key, kind, content_type, headers, deliver_at, _, parent, state] = statement.values()
    else {
        panic!("{statement:?}")
    };
    assert_eq!((topic, kind, key), (&text("orders"), &text("order.placed"), &text("ann")));
    assert_eq!((payload, content_type), (&Value::Bytes("7".into()), &text("application/json")));
    assert_eq!([headers, deliver_at, parent, state], [&none, &none, &none, &none]);
}

#[test]
fn every_answer_of_the_guard_has_a_meaning() {
    let admit = |word: &str| {
        let mut database = Database::answering([json!({"word": word, "transaction": "7"})]);
        database.run(inbox().admit(&message()))
    };
    assert!(matches!(admit("new"), Ok(Admission::New(_))));
    assert!(matches!(admit("duplicate"), Ok(Admission::Known(Known::Applied(_)))));
    assert!(matches!(admit("dead_letter"), Ok(Admission::Known(Known::DeadLetter(_)))));
    for (word, expected) in [
        ("key_reused", Refusal::KeyReused),
        ("too_old", Refusal::TooOld),
        ("from_the_future", Refusal::FromTheFuture),
        ("malformed", Refusal::Malformed),
    ] {
        assert!(matches!(admit(word), Ok(Admission::Refused(refusal)) if refusal == expected));
        assert_eq!(expected.reason(), word);
    }
    let error = admit("perhaps").unwrap_err().to_string();
    assert!(error.contains("\"perhaps\" is unknown"), "{error}");
}

#[test]
fn a_chunk_is_refused_without_a_statement() {
    let chunk = message::Chunk::new(0, 2, 10, [0; 32].into()).unwrap();
    let chunk = Message { chunk: Some(Box::new(chunk)), ..message() };
    let mut database = Database::default();
    let admission = database.run(inbox().admit(&chunk)).unwrap();
    assert!(matches!(admission, Admission::Refused(Refusal::Chunk)) && database.sent.is_empty());
}

#[test]
fn an_effect_that_its_transaction_does_not_hold_any_more_is_no_proof() {
    let message = message();
    let finish = |is_held: bool| {
        let mut database =
            Database::answering([json!({"word": "new", "transaction": "7"}), json!({"is_held": is_held})]);
        let Admission::New(guard) = database.run(inbox().admit(&message)).unwrap() else { panic!("known") };
        let kept = database.run(guard.finish());
        (kept, database.did())
    };
    let (kept, _) = finish(true);
    assert_eq!(kept.unwrap().after_commit().subject(), message.id.as_uuid());
    let (kept, did) = finish(false);
    assert!(matches!(kept.unwrap_err().refused(), Some(Refused::Ended { id }) if *id == message.id));
    assert_eq!(did, ["inbox_admit", "inbox_message", "roll it back"]);
}

#[test]
fn a_failure_is_counted_and_the_last_one_is_a_dead_letter() {
    let letter = uuid::Uuid::from_u128(7);
    let mut database = Database::answering([
        json!({"attempts": 1, "dead_letter": null}),
        json!({"attempts": 2, "dead_letter": letter}),
    ]);
    let (inbox, message) = (inbox().attempts_max(2), message());
    let again = database.run(inbox.fail(&message, &Failure::<Infallible>::retry("no\0 printer"))).unwrap();
    assert!(matches!(again, Failed::Again { attempts: 1 }));
    let values = database.sent[0].values();
    assert_eq!(values[7], Value::Text(Some(String::from("no\u{fffd} printer"))));
    assert_eq!(values[16], Value::Text(Some(String::from("2"))));
    let error = Error::Database(std::io::Error::other("no paper"));
    let failed = database.run(inbox.fail(&message, &Failure::Error(error))).unwrap();
    let Failed::DeadLetter(dead) = failed else { panic!("counted") };
    assert_eq!((dead.id().0, dead.after_commit().subject()), (letter, message.id.as_uuid()));
    let Value::Text(Some(text)) = &database.sent[1].values()[7] else { panic!("no text") };
    assert!(text.ends_with("became unavailable: no paper"), "{text}");
}

#[test]
fn a_message_that_is_refused_or_rejected_is_a_dead_letter_at_once() {
    for (failure, reason) in [
        (Failure::<Infallible>::reject("no such customer"), "rejected"),
        (Failure::Refused(Refusal::KeyReused), "key_reused"),
        (Failure::Refused(Refusal::Chunk), "malformed"),
    ] {
        let mut database = Database::answering([json!({"dead_letter": uuid::Uuid::from_u128(7)})]);
        let failed = database.run(inbox().fail(&message(), &failure).origin("orders[3]@7")).unwrap();
        assert!(matches!(failed, Failed::DeadLetter(_)));
        let values = database.sent[0].values();
        let text = |text: &str| Value::Text(Some(text.to_owned()));
        assert_eq!((&values[6], &values[14]), (&text(reason), &text("orders[3]@7")));
        assert_eq!(database.did(), ["inbox_store_dead_letter"]);
    }
}

#[test]
fn a_delivery_that_is_no_message_is_kept_as_it_arrived() {
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let malformed = Malformed {
        problem: String::from("no id"),
        topic: String::from("or\0ders"),
        headers: vec![pair("na\0me", "a\0b")],
        ..Malformed::default()
    };
    let origin = String::from("orders[3]@7");
    let token = DeliveryToken(1);
    let delivery = Delivery { token, message: Err(malformed.clone()), redelivered: false, origin };
    let mut database = Database::answering([json!({"dead_letter": uuid::Uuid::from_u128(7)})]);
    let dead = database.run(inbox().refuse_delivery(&delivery, &malformed)).unwrap();
    assert_eq!(dead.after_commit().subject(), delivery.subject());
    let text = |text: &str| Value::Text(Some(text.to_owned()));
    let values = database.sent[0].values();
    assert_eq!((&values[1], &values[2]), (&Value::Text(None), &text("or\u{fffd}ders")));
    assert_eq!(values[9], text("{\"na\u{fffd}me\":\"a\u{fffd}b\"}"));
    assert_eq!(values[14], text("orders[3]@7"));
}

#[test]
fn a_retention_out_of_bounds_is_refused() {
    for days in [0, 367] {
        let error = Database::default().run(inbox().retention_days(days).maintain()).unwrap_err();
        assert!(error.to_string().ends_with("choose 1 to 366"), "{error}");
    }
}

#[test]
fn maintenance_tells_the_date_of_this_clock_and_returns_what_has_failed() {
    let before = now().date();
    let mut database = Database::answering([json!(["the day 2026-03-15 is in use"])]);
    let problems = database.run(inbox().retention_days(30).maintain()).unwrap();
    assert_eq!(problems, ["the day 2026-03-15 is in use"]);
    assert_eq!(database.did(), ["inbox_maintain"]);
    let dates = [before, now().date()].map(|date| Value::Text(Some(date.to_string())));
    let values = database.sent[0].values();
    assert!(values.len() == 2 && dates.contains(&values[0]), "midnight may pass in between");
    assert_eq!(values[1], Value::Text(Some(String::from("30"))));
}

#[test]
fn no_text_of_a_statement_contains_a_value() {
    let secret = NewMessage::new("orders").key("secret-key").header("auth", "secret").payload("secret");
    let mut call: Call<_, Infallible> = Call::new(Outbox::new().enqueue(secret));
    let statement = call.statement().unwrap();
    assert!(!format!("{statement:?} {call:?}").contains("secret"), "{statement:?} {call:?}");
}

#[test]
fn an_operation_whose_statement_was_not_answered_has_not_happened() {
    let mut call: Call<_, Infallible> = Call::new(Outbox::new().enqueue(NewMessage::new("orders")));
    assert!(call.statement().is_some());
    assert!(matches!(call.end(), Err(Error::Unfinished)));
}
