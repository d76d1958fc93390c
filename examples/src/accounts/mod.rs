//! Accounts whose state is the sequence of their events (cqrs-es). Each event is stored and
//! enqueued in one transaction, which is the caller's.
//!
//! | module | contents |
//! |---|---|
//! | [`events`] | the repository of cqrs-es over a transaction of the outbox: use it for any aggregate |

pub mod events;

use std::collections::BTreeMap;

use cqrs_es::event_sink::EventSink;
use cqrs_es::persist::{PersistedEventRepository as _, PersistedEventStore, SerializedEvent};
use cqrs_es::{Aggregate, AggregateError, CqrsFramework, DomainEvent, EventStore as _};
use outbox::{NewMessage, OutboxTransaction};
use serde::{Deserialize, Serialize};
use sqlx::Postgres;

use crate::accounts::events::Events;
use crate::setting::Failure;

/// An account.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Account {
    is_open: bool,
    cents: i64,
}

/// A command of a customer.
#[derive(Debug, Clone, Copy)]
pub enum Command {
    /// Opens the account.
    Open,
    /// Pays cents in.
    Deposit(i64),
    /// Pays cents out.
    Withdraw(i64),
}

/// A change of an account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum AccountEvent {
    /// It was opened.
    Opened {},
    /// Cents were paid in.
    Deposited {
        /// Their number.
        cents: i64,
    },
    /// Cents were paid out.
    Withdrawn {
        /// Their number.
        cents: i64,
    },
}

/// Why a command is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It cannot be opened twice.
    #[error("the account is open already")]
    Open,
    /// It was never opened.
    #[error("there is no such account")]
    NotOpen,
    /// Nothing is paid out on credit.
    #[error("the account has only {0} cents")]
    TooLittle(i64),
}

impl DomainEvent for AccountEvent {
    fn event_type(&self) -> String {
        String::from(match self {
            Self::Opened {} => "account.opened",
            Self::Deposited { .. } => "account.deposited",
            Self::Withdrawn { .. } => "account.withdrawn",
        })
    }

    fn event_version(&self) -> String {
        String::from("1")
    }
}

impl Aggregate for Account {
    const TYPE: &'static str = "account";
    type Command = Command;
    type Event = AccountEvent;
    type Error = Refused;
    type Services = ();

    async fn handle(&mut self, command: Command, (): &(), sink: &EventSink<Self>) -> Result<(), Refused> {
        let event = match command {
            Command::Open if self.is_open => return Err(Refused::Open),
            Command::Open => AccountEvent::Opened {},
            _ if !self.is_open => return Err(Refused::NotOpen),
            Command::Withdraw(cents) if cents > self.cents => return Err(Refused::TooLittle(self.cents)),
            Command::Deposit(cents) => AccountEvent::Deposited { cents },
            Command::Withdraw(cents) => AccountEvent::Withdrawn { cents },
        };
        sink.write(event, self).await;
        Ok(())
    }

    fn apply(&mut self, event: AccountEvent) {
        match event {
            AccountEvent::Opened {} => self.is_open = true,
            AccountEvent::Deposited { cents } => self.cents += cents,
            AccountEvent::Withdrawn { cents } => self.cents -= cents,
        }
    }
}

/// Returns the message of an event. The account is the key, so its events arrive in order.
fn message(event: &SerializedEvent) -> NewMessage {
    NewMessage::new("accounts")
        .kind(&event.event_type)
        .key(&event.aggregate_id)
        .header("sequence", event.sequence.to_string())
        .json(&event.payload)
}

/// Does what a command asks for, within a transaction: its events and their messages are committed
/// with everything else that the caller writes.
///
/// # Errors
/// [`AggregateError`]; roll back. After [`AggregateError::AggregateConflict`] another command of
/// the account was faster: run the command again in a new transaction.
pub async fn execute(
    tx: &mut OutboxTransaction<Postgres>,
    account: &str,
    command: Command,
) -> Result<(), AggregateError<Refused>> {
    let store = PersistedEventStore::<_, Account>::new_event_store(Events::new(tx, message));
    // Queries would run before the commit: none may have an effect outside the database.
    CqrsFramework::new(store, Vec::new(), ()).execute(account, command).await
}

/// Returns the cents of an account.
///
/// # Errors
/// [`AggregateError`], from the database.
pub async fn cents(
    tx: &mut OutboxTransaction<Postgres>,
    account: &str,
) -> Result<i64, AggregateError<Refused>> {
    let store = PersistedEventStore::<_, Account>::new_event_store(Events::new(tx, message));
    Ok(store.load_aggregate(account).await?.aggregate.cents)
}

/// Returns the cents of all accounts, from all events.
///
/// # Errors
/// The database refused, or an event cannot be read.
pub async fn all_cents(tx: &mut OutboxTransaction<Postgres>) -> Result<BTreeMap<String, i64>, Failure> {
    let mut stream = Events::new(tx, message).stream_all_events::<Account>().await?;
    let mut accounts = BTreeMap::<String, Account>::new();
    while let Some(event) = stream.next::<Account>(&[]).await {
        let event = event?;
        accounts.entry(event.aggregate_id).or_default().apply(event.payload);
    }
    Ok(accounts.into_iter().map(|(name, account)| (name, account.cents)).collect())
}
