//! Payloads that are encrypted for a person: deleting the person's key erases them wherever they
//! are. The key store and the cipher are those of a service; copy them.

use std::sync::Arc;

use async_trait::async_trait;
use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::rand;
use examples::setting::Failure;
use inbox::{Consumer, HandlerError, Tx};
use message::{Event, MessageId, Sealing, SealingError, Topic};
use outbox::NewMessage;
use serde::{Deserialize, Serialize};
use sqlx::{Pool, Sqlite};
use testkit::World;

/// Keys by subject. A deleted key leaves its row behind, so that it is not taken for one that does
/// not exist yet. Keep this table in a database with backups of its own, which are short-lived: a
/// key in an old backup brings everything back.
const TABLES: &str = "
    CREATE TABLE subject_key (subject TEXT PRIMARY KEY, key BLOB);
    CREATE TABLE welcome (id INTEGER PRIMARY KEY, consumer TEXT NOT NULL, name TEXT NOT NULL);";

/// The key store of the service.
#[derive(Clone)]
struct KeyStore(Pool<Sqlite>);

impl KeyStore {
    /// Returns the key of a subject; `None` once it was deleted. Makes a missing one if asked to.
    async fn key(&self, subject: &str, make: bool) -> Result<Option<LessSafeKey>, SealingError> {
        if make {
            let mut new = [0; 32];
            rand::fill(&mut new).map_err(SealingError::unavailable)?;
            sqlx::query("INSERT INTO subject_key (subject, key) VALUES ($1, $2) ON CONFLICT DO NOTHING")
                .bind(subject)
                .bind(&new[..])
                .execute(&self.0)
                .await
                .map_err(SealingError::unavailable)?;
        }
        let found: Option<Option<Vec<u8>>> =
            sqlx::query_scalar("SELECT key FROM subject_key WHERE subject = $1")
                .bind(subject)
                .fetch_optional(&self.0)
                .await
                .map_err(SealingError::unavailable)?;
        // Not deleted: it may be on its way to this store.
        let found = found.ok_or_else(|| SealingError::unavailable("the key store does not know the key"))?;
        let key = found.map(|key| UnboundKey::new(&AES_256_GCM_SIV, &key)).transpose();
        Ok(key.map_err(SealingError::refused)?.map(LessSafeKey::new))
    }

    /// Erases a subject for good.
    async fn delete(&self, subject: &str) -> Result<(), Failure> {
        sqlx::query("UPDATE subject_key SET key = NULL WHERE subject = $1")
            .bind(subject)
            .execute(&self.0)
            .await?;
        Ok(())
    }
}

/// The same message has the same nonce and so the same bytes, whenever it is enqueued. The cipher
/// permits that: a repeated nonce reveals only that two payloads are equal.
fn nonce(id: MessageId) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes.copy_from_slice(&id.as_uuid().as_bytes()[16 - NONCE_LEN..]);
    Nonce::assume_unique_for_key(bytes)
}

/// A payload that is moved to another message or subject does not open.
fn bound_to(subject: &str, id: MessageId) -> Aad<Vec<u8>> {
    Aad::from([id.as_uuid().as_bytes(), subject.as_bytes()].concat())
}

#[async_trait]
impl Sealing for KeyStore {
    async fn seal(&self, subject: &str, id: MessageId, payload: &[u8]) -> Result<Vec<u8>, SealingError> {
        let key = self.key(subject, true).await?;
        let key = key.ok_or_else(|| SealingError::refused("the subject was erased"))?;
        let mut sealed = payload.to_vec();
        key.seal_in_place_append_tag(nonce(id), bound_to(subject, id), &mut sealed)
            .map_err(SealingError::refused)?;
        Ok(sealed)
    }

    async fn open(
        &self,
        subject: &str,
        id: MessageId,
        sealed: &[u8],
    ) -> Result<Option<Vec<u8>>, SealingError> {
        let Some(key) = self.key(subject, false).await? else { return Ok(None) };
        let mut opened = sealed.to_vec();
        let payload = key.open_in_place(nonce(id), bound_to(subject, id), &mut opened);
        Ok(Some(payload.map_err(SealingError::refused)?.to_vec()))
    }
}

/// A customer has signed up.
#[derive(Debug, Serialize, Deserialize)]
struct SignedUp {
    name: String,
}

impl Event for SignedUp {
    const TOPIC: &'static str = "customers";
    const KIND: &'static str = "customer.signed_up";
}

/// Enqueues the event with its payload encrypted for the customer. The number identifies no person.
async fn sign_up(world: &World, keys: &KeyStore, number: i64, name: &str) -> Result<(), Failure> {
    let event = NewMessage::event(&SignedUp { name: name.to_owned() }).key(format!("customer-{number}"));
    let message = event.sealed(keys, &format!("customer-{number}")).await?;
    let mut tx = world.pool().begin().await?;
    world.outbox().enqueue(&mut tx, message).await?;
    tx.commit().await?;
    Ok(())
}

/// Starts a consumer that decrypts what it gets, and writes the names to a table.
fn welcome(world: &World, keys: &KeyStore, consumer: &'static str) -> Result<(), Failure> {
    let feed = world.feed_of_its_own(SignedUp::TOPIC)?;
    let keys = keys.clone();
    world.run(move |inbox| {
        let write = async move |tx: &mut Tx<Sqlite>, event: SignedUp| -> Result<(), HandlerError> {
            sqlx::query("INSERT INTO welcome (consumer, name) VALUES ($1, $2)")
                .bind(consumer)
                .bind(event.name)
                .execute(&mut **tx)
                .await?;
            Ok(())
        };
        Consumer::builder(inbox, consumer)
            .on(write)
            .sealing(keys.clone())
            .subscribe(feed.subscriber())
            .build()
    })?;
    Ok(())
}

async fn world() -> Result<(World, KeyStore), Failure> {
    let world = World::new().await?;
    sqlx::raw_sql(TABLES).execute(world.pool()).await?;
    let keys = KeyStore(world.pool().clone());
    Ok((world, keys))
}

/// Goal: with its key, a payload reaches every consumer, and is readable nowhere on its way;
/// without it, the copies at the broker are skipped as erased, and nothing is dead-lettered.
/// Oracle: the bytes at the broker and in the outbox, the effects, and the inbox.
#[tokio::test]
async fn deleting_a_key_erases_every_copy() -> Result<(), Failure> {
    let (world, keys) = world().await?;
    welcome(&world, &keys, "mail")?;
    sign_up(&world, &keys, 7, "Ann Example").await?;
    sign_up(&world, &keys, 8, "Bob Example").await?;
    world.quiet().await?;
    assert_eq!(world.number("SELECT count(*) FROM welcome WHERE consumer = 'mail'").await?, 2);
    let readable = "SELECT count(*) FROM outbox_message WHERE instr(payload, CAST('Example' AS BLOB)) > 0";
    assert_eq!(world.number(readable).await?, 0);
    for message in world.broker().log(&Topic::new(SignedUp::TOPIC)?) {
        assert!(!message.payload.windows(7).any(|part| part == b"Example"));
    }

    keys.delete("customer-7").await?;
    // A consumer that begins now gets both messages from the broker.
    welcome(&world, &keys, "statistics")?;
    world.broker().replay(&Topic::new(SignedUp::TOPIC)?);
    world.quiet().await?;
    let bob = "SELECT count(*) FROM welcome WHERE consumer = 'statistics' AND name = 'Bob Example'";
    assert_eq!(world.number(bob).await?, 1);
    assert_eq!(world.number("SELECT count(*) FROM welcome WHERE consumer = 'statistics'").await?, 1);
    let remembered =
        "SELECT count(*) FROM inbox_message WHERE consumer = 'statistics' AND dead_letter IS NULL";
    assert_eq!(world.number(remembered).await?, 2, "the erased one is done as well");
    world.assert_nothing_parked().await;
    let refused = sign_up(&world, &keys, 7, "Ann Example").await.expect_err("she was erased");
    assert!(refused.to_string().contains("cannot be encrypted"), "{refused}");
    Ok(())
}

/// Goal: a producer that enqueues a message again, because it does not know whether its commit
/// happened, sends the same bytes. A payload does not open as that of another message.
#[tokio::test]
async fn a_payload_belongs_to_its_message_and_is_the_same_each_time() -> Result<(), Failure> {
    let (_world, keys) = world().await?;
    let keys: Arc<dyn Sealing> = Arc::new(keys);
    let id = MessageId::new();
    let sealed = keys.seal("customer-7", id, b"Ann").await?;
    assert_eq!(keys.seal("customer-7", id, b"Ann").await?, sealed);
    assert_eq!(keys.open("customer-7", id, &sealed).await?.as_deref(), Some(&b"Ann"[..]));
    let moved = keys.open("customer-7", MessageId::new(), &sealed).await;
    assert!(matches!(moved, Err(SealingError::Refused(_))), "{moved:?}");
    let unknown = keys.open("customer-9", id, &sealed).await;
    assert!(matches!(unknown, Err(SealingError::Unavailable(_))), "{unknown:?}");
    Ok(())
}
