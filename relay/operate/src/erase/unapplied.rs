//! Published messages that a consumer has still to apply. Their rows stay: a result that is stored
//! later would not be found without them.

use std::collections::BTreeSet;

use message::MessageId;
use outbox_log::RelayName;
use outbox_log::entries::{EntryName, SelectedEntry};
use uuid::Uuid;

use crate::error::OperateError;
use crate::places::{InboxPlace, OutboxPlace, Places};

/// Why a row stays.
pub(super) const NOT_APPLIED: &str = "not applied yet";

/// A message, and the relays that have published it.
pub(super) struct Published<'a> {
    pub(super) entry: &'a SelectedEntry,
    pub(super) relays: Vec<&'a RelayName>,
}

/// Returns the messages that a configured consumer has still to apply: it applies the topic, has
/// not seen the message, and would still accept it. One statement for each inbox.
pub(super) async fn awaited(
    places: &Places,
    published: &[Published<'_>],
) -> Result<BTreeSet<EntryName>, OperateError> {
    let mut awaited = BTreeSet::new();
    for inbox in &places.inboxes {
        let due = published.iter().filter(|message| is_due(inbox, places, message));
        let due: BTreeSet<EntryName> = due.map(|message| message.entry.name()).collect();
        if due.is_empty() {
            continue;
        }
        let ids: Vec<Uuid> = due.iter().map(|name| name.message_id).collect();
        // A dead letter leads to the result of its message.
        let settled = inbox.database.settled(&ids, inbox.consumer.as_ref()).await?;
        let settled: BTreeSet<Uuid> = settled.into_iter().collect();
        awaited.extend(due.into_iter().filter(|name| !settled.contains(&name.message_id)));
    }
    Ok(awaited)
}

/// Expects messages in an inbox as `relay verify` does: nothing is due in one that no consumer has
/// opened.
fn is_due(inbox: &InboxPlace, places: &Places, message: &Published<'_>) -> bool {
    let Published { entry, relays } = message;
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
