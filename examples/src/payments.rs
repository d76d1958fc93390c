//! Charges every order once, at a payment provider that honours idempotency keys, whatever is delivered how often and
//! wherever the service is stopped.
//!
//! The charge is not in this database, so it cannot commit with the inbox row. Instead: claim the key of the message, ask the
//! provider with that key, store its answer under the key; then, in the inbox's transaction, write the payment. A service
//! that stops in between is succeeded by another attempt with the same key: the provider answers with the charge that it has
//! made already.

use std::num::NonZeroUsize;
use std::time::Duration;

use async_trait::async_trait;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::handshake;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use inbox::keys::{ClaimOptions, Claimed, Ending, IdempotencyKeys, KeyId, KeyOptions};
use inbox::{Consumer, ConsumerName, Handler, HandlerError, Inbox, InboxOptions, Shutdown};
use message::{Fingerprint, Message, Subscription, SubscriptionError};
use migrations::{Line, Migrator};
use sqlx::{PgPool, Postgres, Transaction};
use tokio::net::TcpStream;

use crate::order::OrderPlaced;
use crate::setting::{Failure, optional, required};

struct Payments {
    keys: IdempotencyKeys<Postgres>,
    claim: ClaimOptions,
    provider: Provider,
}

#[async_trait]
impl Handler<Postgres> for Payments {
    async fn handle(
        &self,
        tx: &mut Transaction<'static, Postgres>,
        message: &Message,
    ) -> Result<Option<Vec<u8>>, HandlerError> {
        let event: OrderPlaced = serde_json::from_slice(&message.payload)
            .map_err(|error| HandlerError::reject("the payload is not an order").with_source(error))?;
        let charge = self.charge(message, &event).await?;
        sqlx::query("INSERT INTO payment (order_id, charge) VALUES ($1, $2)")
            .bind(event.order)
            .bind(charge)
            .execute(&mut **tx)
            .await?;
        Ok(None)
    }
}

impl Payments {
    /// The provider's number of the charge, made now or before.
    async fn charge(&self, message: &Message, event: &OrderPlaced) -> Result<String, HandlerError> {
        let away =
            |error: Failure| HandlerError::unavailable("the charge could not be made").with_source(error);
        let id = KeyId::of_texts("payments", "charge", &message.id.to_string())
            .map_err(|error| HandlerError::reject("no key").with_source(error))?;
        let claimed = self.keys.claim(&id, Fingerprint::of(message), &self.claim).await;
        let charge = match claimed.map_err(|error| away(error.into()))? {
            Claimed::Acquired(claim) => {
                let charge =
                    self.provider.charge(claim.id().key().as_str(), event.cents).await.map_err(away)?;
                claim.complete(Ending::Succeeded, &charge).await.map_err(|error| away(error.into()))?;
                charge
            }
            // An earlier delivery of this message got as far as this.
            Claimed::Replay(replay) => replay.outcome,
            // An earlier attempt may still be at work: its lease decides.
            Claimed::InFlight { .. } => return Err(HandlerError::unavailable("the charge is being made")),
            other => return Err(HandlerError::retry(format!("the charge is {}", other.as_str()))),
        };
        Ok(String::from_utf8_lossy(&charge).into_owned())
    }
}

/// The payment provider: `POST /charges` with the amount, and the header `Idempotency-Key`.
struct Provider {
    address: String,
}

impl Provider {
    async fn charge(&self, key: &str, cents: i64) -> Result<Bytes, Failure> {
        let stream = TcpStream::connect(&self.address).await?;
        let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
        let connection = tokio::spawn(connection);
        let request = Request::post("/charges")
            .header("host", &self.address)
            .header("idempotency-key", format!("\"{key}\""))
            .body(Full::new(Bytes::from(cents.to_string())))?;
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        drop(sender);
        connection.await??;
        if status == StatusCode::CREATED {
            Ok(body)
        } else {
            Err(format!("the provider answered {status}").into())
        }
    }
}

/// Consumes until `PAYMENTS` payments exist (default 2), then prints them and stops.
///
/// # Errors
/// Whatever the database refuses, or a setting that is missing.
pub async fn run<F, Fut>(subscribe: F) -> Result<(), Failure>
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Box<dyn Subscription>, SubscriptionError>> + Send + 'static,
{
    let pool = outbox::pool::<Postgres>(&required("DATABASE_URL")?).await?;
    prepare(&pool).await?;
    let expected: i64 = optional("PAYMENTS", "2").parse()?;
    let lease = Duration::from_secs(optional("LEASE_SECONDS", "60").parse()?);
    let payments = Payments {
        keys: IdempotencyKeys::open(pool.clone(), KeyOptions::default()).await?,
        claim: ClaimOptions::default().lease(lease),
        provider: Provider { address: required("PROVIDER")? },
    };
    let inbox = Inbox::open(pool.clone(), InboxOptions::default()).await?;
    let consumer = Consumer::builder(inbox, ConsumerName::new("payments")?)
        .subscription(subscribe)
        .handler(payments)
        .concurrency(NonZeroUsize::MIN.saturating_add(3))
        .build()?;
    let shutdown = Shutdown::new();
    let running = tokio::spawn(consumer.run(shutdown.clone()));
    while count(&pool).await? < expected {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    shutdown.graceful.cancel();
    running.await??;
    let payments: Vec<(i64, String)> =
        sqlx::query_as("SELECT order_id, charge FROM payment ORDER BY order_id, id").fetch_all(&pool).await?;
    for (order, charge) in &payments {
        println!("order {order}: {charge}");
    }
    println!("{} payments", payments.len());
    Ok(())
}

/// A service would do this in its deployment: `relay migrate up`.
async fn prepare(pool: &PgPool) -> Result<(), Failure> {
    let mut connection = pool.acquire().await?;
    for line in [Line::Inbox, Line::Idempotency] {
        Migrator::<Postgres>::new(line).up(&mut connection).await?;
    }
    sqlx::query(
        "CREATE TABLE IF NOT EXISTS payment (
            id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, order_id bigint NOT NULL, charge text NOT NULL)",
    )
    .execute(&mut *connection)
    .await?;
    Ok(())
}

async fn count(pool: &PgPool) -> Result<i64, Failure> {
    Ok(sqlx::query_scalar("SELECT count(*) FROM payment").fetch_one(pool).await?)
}
