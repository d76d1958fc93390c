//! A consumer that takes nothing although messages were published for it.

use std::time::Duration;

use inbox::KnownState;
use outbox_log::entries::{Extent, Search, SelectedEntry, Standing};
use outbox_log::{EntryId, LogError};
use time::OffsetDateTime;
use uuid::Uuid;

use super::searches::{Known, Searches, Untaken};
use crate::error::OperateError;
use crate::places::{InboxPlace, OutboxPlace};

/// The time that a published message may need until its consumer knows it. Only consumers that have
/// applied nothing for as long are examined.
const TAKEN_WITHIN: Duration = Duration::from_secs(300);

/// Maximum number of rows of a log that are searched for a consumer's newest message.
const LOOKED_AT_MAX: u64 = 20_000;

/// Maximum number of rows of a log that are searched for the place up to which a consumer has come:
/// enough for a topic that has one row in some thousands.
const PASSED_MAX: u64 = 200_000;

/// Maximum number of messages that one call returns: the newest may be parked, or left to others.
const PER_CALL: u32 = 50;

/// Maximum number of places of a log at which a consumer that catches up is searched: more than
/// enough for a log of any length.
const PLACES_MAX: u32 = 64;

/// Returns the newest message that was published for the consumer of an inbox and that it does not
/// know, if it has applied nothing for some time. Uses what earlier `searches` have shown. An
/// outbox that does not answer is left out: it is reported with its pipeline.
pub(super) async fn find(
    inbox: &InboxPlace,
    last_applied_at: Option<OffsetDateTime>,
    outboxes: &[OutboxPlace],
    searches: &Searches,
) -> Result<Option<Untaken>, OperateError> {
    let outboxes: Vec<_> = outboxes.iter().filter(|place| inbox.is_of(place.pipeline.as_str())).collect();
    if inbox.consumer.is_none() || !inbox.database.has_memory() || outboxes.is_empty() {
        return Ok(None);
    }
    let known = searches.of(inbox, &outboxes);
    let mut known = known.lock().await;
    if let Some(known) = known.as_ref().filter(|known| known.holds(last_applied_at)) {
        let Some(untaken) = known.untaken() else { return Ok(None) };
        let has_arrived = is_known(inbox, untaken.message_id).await?;
        return Ok((!has_arrived).then_some(untaken));
    }
    let now = inbox.database.now().await?;
    let quiet = last_applied_at.map(|at| since(now, at));
    if let Some(time) = quiet.and_then(|quiet| TAKEN_WITHIN.checked_sub(quiet)).filter(|time| !time.is_zero())
    {
        *known = Some(Known::works(last_applied_at, time));
        return Ok(None);
    }
    let Searched { untaken, is_complete } = search(inbox, &outboxes, now, quiet).await?;
    *known = is_complete.then(|| Known::searched(last_applied_at, untaken.clone()));
    Ok(untaken)
}

/// The result of a search of all outboxes.
struct Searched {
    untaken: Option<Untaken>,
    /// Whether all of them have answered.
    is_complete: bool,
}

/// When a consumer took a message of a topic.
#[derive(Debug, Clone, Copy)]
enum LastTaken {
    At(OffsetDateTime),
    /// It has taken none that it remembers.
    Never,
    /// The search was too long to say.
    NotFound,
}

async fn search(
    inbox: &InboxPlace,
    outboxes: &[&OutboxPlace],
    now: OffsetDateTime,
    quiet: Option<Duration>,
) -> Result<Searched, OperateError> {
    let remembers_from = inbox.database.remembers_from();
    let mut is_complete = true;
    for outbox in outboxes {
        let newest = newest(outbox, inbox).await;
        is_complete &= newest.is_ok();
        for entry in newest.unwrap_or_default() {
            if entry.enqueued_at < remembers_from || is_known(inbox, entry.message_id).await? {
                continue;
            }
            let taken = match last_taken(outbox, inbox, &entry, now).await {
                // An outbox that does not answer is reported in its own place.
                Err(_) => {
                    is_complete = false;
                    continue;
                }
                // It may catch up.
                Ok(LastTaken::NotFound) => continue,
                Ok(LastTaken::Never) => None,
                Ok(LastTaken::At(at)) => Some(since(now, at)),
            };
            if taken.is_some_and(|quiet| quiet < TAKEN_WITHIN) {
                // It catches up.
                continue;
            }
            let quiet = [quiet, taken].into_iter().flatten().min();
            let untaken = Untaken {
                pipeline: outbox.pipeline.to_string(),
                topic: entry.topic,
                message_id: entry.message_id,
                quiet: quiet.unwrap_or_else(|| since(now, entry.enqueued_at)),
                age: Duration::ZERO,
            };
            return Ok(Searched { untaken: Some(untaken), is_complete });
        }
    }
    Ok(Searched { untaken: None, is_complete })
}

/// Returns the time between two times of databases, whose clocks may differ.
fn since(now: OffsetDateTime, at: OffsetDateTime) -> Duration {
    (now - at).max(time::Duration::ZERO).unsigned_abs()
}

/// Returns whether the message has arrived. One that the guard refused, such as one that is too old
/// or has no tenant, has only a dead letter, which counts for an inbox of all scopes.
async fn is_known(inbox: &InboxPlace, message: Uuid) -> Result<bool, OperateError> {
    let known = inbox.database.known(message).await?;
    if known.iter().any(|known| inbox.holds(&known.consumer, &known.tenant)) {
        return Ok(true);
    }
    if inbox.scope.is_some() {
        return Ok(false);
    }
    Ok(!inbox.database.settled(&[message], inbox.consumer.as_ref()).await?.is_empty())
}

/// Returns when the consumer took a message of the topic of `newest`, which it does not know: the
/// latest time that was found. Activity counts only messages of the last hour, and a consumer that
/// catches up takes older ones: this searches the place up to which it has come.
async fn last_taken(
    outbox: &OutboxPlace,
    inbox: &InboxPlace,
    newest: &SelectedEntry,
    now: OffsetDateTime,
) -> Result<LastTaken, OperateError> {
    let extent = outbox.entries.extent(&outbox.pipeline).await?;
    let remembered = outbox.entries.firsts(&[inbox.database.remembers_from()]).await?;
    let Some(mut known) = remembered.into_iter().flatten().next() else { return Ok(LastTaken::Never) };
    let search = Search { topic: Some(newest.topic.clone()), ..Search::default() };
    let mut unknown = newest.id;
    let mut last = None;
    let mut looked_at = 0;
    for _ in 0..PLACES_MAX {
        let between = unknown.0.saturating_sub(known.0);
        if between <= 1 {
            break;
        }
        // The last step looks immediately below the first unknown message.
        let is_last = between <= i64::from(PER_CALL);
        let middle = if is_last { unknown } else { EntryId(known.0 + between / 2) };
        // Other topics may fill the log between two messages of this one.
        let mut ids = Vec::new();
        let mut below = Some(middle);
        while let Some(from) = below.filter(|from| *from > known && ids.is_empty()) {
            if looked_at >= PASSED_MAX {
                return Ok(last.map_or(LastTaken::NotFound, LastTaken::At));
            }
            let part = outbox.entries.search(&outbox.pipeline, &extent, &search, from, PER_CALL).await?;
            let published = part.entries.iter().filter(|entry| is_published(outbox, entry));
            ids.extend(published.map(|entry| entry.message_id));
            looked_at += part.looked_at;
            below = part.below;
        }
        let found = taken(inbox, &ids).await?;
        last = last.max(found);
        if last.is_some_and(|at| now - at < TAKEN_WITHIN) || is_last {
            break;
        }
        // Without a message of the topic below the middle, the place can only be above it.
        if found.is_some() || ids.is_empty() {
            known = middle;
        } else {
            unknown = middle;
        }
    }
    Ok(last.map_or(LastTaken::Never, LastTaken::At))
}

/// Returns when the consumer took the first of these messages that it knows.
async fn taken(inbox: &InboxPlace, messages: &[Uuid]) -> Result<Option<OffsetDateTime>, OperateError> {
    let settled = inbox.database.settled(messages, inbox.consumer.as_ref()).await?;
    for message in messages.iter().filter(|message| settled.contains(message)) {
        let known = inbox.database.known(*message).await?;
        let own = known.into_iter().filter(|known| inbox.holds(&known.consumer, &known.tenant));
        let applied = own.filter_map(|known| match known.state {
            KnownState::Applied { at, .. } => Some(at),
            KnownState::Dead(_) | KnownState::Retrying(_) => None,
        });
        if let Some(at) = applied.max() {
            return Ok(Some(at));
        }
    }
    Ok(None)
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
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use inbox::ConsumerName;
    use migrations::{Line, Migrator};
    use sqlx::{AssertSqlSafe, Connection as _, Sqlite, SqliteConnection};

    use super::*;
    use crate::places::Places;
    use crate::sample::Sample;

    /// The messages of four hours, at equal intervals, of which the last one is ten minutes old.
    /// Those for which `@orders` holds are of the topic `orders`.
    const MESSAGES: &str = "\
        INSERT INTO outbox_message (message_id, topic, payload, enqueued_at) \
        SELECT printf('%s-%s-7000-8000-%012d', substr(hex, 1, 8), substr(hex, 9, 4), n), \
            iif(@orders, 'orders', 'others'), x'', at * 1000 FROM ( \
            SELECT n, at, printf('%012x', at) AS hex FROM ( \
            SELECT value AS n, (unixepoch() - 600) * 1000 - (@count - value) * 14000000 / @count AS at FROM \
            (WITH RECURSIVE n (value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n WHERE value < @count) \
                SELECT value FROM n))); \
        INSERT INTO outbox_relay (relay, epoch, cursor) VALUES ('orders', 1, '{\"base\":\"@count\",\"progress\":null}')";

    /// The consumer `billing` has taken messages up to this one, at one each second until some time
    /// ago; the consumer `mail` has taken all of them.
    const TAKEN: &str = "\
        ATTACH '@outbox' AS o; \
        INSERT INTO inbox_message (message_id, consumer, fingerprint, processed_at) \
        SELECT message_id, 'billing', zeroblob(32), (unixepoch() - @ago - (@upto - id)) * 1000000 \
            FROM o.outbox_message WHERE id <= @upto AND topic = 'orders' UNION ALL \
        SELECT message_id, 'mail', zeroblob(32), unixepoch() * 1000000 FROM o.outbox_message; \
        DETACH o";

    /// Returns for how long the consumer `billing` is reported to have applied nothing, in a log of
    /// 1,000 messages.
    async fn quiet(upto: u32, ago: u32) -> Option<Duration> {
        quiet_in(1_000, "n % 10 <> 0", upto, ago).await
    }

    async fn quiet_in(count: u32, orders: &str, upto: u32, ago: u32) -> Option<Duration> {
        let sample = Sample::open().await;
        sample.run(&MESSAGES.replace("@count", &count.to_string()).replace("@orders", orders)).await;
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}?mode=rwc", folder.path().join("inbox.db").display());
        let mut connection = SqliteConnection::connect(&url).await.unwrap();
        Migrator::<Sqlite>::new(Line::Inbox).up(&mut connection).await.unwrap();
        let remembers = "INSERT INTO inbox_retention (retained_from, id_floor) VALUES \
            ((unixepoch() / 86400 - 1) * 86400000000, '00000000-0000-7000-8000-000000000000')";
        sqlx::raw_sql(remembers).execute(&mut connection).await.unwrap();
        let outbox = sample.path();
        let taken = TAKEN.replace("@outbox", &outbox).replace("@ago", &ago.to_string());
        let taken = taken.replace("@upto", &upto.to_string());
        sqlx::raw_sql(AssertSqlSafe(taken)).execute(&mut connection).await.unwrap();
        let places = Places::new().outbox(&sample.pipeline).inbox_at(&url.into(), None, false).await;
        assert_eq!(places.away(), []);
        let inbox = InboxPlace {
            consumer: Some(ConsumerName::new("billing").unwrap()),
            topics: BTreeSet::from([String::from("orders")]),
            pipelines: BTreeSet::new(),
            scope: None,
            location: String::new(),
            database: Arc::clone(&places.inboxes[0].database),
        };
        let found = find(&inbox, None, places.outboxes(), &Searches::default()).await.unwrap();
        found.map(|untaken| untaken.quiet)
    }

    /// Goal: a consumer that takes messages that are hours old, one after the other, is not
    /// reported, although it has none of the last hour and its database has many of another
    /// consumer; one that has stopped in the middle is. Oracle: for how long.
    #[tokio::test]
    async fn a_consumer_that_catches_up_applies_something() {
        for upto in [5, 333, 700, 998] {
            assert_eq!(quiet(upto, 0).await, None, "up to {upto}");
        }
        let stopped = quiet(333, 1_000).await.unwrap().as_secs();
        assert!((1_000..1_060).contains(&stopped), "{stopped} s");
        let never = quiet(0, 0).await.unwrap().as_secs();
        assert!((600..660).contains(&never), "{never} s: since the newest message");
    }

    /// Goal: other topics that fill the log between two messages of the consumer's topic do not
    /// hide which of them it has taken. Oracle: for how long.
    #[tokio::test]
    async fn a_consumer_of_a_rare_topic_that_catches_up_applies_something() {
        let rare = "n % 15000 = 1";
        for upto in [30_001, 60_001] {
            assert_eq!(quiet_in(75_001, rare, upto, 0).await, None, "up to {upto}");
        }
        let stopped = quiet_in(75_001, rare, 30_001, 1_000).await.unwrap().as_secs();
        assert!((1_000..1_060).contains(&stopped), "{stopped} s");
    }

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
