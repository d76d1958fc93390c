//! Receives messages from a broker of the crate `brokers`, one after the other.

use std::error::Error;
use std::num::NonZeroUsize;
use std::time::Duration;

use diesel::connection::Connection;
use diesel::pg::PgConnection;
use statements::message::{Delivery, Message, Settlement, Subscriber};
use statements::{Inbox, Outcome};
use tokio::runtime::Builder;

use crate::diesel::{is_passing, run_alone};

/// Hands each delivery to a function until its outcome is final, and settles it.
///
/// # Errors
/// The session with the broker has ended, or the function has failed. End the process, or subscribe
/// again: what is not settled is delivered again.
pub async fn receive(
    subscriber: &impl Subscriber,
    mut handle: impl AsyncFnMut(&Delivery) -> Result<Outcome, Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    let mut subscription = subscriber.subscribe().await?;
    loop {
        for delivery in subscription.receive(NonZeroUsize::MIN, Duration::from_secs(5)).await? {
            let proof = loop {
                match handle(&delivery).await? {
                    Outcome::Applied(proof) | Outcome::Known(proof) | Outcome::DeadLetter(proof) => {
                        break proof;
                    }
                    // Before the next message of its key.
                    Outcome::Again { attempts } => {
                        tokio::time::sleep(Duration::from_secs(attempts.min(30).into())).await;
                        subscription.keep_alive(&[delivery.token]).await?;
                    }
                }
            };
            subscription.settle(vec![Settlement::done(&delivery, proof)?]).await?;
        }
    }
}

/// Receives messages for Diesel, which blocks the calling thread; the client of the broker has
/// others.
///
/// # Errors
/// As for [`receive`].
pub fn consume(
    url: &str,
    inbox: &Inbox,
    subscriber: &impl Subscriber,
    bill: impl Fn(&mut PgConnection, &Inbox, &Message) -> Billed,
) -> Result<(), Box<dyn Error>> {
    let mut connection = PgConnection::establish(url)?;
    let handle = async |delivery: &Delivery| match &delivery.message {
        Ok(message) => match bill(&mut connection, inbox, message) {
            Err(error) if is_passing(&error) => {
                connection = PgConnection::establish(url)?;
                Ok(Outcome::Again { attempts: 1 })
            }
            billed => Ok(billed?),
        },
        Err(malformed) => {
            let stored = run_alone(&mut connection, inbox.refuse_delivery(delivery, malformed))?;
            Ok(Outcome::DeadLetter(stored.after_commit()))
        }
    };
    // Diesel blocks this thread; the broker's client has others.
    Builder::new_multi_thread().enable_all().build()?.block_on(receive(subscriber, handle))
}

/// The outcome of a message, or an error that may pass.
pub type Billed = Result<Outcome, statements::Error<diesel::result::Error>>;
