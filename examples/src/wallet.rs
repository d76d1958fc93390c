//! A wallet service: payments are enqueued with their business rows, and every payment is credited
//! once.
//!
//! Its tests are in `examples/tests/wallet.rs`, built on the crate `testkit`: copy them.

use async_trait::async_trait;
use inbox::{BuildError, Consumer, ConsumerName, Handler, HandlerError, Inbox, Tx};
use message::{Message, Subscription, SubscriptionError};
use outbox::{NewMessage, Outbox};
use serde::{Deserialize, Serialize};
use sqlx::{Pool, Sqlite};

use crate::setting::Failure;

/// The topic of payments.
pub const TOPIC: &str = "payments";

/// A payment was made.
#[derive(Debug, Serialize, Deserialize)]
struct Paid {
    account: i64,
    cents: i64,
}

/// The tables of the service.
pub const TABLES: &str = "
    CREATE TABLE payment (id INTEGER PRIMARY KEY, account INTEGER NOT NULL, cents INTEGER NOT NULL);
    CREATE TABLE account (id INTEGER PRIMARY KEY, cents INTEGER NOT NULL);
    CREATE TABLE credit (id INTEGER PRIMARY KEY, message_id TEXT NOT NULL, account INTEGER NOT NULL);";

/// Takes a payment: the business row and the message commit together.
///
/// # Errors
/// The outbox or the database refused; then neither row nor message is stored.
pub async fn pay(
    pool: &Pool<Sqlite>,
    outbox: &Outbox<Sqlite>,
    account: i64,
    cents: i64,
) -> Result<(), Failure> {
    let mut tx = pool.begin().await?;
    sqlx::query("INSERT INTO payment (account, cents) VALUES ($1, $2)")
        .bind(account)
        .bind(cents)
        .execute(&mut *tx)
        .await?;
    let message = NewMessage::new(TOPIC).key(format!("account-{account}")).json(&Paid { account, cents });
    outbox.enqueue(&mut tx, message).await?;
    tx.commit().await?;
    Ok(())
}

/// Credits payments.
struct Credit;

#[async_trait]
impl Handler<Sqlite> for Credit {
    async fn handle(&self, tx: &mut Tx<Sqlite>, message: &Message) -> Result<Option<Vec<u8>>, HandlerError> {
        let Paid { account, cents } = serde_json::from_slice(&message.payload)
            .map_err(|error| HandlerError::reject("the payload is not a payment").with_source(error))?;
        sqlx::query(
            "INSERT INTO account (id, cents) VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET cents = cents + $2",
        )
        .bind(account)
        .bind(cents)
        .execute(&mut **tx)
        .await?;
        sqlx::query("INSERT INTO credit (message_id, account) VALUES ($1, $2)")
            .bind(message.id.to_string())
            .bind(account)
            .execute(&mut **tx)
            .await?;
        Ok(None)
    }
}

/// The name under which an instance of the service consumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// The name that all instances share. Correct: each instance knows the messages that the others
    /// have applied.
    Service,
    /// Its own name. An easy mistake (a host name, a process id): each instance applies messages
    /// that the others have already applied. It exists so that the tests can show that they find
    /// it.
    Instance(u32),
}

/// Builds the consumer of one instance.
///
/// # Errors
/// [`BuildError`] names what is missing.
pub fn consumer<F, Fut>(
    inbox: Inbox<Sqlite>,
    identity: Identity,
    subscribe: F,
) -> Result<Consumer<Sqlite>, BuildError>
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Box<dyn Subscription>, SubscriptionError>> + Send + 'static,
{
    Consumer::builder(inbox, name(identity)).subscribe(subscribe).handler(Credit).build()
}

#[expect(clippy::expect_used, reason = "a word and a number are a valid name")]
fn name(identity: Identity) -> ConsumerName {
    let name = match identity {
        Identity::Service => String::from("wallet"),
        Identity::Instance(number) => format!("wallet-{number}"),
    };
    ConsumerName::new(name).expect("a valid name")
}
