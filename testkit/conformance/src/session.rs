//! A publishing session that checks the publisher's promise: exactly one receipt for each
//! submission.

use std::collections::BTreeMap;
use std::time::Duration;

use message::{
    Connector, MaxInFlightPerKey, Message, PublishError, Publisher, Receipt, Receipts, Submission, Ticket,
};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::Failure;

/// Timeout of a receipt, which only a failing test reaches.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The number that the caller gave a message, and its outcome.
pub type Answer = (usize, Result<(), PublishError>);

/// The way in which a session ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Closed, with this grace period for messages in flight.
    Close(Duration),
    /// Dropped.
    Drop,
}

/// An open session, and the receipts that it owes.
pub struct Session {
    publisher: Box<dyn Publisher>,
    receipts: UnboundedReceiver<Receipt>,
    owed: BTreeMap<Ticket, usize>,
    last_ticket: u64,
}

impl Session {
    /// Opens a session.
    ///
    /// # Errors
    /// The connector's error.
    pub async fn open(connector: &dyn Connector) -> Result<Self, Failure> {
        let (sender, receipts) = Receipts::channel();
        let publisher = connector.connect(sender).await?;
        Ok(Self { publisher, receipts, owed: BTreeMap::new(), last_ticket: 0 })
    }

    /// Returns how many messages of one key may be in flight.
    #[must_use]
    pub fn max_in_flight_per_key(&self) -> MaxInFlightPerKey {
        self.publisher.profile().max_in_flight_per_key
    }

    /// Returns the number of outstanding receipts.
    #[must_use]
    pub fn owed(&self) -> usize {
        self.owed.len()
    }

    /// Submits messages, each with a number from the caller. Not cancel-safe.
    pub async fn submit(&mut self, messages: impl IntoIterator<Item = (usize, Message)>) {
        let mut batch = Vec::new();
        for (number, message) in messages {
            self.last_ticket += 1;
            let ticket = Ticket(self.last_ticket);
            self.owed.insert(ticket, number);
            batch.push(Submission { ticket, message: message.into() });
        }
        self.publisher.submit(batch).await;
    }

    /// Waits for the next receipt, for at most [`PATIENCE`]. Cancel-safe.
    ///
    /// # Errors
    /// No receipt arrived, a superfluous receipt arrived, or the session ended with outstanding
    /// receipts.
    pub async fn answer(&mut self) -> Result<Answer, Failure> {
        let receipt = tokio::time::timeout(PATIENCE, self.receipts.recv())
            .await
            .map_err(|_| format!("{} receipts do not come", self.owed.len()))?
            .ok_or_else(|| format!("the session ended and owes {} receipts", self.owed.len()))?;
        note(&mut self.owed, receipt)
    }

    /// Ends the session. Returns exactly the receipts that were still owed. Not cancel-safe.
    ///
    /// # Errors
    /// A receipt is missing after [`PATIENCE`], or a superfluous receipt arrived.
    pub async fn end(self, how: End) -> Result<Vec<Answer>, Failure> {
        let Self { publisher, mut receipts, mut owed, .. } = self;
        match how {
            End::Close(grace) => publisher.close(grace).await,
            End::Drop => drop(publisher),
        }
        let mut answers = Vec::new();
        loop {
            let next = tokio::time::timeout(PATIENCE, receipts.recv());
            match next.await.map_err(|_| "an ended session does not let go of its receipts")? {
                Some(receipt) => answers.push(note(&mut owed, receipt)?),
                None if owed.is_empty() => return Ok(answers),
                None => return Err(format!("the session ended and owes {} receipts", owed.len()).into()),
            }
        }
    }
}

fn note(owed: &mut BTreeMap<Ticket, usize>, receipt: Receipt) -> Result<Answer, Failure> {
    match owed.remove(&receipt.ticket) {
        Some(number) => Ok((number, receipt.outcome)),
        None => Err(format!("a receipt too many for {:?}: {:?}", receipt.ticket, receipt.outcome).into()),
    }
}
