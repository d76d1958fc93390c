//! The work of services on full tables: consumers, requests with keys, sagas.

use std::time::Duration;

use brokers::memory::Broker;
use bytes::Bytes;
use idempotency::{ClaimOptions, Claimed, Ending, IdempotencyKeys, KeyId, KeyOptions};
use inbox::{
    AfterDeadLetter, Backoff, Consumer, DeadLetterQuery, HandlerError, Inbox, RedriveOptions, Signature, Tx,
};
use message::{EventType, Fingerprint, Message, OrderingKey, Topic};
use outbox::Outbox;
use saga::{Run, Sagas};
use sqlx::Postgres;
use tests::eventually::when;
use tests::{Database, Failure, Outcome, eventually};

use super::CONSUMER;

pub(super) fn order(key: &str, payload: impl Into<Bytes>) -> Result<Message, Failure> {
    let message = Message::new(Topic::new("orders")?, EventType::new("order.placed")?, payload);
    Ok(message.with_key(OrderingKey::new(key)?))
}

async fn applied(tx: &mut Tx<Postgres>, message: &Message) -> Result<(), HandlerError> {
    if &message.payload[..] == b"bad" {
        return Err(HandlerError::reject("no such price"));
    }
    sqlx::query("INSERT INTO effect VALUES ($1)")
        .bind(message.key.as_ref().map(OrderingKey::as_str))
        .execute(&mut **tx)
        .await?;
    Ok(())
}

/// Gives a consumer that holds keys new messages, copies, messages of held keys, and invalid ones.
/// Operators then inspect the dead letters and decide about them.
pub(super) async fn consumes(inbox: &Inbox<Postgres>) -> Outcome {
    let (broker, topic) = (Broker::new(), Topic::new("orders")?);
    for number in 0..20 {
        let fresh = order(&format!("new-{number}"), "{}")?;
        for message in [fresh.clone(), fresh, order(&format!("old-{number}"), "{}")?, order("bad", "bad")?] {
            broker.put(&topic, Ok(message));
        }
    }
    let consumer = Consumer::builder(inbox.clone(), CONSUMER)
        .on_message("order.placed", applied)
        .subscribe(broker.subscriber(CONSUMER, [topic]))
        .backoff(Backoff { first: Duration::from_millis(1), max: Duration::from_millis(5) })
        .after_dead_letter(AfterDeadLetter::HoldKey)
        .redrive_interval(Some(Duration::from_millis(20)))
        .build()?;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(consumer.run(async { drop(stopped.await) }));
    eventually("all is consumed", || async { Ok(when(broker.is_drained())) }).await?;

    let mut query = DeadLetterQuery::default();
    let first = inbox.dead_letters(&query).await?;
    query.after = first.last().map(|letter| letter.id);
    let letters = inbox.dead_letters(&query).await?;
    let by = Signature { actor: String::from("ann"), note: String::from("a test"), selection: None };
    let poison: Vec<_> = letters.iter().filter(|letter| letter.reason == inbox::Reason::Poison).collect();
    assert!(poison.len() >= 6, "the fill has changed");
    for letter in &poison[..3] {
        inbox.discard(letter.id, &by).await?;
    }
    for letter in &poison[3..6] {
        drop(inbox.dead_letter_by_id(letter.id).await?);
        inbox.request_redrive(letter.id, RedriveOptions::default(), &by).await?;
    }
    eventually("what was asked for is carried out", || async {
        let decisions = inbox.decisions(10.try_into()?).await?;
        Ok(when(decisions.iter().all(|decision| decision.subject.done_at.is_some())))
    })
    .await?;
    inbox.maintain().await?;
    drop(stop);
    Ok(running.await??)
}

/// Redrives messages that a consumer holds behind its only key.
pub(super) async fn frees_a_key(database: &Database<Postgres>, inbox: &Inbox<Postgres>) -> Outcome {
    let consumer = Consumer::builder(inbox.clone(), "warehouse")
        .on_message("order.placed", applied)
        .subscribe(Broker::new().subscriber("warehouse", [Topic::new("orders")?]))
        .after_dead_letter(AfterDeadLetter::HoldKey)
        .redrive_interval(Some(Duration::from_millis(20)))
        .build()?;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(consumer.run(async { drop(stopped.await) }));
    let freed = "SELECT /* the test */ count(*) FROM effect WHERE key = 'the only one'";
    eventually("held messages are redriven", || async { Ok(when(database.integer(freed).await? >= 40)) })
        .await?;
    drop(stop);
    Ok(running.await??)
}

/// Looks for requests as consumers in other languages do: this one has none.
pub(super) async fn looks_for_requests(database: &Database<Postgres>) -> Outcome {
    for _ in 0..7 {
        let found = database.texts("SELECT coalesce(inbox_begin_redrive('billing')::text, 'none')").await?;
        assert_eq!(found, ["none"]);
    }
    Ok(())
}

pub(super) async fn keys(database: &Database<Postgres>) -> Outcome {
    let keys = IdempotencyKeys::open(database.admin.clone(), KeyOptions::default()).await?;
    for number in 0..20 {
        let fingerprint = Fingerprint::of_parts("charge", "", b"1250");
        for _ in 0..2 {
            let id = KeyId::of_texts("t", "charge", &format!("new-{number}"))?;
            if let Claimed::Acquired(claim) = keys.claim(&id, fingerprint, &ClaimOptions::default()).await? {
                claim.complete(Ending::Succeeded, b"charged").await?;
            }
        }
        let old = KeyId::of_texts("t", "charge", &format!("old-{}", number + 1))?;
        drop(keys.claim(&old, fingerprint, &ClaimOptions::default()).await?);
    }
    keys.maintain().await?;
    Ok(())
}

pub(super) async fn sagas(database: &Database<Postgres>) -> Outcome {
    let saga = async |saga: &mut Run<Postgres>, cents: i64| {
        let paid: i64 = saga.step("pay", async |_| Ok(cents)).undo(async |_, _: &i64| Ok(())).await?;
        saga.sleep("rest", Duration::from_millis(1)).await?;
        let shipped: i64 = saga.step("ship", async |_| Ok(paid)).await?;
        Ok(shipped)
    };
    // The previous version stays until its last saga has ended. None of its sagas is due.
    let sagas = Sagas::builder(database.admin.clone(), Outbox::new());
    let sagas = sagas.saga("checkout", 1, saga).saga("checkout", 2, saga).open().await?;
    for number in 0..20 {
        let mut tx = Outbox::new().begin(&database.admin).await?;
        assert_eq!(
            sagas.start(&mut tx, "checkout", &format!("new-{number}"), &1_i64).await?,
            saga::Started::Started
        );
        tx.commit().await?;
    }
    let running = sagas.clone();
    let worker = tokio::spawn(async move { running.run(std::future::pending()).await });
    let finished =
        "SELECT /* the test */ count(*) FROM saga WHERE id >= 'new-' AND id < 'new.' AND state = 'finished'";
    let waited =
        eventually("the sagas are finished", || async { Ok(when(database.integer(finished).await? == 20)) });
    let waited = waited.await;
    worker.abort();
    waited?;
    sagas.forget().await?;
    sagas.wake_stranded().await?;
    Ok(())
}
