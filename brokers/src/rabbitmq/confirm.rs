//! Publishes one window and determines the outcome of each of its messages.
//!
//! The client attaches a returned message to whichever confirm it resolves next. So with several
//! publishes in flight, a single confirm proves nothing: of 10,000 pipelined publishes with 1,000
//! unroutable ones, 950 of those read as clean acks (measured, lapin 4.12.3). RabbitMQ sends
//! `basic.return` before the confirm of the same message. So once a whole window is confirmed, all
//! its returns are known, and they are subtracted by message id. A window that breaks off is not
//! trusted at all: a return may still be on its way.

use std::collections::HashSet;
use std::pin::Pin;
use std::task::Poll;

use futures_util::poll;
use lapin::options::BasicPublishOptions;
use lapin::types::ShortString;
use lapin::{Channel, Confirmation, Error, PublisherConfirm};

use super::connection::Connection;
use super::wire::Record;

/// Unroutable messages must be returned instead of being dropped.
const MANDATORY: BasicPublishOptions = BasicPublishOptions { mandatory: true, immediate: false };

/// The outcome of a message whose window is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RecordOutcome {
    /// In a queue, durably.
    Stored,
    /// No queue took it.
    Unroutable,
    /// A queue rejected it.
    Rejected,
}

/// The reason why a window broke off; the outcome of every message in it is unknown.
#[derive(Debug, Clone)]
pub(super) enum Break {
    /// The channel or the connection failed.
    Client(Error),
    /// The broker refused access to a topic that it had granted before.
    Revoked(Error),
    /// No confirm came in time.
    Timeout,
    /// The channel is not in confirm mode: an "ok" would mean nothing.
    ConfirmsOff,
    /// The broker returned a message that is not in the window.
    StrayReturn,
}

/// Publishes a window on a channel of the connection, and waits until every message of it is
/// confirmed.
pub(super) async fn publish(
    connection: &Connection,
    channel: &Channel,
    exchange: &ShortString,
    records: &[Record],
) -> Result<Vec<RecordOutcome>, Break> {
    let confirmed = async {
        let mut sending = Vec::with_capacity(records.len());
        for record in records {
            sending.push(Sending::start(channel, exchange, record).await);
        }
        collect(sending).await
    };
    classify(connection.ask(confirmed).await.map_err(Break::Client)?, records)
}

/// A publish whose frames are queued. The client's future does nothing before its first poll, so
/// polling in sequence is what keeps the order.
enum Sending<'a> {
    Queued(Pin<Box<dyn Future<Output = Result<PublisherConfirm, Error>> + Send + 'a>>),
    Started(Result<PublisherConfirm, Error>),
}

impl<'a> Sending<'a> {
    async fn start(channel: &'a Channel, exchange: &ShortString, record: &'a Record) -> Self {
        let mut publish = Box::pin(channel.basic_publish(
            exchange.clone(),
            record.routing_key.clone(),
            MANDATORY,
            &record.payload,
            record.properties.clone(),
        ));
        match poll!(&mut publish) {
            Poll::Ready(started) => Self::Started(started),
            Poll::Pending => Self::Queued(publish),
        }
    }

    async fn confirmed(self) -> Result<Confirmation, Error> {
        let confirm = match self {
            Self::Queued(publish) => publish.await?,
            Self::Started(started) => started?,
        };
        confirm.await
    }
}

/// Returns all confirms, or the most informative error: the broker's own words count more than "the
/// channel is closed".
async fn collect(sending: Vec<Sending<'_>>) -> Result<Vec<Confirmation>, Error> {
    let mut confirmations = Vec::with_capacity(sending.len());
    let mut failed: Option<Error> = None;
    for one in sending {
        match one.confirmed().await {
            Ok(confirmation) => confirmations.push(confirmation),
            Err(error) if failed.as_ref().is_none_or(|known| !known.is_amqp_error()) => failed = Some(error),
            Err(_) => {}
        }
    }
    failed.map_or(Ok(confirmations), Err)
}

/// Subtracts returned messages from acknowledged ones.
fn classify(confirmations: Vec<Confirmation>, records: &[Record]) -> Result<Vec<RecordOutcome>, Break> {
    let mut fates = Vec::with_capacity(confirmations.len());
    let mut returned = HashSet::new();
    for confirmation in confirmations {
        fates.push(match &confirmation {
            Confirmation::Ack(_) => RecordOutcome::Stored,
            Confirmation::Nack(_) => RecordOutcome::Rejected,
            Confirmation::NotRequested => return Err(Break::ConfirmsOff),
        });
        if let Some(message) = confirmation.take_message() {
            let id = message.delivery.properties.message_id().clone().ok_or(Break::StrayReturn)?;
            returned.insert(id);
        }
    }
    for (fate, record) in fates.iter_mut().zip(records) {
        let id = record.properties.message_id();
        if !returned.is_empty() && id.as_ref().is_some_and(|id| returned.remove(id.as_str())) {
            *fate = RecordOutcome::Unroutable;
        }
    }
    if returned.is_empty() { Ok(fates) } else { Err(Break::StrayReturn) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use lapin::BasicProperties;
    use lapin::message::{BasicReturnMessage, Delivery};

    fn name(text: &str) -> ShortString {
        ShortString::try_new(text).unwrap()
    }

    fn records(ids: &[&str]) -> Vec<Record> {
        let record = |id: &&str| Record {
            routing_key: name("orders"),
            properties: BasicProperties::default().with_message_id(name(id)),
            payload: Bytes::new(),
        };
        ids.iter().map(record).collect()
    }

    fn returned(id: &str) -> Option<BasicReturnMessage> {
        let mut delivery = Delivery::mock(0, name(""), name("orders"), false, Vec::new());
        delivery.properties = BasicProperties::default().with_message_id(name(id));
        Some(BasicReturnMessage { delivery, reply_code: 312, reply_text: name("NO_ROUTE") })
    }

    #[test]
    fn a_return_counts_for_its_own_message_wherever_it_hangs() {
        let confirmations =
            vec![Confirmation::Ack(returned("c")), Confirmation::Nack(None), Confirmation::Ack(None)];
        let fates = classify(confirmations, &records(&["a", "b", "c"])).unwrap();
        assert_eq!(fates, [RecordOutcome::Stored, RecordOutcome::Rejected, RecordOutcome::Unroutable]);
    }

    #[test]
    fn a_window_that_cannot_be_understood_is_not_believed() {
        let stray = classify(vec![Confirmation::Ack(returned("z"))], &records(&["a"]));
        assert!(matches!(stray, Err(Break::StrayReturn)));
        let off = classify(vec![Confirmation::NotRequested], &records(&["a"]));
        assert!(matches!(off, Err(Break::ConfirmsOff)));
    }
}
