//! A publishing session that holds the publisher to its promise: exactly one receipt for each
//! submission.

use std::collections::BTreeMap;
use std::time::Duration;

use message::{
    Connector, MaxInFlightPerKey, Message, PublishError, Publisher, Receipt, Receipts, Submission, Ticket,
};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::Failure;

/// How long a receipt may take; only ever used up by a failing test.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Which message, by the caller's number, and what became of it.
pub type Answer = (usize, Result<(), PublishError>);

/// How a session ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Closed, with so much time for what is in flight.
    Close(Duration),
    /// Dropped.
    Drop,
}

/// An open session and what it owes.
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

    /// How many messages of one key may be in flight.
    #[must_use]
    pub fn max_in_flight_per_key(&self) -> MaxInFlightPerKey {
        self.publisher.profile().max_in_flight_per_key
    }

    /// How many receipts have not come yet.
    #[must_use]
    pub fn owed(&self) -> usize {
        self.owed.len()
    }

    /// Hands messages over, each with the caller's own number. Not cancel-safe.
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

    /// Waits for the next receipt, at most [`PATIENCE`]. Cancel-safe.
    ///
    /// # Errors
    /// None came, one came too many, or the session ended and owes some.
    pub async fn answer(&mut self) -> Result<Answer, Failure> {
        let receipt = tokio::time::timeout(PATIENCE, self.receipts.recv())
            .await
            .map_err(|_| format!("{} receipts do not come", self.owed.len()))?
            .ok_or_else(|| format!("the session ended and owes {} receipts", self.owed.len()))?;
        note(&mut self.owed, receipt)
    }

    /// Ends the session; returns the receipts that were still owed, all of them, and no other one.
    /// Not cancel-safe.
    ///
    /// # Errors
    /// A receipt is missing after [`PATIENCE`], or one came too many.
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
