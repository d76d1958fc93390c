//! A consumer that takes nothing although messages were published for it.

use std::time::Duration;

use outbox_log::entries::{Extent, Search, SelectedEntry, Standing};
use outbox_log::{EntryId, LogError};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::error::OperateError;
use crate::places::{InboxPlace, OutboxPlace};
use crate::status::{Symptom, Wait};

/// The time that a published message may need until its consumer knows it. Only consumers that have
/// applied nothing for as long are examined.
const TAKEN_WITHIN: Duration = Duration::from_secs(300);

/// Maximum number of rows of a log that are searched for a consumer's newest message.
const LOOKED_AT_MAX: u64 = 20_000;

/// Maximum number of messages that one call returns: the newest may be parked, or left to others.
const PER_CALL: u32 = 50;

/// The newest message that was published for a consumer, which its inbox does not know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Untaken {
    /// The pipeline.
    pub pipeline: String,
    /// The topic.
    pub topic: String,
    /// The message.
    pub message_id: Uuid,
    /// For how long the consumer has applied nothing; at most the age of the message if it is not
    /// known when a message last took effect.
    pub quiet: Duration,
}

impl Untaken {
    /// Returns the condition. It may pass: a consumer that skips kinds stores nothing about them.
    pub(super) fn wait(&self) -> Wait {
        let Self { pipeline, topic, message_id, quiet } = self;
        Wait {
            symptom: Symptom::ConsumerStalled,
            why: format!(
                "it applies nothing: message {message_id} of topic {topic} was published by {pipeline} and \
                 has not arrived"
            ),
            count: None,
            cause: None,
            lasts: Some(*quiet),
            passes: true,
        }
    }
}

/// Returns the newest message that was published for the consumer of an inbox and that it does not
/// know, if it has applied nothing for some time. An outbox that does not answer is left out: it is
/// reported with its pipeline.
pub(super) async fn find(
    inbox: &InboxPlace,
    last_applied_at: Option<OffsetDateTime>,
    outboxes: &[OutboxPlace],
) -> Result<Option<Untaken>, OperateError> {
    let outboxes: Vec<_> = outboxes.iter().filter(|place| inbox.is_of(place.pipeline.as_str())).collect();
    if inbox.consumer.is_none() || !inbox.database.has_memory() || outboxes.is_empty() {
        return Ok(None);
    }
    let now = inbox.database.now().await?;
    let is_quiet = last_applied_at.is_none_or(|at| now - at >= TAKEN_WITHIN);
    if !is_quiet {
        return Ok(None);
    }
    let remembers_from = inbox.database.remembers_from();
    for outbox in outboxes {
        for entry in newest(outbox, inbox).await.unwrap_or_default() {
            if entry.enqueued_at < remembers_from || is_known(inbox, entry.message_id).await? {
                continue;
            }
            let quiet = now - last_applied_at.unwrap_or(entry.enqueued_at);
            return Ok(Some(Untaken {
                pipeline: outbox.pipeline.to_string(),
                topic: entry.topic,
                message_id: entry.message_id,
                quiet: quiet.max(time::Duration::ZERO).unsigned_abs(),
            }));
        }
    }
    Ok(None)
}

/// Returns whether the message has arrived. One that the guard refused, such as one that is too old
/// or has no tenant, has only a dead letter.
async fn is_known(inbox: &InboxPlace, message: Uuid) -> Result<bool, OperateError> {
    let known = inbox.database.known(message).await?;
    if known.iter().any(|known| inbox.holds(&known.consumer, &known.tenant)) {
        return Ok(true);
    }
    Ok(!inbox.database.settled(&[message], inbox.consumer.as_ref()).await?.is_empty())
}

/// Returns the newest message of each topic of an inbox that a pipeline has published, among those
/// that are old enough to be known.
async fn newest(outbox: &OutboxPlace, inbox: &InboxPlace) -> Result<Vec<SelectedEntry>, LogError> {
    let extent = outbox.entries.extent(&outbox.pipeline).await?;
    let Some(newest) = extent.newest.filter(|_| extent.is_of_this_server) else { return Ok(Vec::new()) };
    let young = outbox.entries.firsts(&[extent.now - TAKEN_WITHIN]).await?.into_iter().flatten().next();
    let below = young.unwrap_or(EntryId(newest.0.saturating_add(1)));
    let topics = inbox.topics.iter().map(|topic| Some(topic.clone()));
    let topics = if inbox.topics.is_empty() { vec![None] } else { topics.collect() };
    let mut found = Vec::new();
    for topic in topics {
        let search = Search { topic, ..Search::default() };
        found.extend(newest_of(outbox, &extent, &search, below).await?);
    }
    Ok(found)
}

async fn newest_of(
    outbox: &OutboxPlace,
    extent: &Extent,
    search: &Search,
    below: EntryId,
) -> Result<Option<SelectedEntry>, LogError> {
    let mut below = Some(below);
    let mut looked_at = 0;
    while let Some(from) = below.filter(|_| looked_at < LOOKED_AT_MAX) {
        let part = outbox.entries.search(&outbox.pipeline, extent, search, from, PER_CALL).await?;
        let mut published = part.entries.into_iter().filter(|entry| is_published(outbox, entry));
        if let Some(entry) = published.next() {
            return Ok(Some(entry));
        }
        looked_at += part.looked_at;
        below = part.below;
    }
    Ok(None)
}

fn is_published(outbox: &OutboxPlace, entry: &SelectedEntry) -> bool {
    matches!(entry.standing, Standing::Published | Standing::Edited)
        && !entry.message_id.is_nil()
        && !outbox.leaves_out(&entry.topic, &entry.labels)
}

#[cfg(test)]
mod tests {
    use inbox::ConsumerName;
    use migrations::{Line, Migrator};
    use sqlx::{Connection as _, Sqlite, SqliteConnection};

    use super::*;
    use crate::places::Places;

    /// Goal: a message that is a dead letter is not reported as one that has not arrived, also if
    /// the guard refused it before it had a row. Oracle: the reasons, and another consumer.
    #[tokio::test]
    async fn a_message_that_the_guard_refused_has_arrived() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}?mode=rwc", folder.path().join("inbox.db").display());
        let mut connection = SqliteConnection::connect(&url).await.unwrap();
        Migrator::<Sqlite>::new(Line::Inbox).up(&mut connection).await.unwrap();
        let reasons = ["too_old", "from_the_future", "no_scope"];
        let id = |number: u128| Uuid::from_u128(0x019f_0000_0000_7000_8000_0000_0000_0000 + number);
        for (number, reason) in (0..).zip(reasons) {
            let insert = "\
                INSERT INTO inbox_dead_letter (id, consumer, scope, subject, fingerprint, topic, headers, payload, \
                    reason, error, attempts, origin) \
                VALUES ($1, 'billing', '', $1, x'00', 'invoices', '[]', x'', $2, 'refused', 0, 'q')";
            let insert = sqlx::query(insert).bind(id(number).to_string()).bind(reason);
            insert.execute(&mut connection).await.unwrap();
        }
        let places = Places::new().inbox_at(&url.into(), None, false).await;
        let of = |name: &str| InboxPlace {
            consumer: Some(ConsumerName::new(name).unwrap()),
            ..places.inboxes[0].clone()
        };
        for (number, reason) in (0..).zip(reasons) {
            assert!(is_known(&of("billing"), id(number)).await.unwrap(), "{reason}");
            assert!(!is_known(&of("shipping"), id(number)).await.unwrap(), "{reason}");
        }
        assert!(!is_known(&of("billing"), id(3)).await.unwrap());
    }
}
