//! Finds waiting messages.

use std::fmt;
use std::str::FromStr;

use outbox_log::{EntryId, ExceptionState};

use super::filter::Filter;
use super::message::{DeadMessage, Row};
use super::reading::Reading;
use crate::error::OperateError;
use crate::operator::{Operator, Role};
use crate::places::Places;

/// The states of messages to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum States {
    /// Messages that need an operator: dead entries and open dead letters.
    Dead,
    /// Entries of outboxes in one other state; no dead letters.
    Parked(ExceptionState),
    /// Open and closed dead letters.
    Closed,
    /// Everything that is parked, and closed dead letters.
    Any,
}

const ALL_STATES: [ExceptionState; 5] = [
    ExceptionState::Dead,
    ExceptionState::Held,
    ExceptionState::Retrying,
    ExceptionState::Scheduled,
    ExceptionState::Discarded,
];

impl States {
    pub(super) fn of_outbox(self) -> Vec<ExceptionState> {
        match self {
            Self::Dead | Self::Closed => vec![ExceptionState::Dead],
            Self::Parked(state) => vec![state],
            Self::Any => ALL_STATES.to_vec(),
        }
    }

    /// Returns whether closed dead letters are included; `None` if there are no dead letters at
    /// all.
    pub(super) fn of_inbox(self) -> Option<bool> {
        match self {
            Self::Dead => Some(false),
            Self::Parked(state) => (state == ExceptionState::Dead).then_some(false),
            Self::Closed | Self::Any => Some(true),
        }
    }
}

/// The messages found, and the places that do not answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Listed {
    /// The messages: those of outboxes in the order of the log, followed by dead letters in the
    /// order of their ids.
    pub messages: Vec<DeadMessage>,
    /// Whether there are more than requested.
    pub more: bool,
    /// The beginning of the next page; `None` after the last one.
    pub next: Option<Bookmark>,
    /// The errors of places that do not answer; their messages are missing.
    pub away: Vec<OperateError>,
}

/// Lists at most `limit` waiting messages. Cancel-safe.
///
/// # Errors
/// [`OperateError`] when the operator may not view parked messages. [`Listed::away`] has the errors
/// of unreachable databases.
pub async fn list(
    places: &Places,
    operator: &Operator,
    filter: &Filter,
    states: States,
    limit: usize,
) -> Result<Listed, OperateError> {
    operator.permit(Role::Viewer, "view parked messages")?;
    let mut listed = find(places, filter, states, limit.saturating_add(1)).await;
    listed.more = listed.messages.len() > limit || listed.next.is_some();
    listed.messages.truncate(limit);
    Ok(listed)
}

/// Lists one page of at most `limit` waiting messages, starting at a bookmark. It reads a bounded
/// number of rows, so a page can have fewer messages, or none, and still have a next one.
/// Cancel-safe.
///
/// # Errors
/// [`OperateError`] when the operator may not view parked messages. [`Listed::away`] has the errors
/// of unreachable databases.
pub async fn page(
    places: &Places,
    operator: &Operator,
    filter: &Filter,
    states: States,
    from: Option<Bookmark>,
    limit: usize,
) -> Result<Listed, OperateError> {
    operator.permit(Role::Viewer, "view parked messages")?;
    let mut reading = Reading::new(filter, states, limit.saturating_add(1), SCANNED_MAX);
    let mut listed = reading.all(places, from).await;
    if listed.messages.len() > limit {
        listed.messages.truncate(limit);
        listed.next = listed.messages.last().map(Bookmark::after);
    }
    listed.more = listed.next.is_some();
    Ok(listed)
}

/// Finds single messages in any state. Cancel-safe.
///
/// # Errors
/// [`OperateError`] names the messages that were not found, or the place that does not answer.
pub async fn show(
    places: &Places,
    operator: &Operator,
    filter: &Filter,
) -> Result<Vec<DeadMessage>, OperateError> {
    operator.permit(Role::Viewer, "view parked messages")?;
    let Listed { messages, away, .. } = find(places, filter, States::Any, usize::MAX).await;
    let missing: Vec<String> = filter
        .ids
        .iter()
        .filter(|id| !messages.iter().any(|message| id.names(message)))
        .map(ToString::to_string)
        .collect();
    match away.into_iter().next() {
        _ if missing.is_empty() => Ok(messages),
        Some(error) => Err(error),
        None => {
            let text = format!("not parked: {}", missing.join(", "));
            let help = "it was published, or was never here; `relay dead list` shows dead messages, and with --state other parked ones";
            Err(OperateError::refused(text, help))
        }
    }
}

/// Finds at most `limit` messages in all places. Given ids are looked up.
pub(crate) async fn find(places: &Places, filter: &Filter, states: States, limit: usize) -> Listed {
    Reading::new(filter, states, limit, usize::MAX).all(places, None).await
}

/// Maximum number of rows read for one page, however many match the filter.
const SCANNED_MAX: usize = 10_000;

/// A position in the list of waiting messages. Its text is used in addresses and forms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bookmark(pub(super) Row, pub(super) ExceptionState);

impl Bookmark {
    fn after(message: &DeadMessage) -> Self {
        Self(message.row, message.state.parked().unwrap_or(ExceptionState::Dead))
    }
}

impl fmt::Display for Bookmark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Row::Outbox(place, id) => write!(f, "outbox-{place}-{}-{id}", self.1),
            Row::Inbox(place, id) => write!(f, "inbox-{place}-dead-{id}"),
        }
    }
}

impl FromStr for Bookmark {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let read = || {
            let mut parts = text.splitn(4, '-');
            let (source, place, state, id) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
            let place = place.parse().ok()?;
            let row = match source {
                "outbox" => Row::Outbox(place, EntryId(id.parse().ok()?)),
                "inbox" => Row::Inbox(place, id.parse().ok()?),
                _ => return None,
            };
            Some(Self(row, state.parse().ok()?))
        };
        read().ok_or("it is not a valid position in the list: start with the first page")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Sample;

    /// Goal: a list says `dead again` only where an operator has requeued the message before,
    /// whichever statement reads it. Oracle: a message that was only edited, one that was requeued,
    /// and the same one while it is retried.
    #[tokio::test]
    async fn a_message_is_dead_again_only_after_a_requeue() {
        let sample = Sample::open().await;
        sample
            .run(
                "INSERT INTO outbox_exception (relay, id, message_id, topic, state, fault, error) \
                 SELECT 'orders', value, '019f0000-0000-7000-8000-00000000000' || value, 'orders', 'dead', \
                 'message', 'refused' FROM json_each('[1, 2]'); \
                 INSERT INTO outbox_audit (actor, note, action, relay, id, message_id, at) VALUES \
                 ('ann', 'a typo', 'edit', 'orders', 1, '019f0000-0000-7000-8000-000000000001', 1000000), \
                 ('ann', 'again', 'requeue', 'orders', 2, '019f0000-0000-7000-8000-000000000002', 1000000)",
            )
            .await;
        let places = Places::new().outbox(&sample.pipeline);
        let viewer = Operator::new("eve", Role::Viewer);
        let states = async |states| {
            let listed = list(&places, &viewer, &Filter::default(), states, 10).await.unwrap();
            assert_eq!(listed.away, []);
            listed.messages.iter().map(DeadMessage::state_told).collect::<Vec<_>>()
        };
        assert_eq!(states(States::Dead).await, ["dead", "dead again"]);
        let place = &places.outboxes[0];
        let listed = place.log.list(&place.pipeline, ExceptionState::Dead, EntryId::default(), 10).await;
        let died_again: Vec<bool> = listed.unwrap().iter().map(|entry| entry.died_again).collect();
        assert_eq!(died_again, [false, true]);
        sample.run("UPDATE outbox_exception SET state = 'retrying', due_at = 9000000000000000").await;
        assert_eq!(states(States::Parked(ExceptionState::Retrying)).await, ["retrying", "retrying"]);
    }

    #[test]
    fn a_bookmark_goes_through_an_address() {
        let letter = "0190aaaa-0000-7000-8000-000000000001".parse().unwrap();
        for bookmark in [
            Bookmark(Row::Outbox(2, EntryId(77)), ExceptionState::Held),
            Bookmark(Row::Inbox(0, letter), ExceptionState::Dead),
        ] {
            assert_eq!(bookmark.to_string().parse(), Ok(bookmark));
        }
        for broken in ["", "outbox", "outbox-1-dead-x", "outbox-1-x-1", "inbox-1-dead-1", "x-1-dead-1"] {
            assert!(broken.parse::<Bookmark>().is_err(), "{broken}");
        }
    }
}
