//! Erasing in an inbox: results and closed dead letters go, and no copy takes effect. Messages
//! whose key was deleted are skipped.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use inbox::{
    Admission, DeadLetterQuery, HandlerError, Inbox, KeyedLetter, LettersOfKey, Reason, Resolution,
    Signature, Tenant, Tx,
};
use message::{
    ContentType, ERASED_CONTENT_TYPE, Message, MessageId, SEALED_CONTENT_TYPE, SEALED_FOR, SEALED_TYPE,
    Sealing, SealingError,
};
use uuid::Uuid;

use crate::inbox::broker::Broker;
use crate::inbox::consumer::{base, effects, event, run_until_drained};
use crate::inbox::database::{Database, TestDatabase};
use crate::inbox::dead_letters::{WORKS, billing, store_dead_letter};
use crate::inbox::{keyed, message};

tests::cases! { "inbox/erasure/{on}/{case}":
    every {
        a_result_goes_and_its_message_stays_a_duplicate,
        many_messages_are_looked_up_at_once,
        closed_dead_letters_lose_their_content_and_open_ones_stay,
        a_message_whose_key_is_deleted_is_skipped,
        a_message_that_does_not_open_is_dead_lettered_as_it_arrived,
        in_a_batch_only_the_erased_messages_are_skipped,
    }
}

/// Opens an inbox as the owner of its tables.
async fn owned<DB: TestDatabase>(database: &Database<DB>) -> Inbox<DB> {
    Inbox::open(database.admin.clone(), database.options()).await.unwrap()
}

async fn a_result_goes_and_its_message_stays_a_duplicate<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let messages = ["a", "b"].map(message);
    for message in &messages {
        let mut tx = inbox.begin().await.unwrap();
        let Admission::Fresh(guard) = tx.admit(&billing(), &Tenant::none(), message).await.unwrap() else {
            panic!("a new message")
        };
        guard.complete(&mut tx, b"Ann").await.unwrap();
        drop(tx.commit().await.unwrap());
    }
    let ids = messages.each_ref().map(|message| message.id.as_uuid());
    let other = Tenant::new("acme").unwrap();
    assert_eq!(inbox.results_of(&ids, None).await.unwrap(), 2);
    assert_eq!(inbox.erase_results(&ids, Some(&other)).await.unwrap(), 0, "of another tenant");
    assert_eq!(inbox.erase_results(&ids[..1], None).await.unwrap(), 1);
    assert_eq!(inbox.results_of(&ids, None).await.unwrap(), 1);
    for (message, result) in messages.iter().zip([None, Some(&b"Ann"[..])]) {
        let mut tx = inbox.begin().await.unwrap();
        let Admission::Duplicate(duplicate) = tx.admit(&billing(), &Tenant::none(), message).await.unwrap()
        else {
            panic!("it took effect before")
        };
        assert_eq!(duplicate.result.as_deref(), result);
    }
}

/// Goal: one statement says which of many messages a consumer has settled: applied for any tenant,
/// or among its dead letters, open or closed; not those that it retries or does not know. Oracle:
/// the ids.
async fn many_messages_are_looked_up_at_once<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = owned(database).await;
    const RETRIED: &str = "INSERT INTO inbox_attempt (message_id, consumer, scope, attempts, last_error, next_at) \
        SELECT '019f0000-0000-7000-8000-000000000001', 'billing', '', 1, 'away', retained_from FROM inbox_retention";
    let [applied, dead, unknown] = ["a", "b", "c"].map(message);
    let mut tx = inbox.begin().await.unwrap();
    let tenant = Tenant::new("acme").unwrap();
    let Admission::Fresh(guard) = tx.admit(&billing(), &tenant, &applied).await.unwrap() else {
        panic!("a new message")
    };
    guard.complete(&mut tx, b"Ann").await.unwrap();
    drop(tx.commit().await.unwrap());
    store_dead_letter(&inbox, &dead, Reason::Poison).await;
    let mut tx = inbox.begin().await.unwrap();
    DB::sql(&mut tx, RETRIED).await.unwrap();
    drop(tx.commit().await.unwrap());
    let [applied, dead, unknown] = [&applied, &dead, &unknown].map(|message| message.id.as_uuid());
    let ids = [applied, dead, unknown, "019f0000-0000-7000-8000-000000000001".parse().unwrap()];
    for (consumer, expected) in [(None, 2), (Some(billing()), 2), (Some("other".parse().unwrap()), 0)] {
        let settled: BTreeSet<Uuid> =
            inbox.settled(&ids, consumer.as_ref()).await.unwrap().into_iter().collect();
        assert_eq!(settled, ids[..expected].iter().copied().collect(), "{consumer:?}");
    }
}

/// Goal: closed dead letters of the key lose everything but their identity, with the errors and
/// filters of decisions; open ones and those of others stay. A copy of an erased one is still
/// stopped. Oracle: the dead letters and the audit, as the inbox reads them.
async fn closed_dead_letters_lose_their_content_and_open_ones_stay<DB: TestDatabase>(
    database: &Database<DB>,
) {
    let inbox = owned(database).await;
    let mut gone = keyed("customer-7", "Ann");
    gone.headers.insert("name", "Ann").unwrap();
    let open = keyed("customer-7", "Ann again");
    let other = keyed("customer-8", "Bob");
    let closed = store_dead_letter(&inbox, &gone, Reason::Poison).await;
    let opened = store_dead_letter(&inbox, &open, Reason::Poison).await;
    let others = store_dead_letter(&inbox, &other, Reason::Poison).await;
    let selection = Some(String::from("key=customer-7: 1 chosen"));
    let by = Signature { selection, ..Signature::new("ann", "a test") };
    for letter in [closed, others] {
        inbox.discard(letter, &by).await.unwrap();
    }
    // The first one is requested as well, and the outcome is not known yet.
    const REQUESTED: &str = "INSERT INTO inbox_audit (actor, note, selection, action, dead_letter, consumer) \
        SELECT actor, note, selection, 'redrive', dead_letter, consumer FROM inbox_audit ORDER BY seq LIMIT 1";
    let mut tx = inbox.begin().await.unwrap();
    DB::sql(&mut tx, REQUESTED).await.unwrap();
    drop(tx.commit().await.unwrap());
    let of = LettersOfKey { key: String::from("customer-7"), topic: None, tenant: None };
    let found = inbox.letters_of_key(&of, None).await.unwrap();
    let states = |letter: &KeyedLetter| (letter.seen.id, letter.is_open);
    assert_eq!(found.letters.iter().map(states).collect::<Vec<_>>(), [(closed, false), (opened, true)]);
    assert_eq!((found.letters[0].message_id, found.next), (Some(gone.id.as_uuid()), None));
    let elsewhere = LettersOfKey { topic: Some(String::from("bills")), ..of.clone() };
    assert!(inbox.letters_of_key(&elsewhere, None).await.unwrap().letters.is_empty());

    assert_eq!(inbox.erase_letters(&[closed, opened]).await.unwrap(), 1, "not the open one");
    let erased = inbox.dead_letter_by_id(closed).await.unwrap().unwrap();
    assert_eq!(
        (erased.key, erased.headers.len(), erased.payload.len(), erased.error.as_str()),
        (None, 0, 0, "erased")
    );
    assert_eq!(erased.content_type.as_deref(), Some(ERASED_CONTENT_TYPE));
    assert_eq!(erased.resolved.map(|(resolution, _)| resolution), Some(Resolution::Discarded));
    assert_eq!(erased.message_id, Some(gone.id));
    let decisions = inbox.decisions_of(&[closed, others], NonZeroU32::MIN).await.unwrap();
    let selections: Vec<_> = decisions.iter().map(|line| line.signature.selection.is_some()).collect();
    assert_eq!(selections.iter().filter(|named| **named).count(), 1, "only that of the other one");
    for (id, payload) in [(opened, &b"Ann again"[..]), (others, b"Bob")] {
        assert_eq!(&inbox.dead_letter_by_id(id).await.unwrap().unwrap().payload[..], payload);
    }
    assert_eq!(inbox.letters_of_key(&of, None).await.unwrap().letters.len(), 1, "the open one");
    let broker = Broker::new([gone]);
    run_until_drained(base(&inbox, &broker).handler(WORKS), &broker).await;
    assert!(effects(database).await.is_empty(), "a copy has no effect");
}

/// Keys by subject, and a cipher that a reader can follow: it inverts every bit.
#[derive(Clone, Default)]
struct Keys {
    deleted: Arc<Mutex<BTreeSet<String>>>,
    outages: Arc<Mutex<u32>>,
}

impl Keys {
    fn delete(&self, subject: &str) {
        self.deleted.lock().unwrap().insert(subject.to_owned());
    }
}

#[async_trait]
impl Sealing for Keys {
    async fn seal(&self, _: &str, _: MessageId, payload: &[u8]) -> Result<Vec<u8>, SealingError> {
        Ok(payload.iter().map(|byte| !byte).collect())
    }

    async fn open(
        &self,
        subject: &str,
        _: MessageId,
        sealed: &[u8],
    ) -> Result<Option<Vec<u8>>, SealingError> {
        let mut outages = self.outages.lock().unwrap();
        if *outages > 0 {
            *outages -= 1;
            return Err(SealingError::unavailable("a test"));
        }
        if self.deleted.lock().unwrap().contains(subject) {
            return Ok(None);
        }
        Ok(Some(sealed.iter().map(|byte| !byte).collect()))
    }
}

fn sealed(subject: Option<&str>, order: i64) -> Message {
    let json = format!(r#"{{"order":{order}}}"#);
    let mut message = event("order.placed", "");
    message.payload = json.bytes().map(|byte| !byte).collect::<Vec<_>>().into();
    message.content_type = ContentType::new(SEALED_CONTENT_TYPE).unwrap();
    if let Some(subject) = subject {
        message.headers.insert(SEALED_FOR, subject).unwrap();
        message.headers.insert(SEALED_TYPE, "application/json").unwrap();
    }
    message
}

#[derive(serde::Deserialize)]
struct Placed {
    order: i64,
}

impl message::Event for Placed {
    const TOPIC: &'static str = "orders";
    const KIND: &'static str = "order.placed";
}

async fn bill<DB: TestDatabase>(tx: &mut Tx<DB>, placed: Placed) -> Result<(), HandlerError> {
    Ok(DB::apply(tx, "billing", &message(&format!("bill {}", placed.order))).await?)
}

/// Goal: a message whose key was deleted is settled without an effect and without a dead letter, an
/// outage of the key store loses nothing, and the others are handled as they were written. Oracle:
/// the effects, the dead letters, and the inbox.
async fn a_message_whose_key_is_deleted_is_skipped<DB: TestDatabase>(database: &Database<DB>) {
    let counters = tests::Counters::installed();
    let inbox = database.inbox().await;
    let keys = Keys::default();
    keys.delete("ann");
    *keys.outages.lock().unwrap() = 2;
    let plain = event("order.placed", r#"{"order":3}"#);
    let skipped = sealed(Some("ann"), 1);
    let broker = Broker::new([skipped.clone(), sealed(Some("bob"), 2), plain, skipped.clone()]);
    run_until_drained(base(&inbox, &broker).on(bill::<DB>).sealing(keys), &broker).await;
    assert_eq!(effects(database).await, ["bill 2", "bill 3"]);
    assert!(inbox.dead_letters(&DeadLetterQuery::default()).await.unwrap().is_empty());
    assert_eq!(inbox.known(skipped.id.as_uuid()).await.unwrap().len(), 1, "the inbox remembers it");
    // Other cases count as well.
    assert!(counters.value("inbox_erased_total", &[("consumer", "billing")]) >= 1);
}

async fn a_message_that_does_not_open_is_dead_lettered_as_it_arrived<DB: TestDatabase>(
    database: &Database<DB>,
) {
    let inbox = database.inbox().await;
    let broken = sealed(None, 1);
    let broker = Broker::new([broken.clone()]);
    run_until_drained(base(&inbox, &broker).on(bill::<DB>).sealing(Keys::default()), &broker).await;
    let letters = inbox.dead_letters(&DeadLetterQuery::default()).await.unwrap();
    assert_eq!(letters.len(), 1);
    assert_eq!((letters[0].reason, &letters[0].payload), (Reason::Rejected, &broken.payload));
    assert!(letters[0].error.contains("sealed-for"), "{}", letters[0].error);
}

async fn in_a_batch_only_the_erased_messages_are_skipped<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let keys = Keys::default();
    keys.delete("ann");
    let messages: Vec<Message> =
        (0..6).map(|order| sealed(Some(if order % 2 == 0 { "ann" } else { "bob" }), order)).collect();
    let ids: Vec<Uuid> = messages.iter().map(|message| message.id.as_uuid()).collect();
    let broker = Broker::new(messages);
    let builder = base(&inbox, &broker).batch(NonZeroUsize::new(10).unwrap()).on(bill::<DB>).sealing(keys);
    run_until_drained(builder, &broker).await;
    assert_eq!(effects(database).await, ["bill 1", "bill 3", "bill 5"]);
    for id in ids {
        assert_eq!(inbox.known(id).await.unwrap().len(), 1);
    }
}
