//! Searches for messages that consumers do not take, and their results for later looks. A page that
//! is read looks every few seconds, and a search of a log for the newest message of a rare topic
//! reads thousands of rows.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use inbox::{ConsumerName, Tenant};
use time::OffsetDateTime;
use tokio::sync::Mutex;
use tokio::time::Instant;
use uuid::Uuid;

use crate::places::{InboxPlace, OutboxPlace};
use crate::status::{Symptom, Wait};

/// How long the result of a search is reused.
const SEARCH_INTERVAL: Duration = Duration::from_secs(60);

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
    /// How long ago the log was searched for the message.
    pub age: Duration,
}

impl Untaken {
    /// Returns the condition. It may pass: a consumer that skips kinds stores nothing about them.
    pub(super) fn wait(&self) -> Wait {
        let Self { pipeline, topic, message_id, quiet, .. } = self;
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

/// The searches of a process for messages that consumers do not take. A process that looks again
/// and again keeps them: then each consumer's messages are searched for at most once a minute, and
/// one that works is not asked for its time at each look.
#[derive(Debug, Default)]
pub struct Searches {
    known: StdMutex<HashMap<Subject, Arc<Mutex<Option<Known>>>>>,
}

/// A consumer, and the messages that it should take.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Subject {
    location: String,
    consumer: Option<ConsumerName>,
    scope: Option<Tenant>,
    topics: BTreeSet<String>,
    pipelines: Vec<String>,
}

impl Searches {
    /// Returns what is known of a consumer. Its lock is held during a search, so that two looks at
    /// once search once.
    pub(super) fn of(&self, inbox: &InboxPlace, outboxes: &[&OutboxPlace]) -> Arc<Mutex<Option<Known>>> {
        let subject = Subject {
            location: inbox.location.clone(),
            consumer: inbox.consumer.clone(),
            scope: inbox.scope.clone(),
            topics: inbox.topics.clone(),
            pipelines: outboxes.iter().map(|outbox| outbox.pipeline.to_string()).collect(),
        };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(known.entry(subject).or_default())
    }
}

/// The result of a look.
#[derive(Debug, Clone)]
pub(super) struct Known {
    /// When the consumer had applied a message last.
    last_applied_at: Option<OffsetDateTime>,
    at: Instant,
    shown: Shown,
}

#[derive(Debug, Clone)]
enum Shown {
    /// The consumer works: it cannot be quiet before this time has passed.
    Works(Duration),
    /// It is quiet, and a search has found this.
    Searched(Option<Untaken>),
}

impl Known {
    /// Records a consumer that is not quiet before this time has passed.
    pub(super) fn works(last_applied_at: Option<OffsetDateTime>, time: Duration) -> Self {
        Self { last_applied_at, at: Instant::now(), shown: Shown::Works(time) }
    }

    /// Records the result of a search.
    pub(super) fn searched(last_applied_at: Option<OffsetDateTime>, found: Option<Untaken>) -> Self {
        Self { last_applied_at, at: Instant::now(), shown: Shown::Searched(found) }
    }

    /// Returns whether it still holds for a consumer that has applied a message last at this time.
    pub(super) fn holds(&self, last_applied_at: Option<OffsetDateTime>) -> bool {
        let age = self.at.elapsed();
        match self.shown {
            Shown::Works(time) => age < time && last_applied_at >= self.last_applied_at,
            Shown::Searched(_) => age < SEARCH_INTERVAL && last_applied_at == self.last_applied_at,
        }
    }

    /// Returns the message that the search has found, with the times of now.
    pub(super) fn untaken(&self) -> Option<Untaken> {
        let Shown::Searched(Some(found)) = &self.shown else { return None };
        let age = self.at.elapsed();
        Some(Untaken { quiet: found.quiet + age, age, ..found.clone() })
    }
}

#[cfg(test)]
mod tests {
    use brokers::Secret;
    use migrations::{Line, Migrator};
    use sqlx::{AssertSqlSafe, Connection as _, Sqlite, SqliteConnection};

    use super::super::consumers;
    use super::*;
    use crate::operator::{Operator, Role};
    use crate::places::Places;
    use crate::sample::Sample;
    use crate::settings::InboxConfig;

    fn seconds(seconds: i64) -> Option<OffsetDateTime> {
        Some(OffsetDateTime::from_unix_timestamp(seconds).unwrap())
    }

    /// Goal: what a look has shown is used again only while it can be true. Oracle: whether it
    /// holds, by the time that has passed and what the consumer has applied since.
    #[tokio::test(start_paused = true)]
    async fn a_look_holds_until_the_consumer_can_be_quiet_or_has_applied_something() {
        let works = Known::works(seconds(100), Duration::from_secs(290));
        let searched = Known::searched(seconds(100), None);
        let never = Known::searched(None, None);
        assert!(works.holds(seconds(100)) && works.holds(seconds(200)));
        assert!(!works.holds(seconds(99)) && !works.holds(None), "its inbox was restored");
        assert!(searched.holds(seconds(100)) && !searched.holds(seconds(101)) && !searched.holds(None));
        assert!(never.holds(None) && !never.holds(seconds(1)));
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(works.holds(seconds(100)) && !searched.holds(seconds(100)) && !never.holds(None));
        tokio::time::advance(Duration::from_secs(230)).await;
        assert!(!works.holds(seconds(200)));
    }

    /// A message of ten minutes ago.
    const OLD: &str = "\
        INSERT INTO outbox_message (message_id, topic, payload, enqueued_at) \
        SELECT lower(printf('%08x-%04x-7000-8000-%012d', at / 1000 >> 16, at / 1000 & 65535, %n)), 't', x'00', at \
        FROM (SELECT CAST((unixepoch() - 600) * 1000000 AS INTEGER) AS at)";

    async fn enqueue(outbox: &Sample, number: u32) {
        outbox.run(&OLD.replace("%n", &number.to_string())).await;
    }

    /// Goal: readers of a page cost one search in a minute for each quiet consumer, a message that
    /// arrives meanwhile is no longer reported, and the result says how old it is. Oracle: the
    /// message that is reported, after a newer one was published, which a new search finds.
    #[tokio::test]
    async fn the_result_of_a_search_is_used_again_and_says_its_age() {
        let outbox = Sample::open().await;
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}?mode=rwc", folder.path().join("inbox.db").display());
        let mut inbox = SqliteConnection::connect(&url).await.unwrap();
        Migrator::<Sqlite>::new(Line::Inbox).up(&mut inbox).await.unwrap();
        let memory = "INSERT INTO inbox_retention (retained_from, id_floor) \
            VALUES (0, '00000000-0000-7000-8000-000000000000')";
        sqlx::query(memory).execute(&mut inbox).await.unwrap();
        enqueue(&outbox, 1).await;
        let passed = r#"INSERT INTO outbox_relay (relay, epoch, cursor) VALUES ('orders', 1, '{"base":"9","progress":null}')"#;
        outbox.run(passed).await;
        let config = InboxConfig::new(ConsumerName::new("billing").unwrap(), Secret::Text(url.into()));
        let places = Places::new().outbox(&outbox.pipeline).inbox(&config).await;
        let look = async |searches: &Searches| {
            let (lines, away) =
                consumers(&places, &Operator::new("ann", Role::Viewer), searches).await.unwrap();
            assert_eq!(away, [], "both answer");
            lines[0].untaken.clone()
        };
        let searches = Searches::default();
        let first = look(&searches).await.unwrap();
        assert_eq!(first.age, Duration::ZERO);
        enqueue(&outbox, 2).await;
        let again = look(&searches).await.unwrap();
        assert_eq!(again.message_id, first.message_id, "nothing is searched");
        assert!(again.age > Duration::ZERO && again.quiet == first.quiet + again.age, "{again:?}");
        let newest = look(&Searches::default()).await.unwrap();
        assert_ne!(newest.message_id, first.message_id);

        // It is a dead letter: the consumer has still applied nothing.
        let arrived = format!(
            "INSERT INTO inbox_message (consumer, message_id, fingerprint, dead_letter) \
             VALUES ('billing', '{0}', zeroblob(32), '{0}')",
            first.message_id
        );
        sqlx::query(AssertSqlSafe(arrived)).execute(&mut inbox).await.unwrap();
        assert_eq!(look(&searches).await, None, "it has arrived");
    }
}
