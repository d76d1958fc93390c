//! A submission that owes its caller a receipt.

use message::{PublishError, Receipts, Ticket};

/// A guarantee of exactly one receipt for a ticket. Dropping it unanswered (a cancelled task, a
/// broken session, a closed publisher) reports the outcome as unknown.
#[derive(Debug)]
pub(crate) struct Pending {
    ticket: Ticket,
    receipts: Option<Receipts>,
}

impl Pending {
    pub(crate) fn new(ticket: Ticket, receipts: Receipts) -> Self {
        Self { ticket, receipts: Some(receipts) }
    }

    /// Returns the ticket of the submission.
    #[cfg(feature = "kafka")]
    pub(crate) fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// Transfers the duty to answer to the caller, who answers under the returned ticket.
    #[cfg(feature = "kafka")]
    pub(crate) fn hand_over(mut self) -> Ticket {
        self.receipts = None;
        self.ticket
    }

    /// Sends the receipt.
    pub(crate) fn answer(mut self, outcome: Result<(), PublishError>) {
        if let Some(receipts) = self.receipts.take() {
            receipts.send(self.ticket, outcome);
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(receipts) = self.receipts.take() {
            let unknown = "the session ended before the broker confirmed the message; its outcome is unknown";
            receipts.send(self.ticket, Err(PublishError::session_lost(unknown)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use message::{Fault, FaultScope};

    #[test]
    fn there_is_exactly_one_receipt_answered_or_not() {
        let (receipts, mut received) = Receipts::channel();
        Pending::new(Ticket(1), receipts.clone()).answer(Ok(()));
        drop(Pending::new(Ticket(2), receipts));
        let answered = received.try_recv().unwrap();
        assert!(answered.ticket == Ticket(1) && answered.outcome.is_ok());
        let dropped = received.try_recv().unwrap();
        assert_eq!(dropped.ticket, Ticket(2));
        let error = dropped.outcome.unwrap_err();
        assert_eq!((error.fault(), error.scope()), (Fault::Broker, FaultScope::Session));
        assert!(received.try_recv().is_err());
    }
}
