//! Published messages that a consumer has still to apply. Their rows stay: a result that is stored
//! later would not be found without them.

use ::inbox::{Known, KnownState};
use message::MessageId;
use outbox_log::RelayName;
use outbox_log::entries::SelectedEntry;
use uuid::Uuid;

use crate::error::OperateError;
use crate::places::{InboxPlace, OutboxPlace, Places};

/// Why a row stays.
pub(super) const NOT_APPLIED: &str = "not applied yet";

/// Returns whether a configured consumer has still to apply a message that these relays have
/// published: it applies the topic, has not seen the message, and would still accept it.
pub(super) async fn is_awaited(
    places: &Places,
    entry: &SelectedEntry,
    relays: &[&RelayName],
) -> Result<bool, OperateError> {
    for inbox in &places.inboxes {
        if is_due(inbox, places, entry, relays) && !is_settled(inbox, entry.message_id).await? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Expects messages in an inbox as `relay verify` does: nothing is due in one that no consumer has
/// opened.
fn is_due(inbox: &InboxPlace, places: &Places, entry: &SelectedEntry, relays: &[&RelayName]) -> bool {
    let publishes = |outbox: &OutboxPlace| {
        relays.contains(&&outbox.pipeline)
            && inbox.is_of(outbox.pipeline.as_str())
            && !outbox.leaves_out(&entry.topic, &entry.labels)
    };
    let made_at = MessageId::try_from(entry.message_id).map(MessageId::generated_at);
    inbox.takes_topic(&entry.topic)
        && inbox.database.has_memory()
        && made_at.is_ok_and(|at| at >= inbox.database.remembers_from())
        && places.outboxes.iter().any(publishes)
}

/// Returns whether a consumer has applied a message for any tenant, or has it among its dead
/// letters, which lead to its result.
async fn is_settled(inbox: &InboxPlace, id: Uuid) -> Result<bool, OperateError> {
    let is_its = |consumer: &str| inbox.consumer.as_ref().is_none_or(|name| name.as_str() == consumer);
    let is_done = |known: &Known| is_its(&known.consumer) && !matches!(known.state, KnownState::Retrying(_));
    if inbox.database.known(id).await?.iter().any(is_done) {
        return Ok(true);
    }
    let letters = inbox.database.letters_of(id, inbox.consumer.as_ref()).await?;
    Ok(!letters.is_empty())
}
