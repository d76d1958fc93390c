//! Charges every order once, at a payment provider that honours idempotency keys, no matter how
//! often it is delivered or where the service is stopped.
//!
//! The charge is not in this database, so it cannot commit with the inbox row. Instead the handler
//! claims the key of the message, asks the provider with that key, and stores its answer under the
//! key. Then it writes the payment in the inbox's transaction. If the service stops in between,
//! another attempt uses the same key: the provider answers with the charge that it has already
//! made.

use std::time::Duration;

use async_trait::async_trait;
use idempotency::{ClaimOptions, Claimed, Ending, IdempotencyKeys, KeyId, KeyOptions};
use inbox::{Consumer, Handler, HandlerError, Inbox, InboxOptions, Tx};
use message::{Fingerprint, Message, Subscriber};
use migrations::Line;
use sqlx::Postgres;

use crate::consuming::until;
use crate::database::prepared;
use crate::order::OrderPlaced;
use crate::provider::{Declined, Provider};
use crate::setting::{Failure, optional, required};

const TABLE: &str = "CREATE TABLE IF NOT EXISTS payment (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, order_id bigint NOT NULL, charge text NOT NULL)";

struct Payments {
    keys: IdempotencyKeys<Postgres>,
    claim: ClaimOptions,
    provider: Provider,
}

#[async_trait]
impl Handler<Postgres> for Payments {
    async fn handle(
        &self,
        tx: &mut Tx<Postgres>,
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
    /// Returns the provider's number of the charge, made now or earlier.
    async fn charge(&self, message: &Message, event: &OrderPlaced) -> Result<String, HandlerError> {
        let away =
            |error: Failure| HandlerError::unavailable("the charge could not be made").with_source(error);
        let id = KeyId::of_texts("payments", "charge", &message.id.to_string())
            .map_err(|error| HandlerError::reject("no key").with_source(error))?;
        let claimed = self.keys.claim(&id, Fingerprint::of(message), &self.claim).await;
        let charge = match claimed.map_err(|error| away(error.into()))? {
            Claimed::Acquired(claim) => {
                let key = claim.id().downstream().to_string();
                match self.provider.charge(&key, event.cents).await {
                    Ok(charge) => {
                        let stored = claim.complete(Ending::Succeeded, &charge).await;
                        stored.map_err(|error| away(error.into()))?;
                        charge
                    }
                    Err(error) => {
                        let declined = error.downcast::<Declined>().map_err(away)?;
                        let stored = claim.complete(Ending::Failed, declined.to_string().as_bytes()).await;
                        stored.map_err(|error| away(error.into()))?;
                        return Err(HandlerError::rejecting(declined));
                    }
                }
            }
            // An earlier delivery of this message got this far.
            Claimed::Replay(replay) if replay.ending == Ending::Failed => {
                return Err(HandlerError::reject(String::from_utf8_lossy(&replay.outcome)));
            }
            Claimed::Replay(replay) => replay.outcome,
            // An earlier attempt may still be running: its lease decides.
            Claimed::InFlight { .. } => return Err(HandlerError::unavailable("the charge is being made")),
            other => return Err(HandlerError::retry(format!("the charge is {}", other.as_str()))),
        };
        Ok(String::from_utf8_lossy(&charge).into_owned())
    }
}

/// Consumes until `PAYMENTS` payments exist (default 2), then prints them and stops.
///
/// # Errors
/// The database refused, or a setting is missing.
pub async fn run(subscriber: impl Subscriber) -> Result<(), Failure> {
    let pool = prepared(&[Line::Inbox, Line::Idempotency], TABLE).await?;
    let lease = Duration::from_secs(optional("LEASE_SECONDS", "60").parse()?);
    let handler = Payments {
        keys: IdempotencyKeys::open(pool.clone(), KeyOptions::default()).await?,
        claim: ClaimOptions::default().lease(lease),
        provider: Provider { address: required("PROVIDER")? },
    };
    let expected = optional("PAYMENTS", "2").parse()?;
    Consumer::builder(Inbox::open(pool.clone(), InboxOptions::default()).await?, "payments")
        .handler(handler)
        .subscribe(subscriber)
        .run(until(pool.clone(), "SELECT count(*) FROM payment", expected))
        .await?;
    let payments: Vec<(i64, String)> =
        sqlx::query_as("SELECT order_id, charge FROM payment ORDER BY order_id, id").fetch_all(&pool).await?;
    for (order, charge) in &payments {
        println!("order {order}: {charge}");
    }
    println!("{} payments", payments.len());
    Ok(())
}
