//! The verdict on the promises, and the assertions that tests make.

use checker::{Promise, Verdict};
use uuid::Uuid;

use crate::database::Database;
use crate::failure::Failure;
use crate::observed::{EffectsQuery, column};
use crate::world::{World, lock};

/// Promises that must have been checked before a world reports that its promises are kept. The last
/// three are needed only if there is a consumer.
const EXPECTED: [Promise; 7] = [
    Promise::NoLoss,
    Promise::NoPhantom,
    Promise::CursorIsTrue,
    Promise::Unaltered,
    Promise::AtMostOnce,
    Promise::ExactlyOnce,
    Promise::InboxIffEffect,
];

impl<DB: Database> World<DB> {
    /// Registers the query for the effects of a consumer that the service builds itself
    /// ([`World::run`]). The query returns the message id of every effect as text or UUID, once per
    /// effect, in the order of commits.
    pub fn effects(&self, consumer: &str, topic: &str, sql: &'static str) {
        let (consumer, topic) = (consumer.to_owned(), topic.to_owned());
        lock(&self.watched).queries.push(EffectsQuery { consumer, topic, sql });
    }

    /// Returns how often each message took effect for a consumer of [`World::consumer`], in the
    /// order of the first effects.
    ///
    /// # Errors
    /// The database refuses or is unreachable.
    pub async fn applied(&self, consumer: &str) -> Result<Vec<(Uuid, u64)>, Failure> {
        let mut times: Vec<(Uuid, u64)> = Vec::new();
        for effect in self.recorded_effects(consumer).await? {
            match times.iter_mut().find(|(id, _)| *id == effect.id) {
                Some((_, times)) => *times += 1,
                None => times.push((effect.id, 1)),
            }
        }
        Ok(times)
    }

    /// Returns as text everything that needs an operator: parked messages of the relay and open
    /// dead letters of consumers.
    ///
    /// # Errors
    /// The database refuses or is unreachable.
    pub async fn parked(&self) -> Result<Vec<String>, Failure> {
        let sql = "SELECT 'relay: ' || CAST(message_id AS text) || ' is ' || state || coalesce(': ' || error, '') \
             AS parked FROM outbox_exception \
             UNION ALL SELECT consumer || ': ' || coalesce(CAST(message_id AS text), 'a message without an id') \
             || ' is a dead letter (' || reason || '): ' || error FROM inbox_dead_letter WHERE resolution IS NULL";
        let rows = self.read(sql, &[], "read the parked messages").await?;
        rows.iter().map(|row| column(row, "parked")).collect()
    }

    /// Returns the verdict on every promise.
    ///
    /// # Errors
    /// The database refuses or is unreachable.
    pub async fn verdict(&self) -> Result<Verdict, Failure> {
        Ok(Verdict::of(&self.history().await?))
    }

    /// Asserts that no message was lost, invented or altered, that keys kept their order, and that
    /// every message took effect exactly once for every watched consumer. Waits for
    /// [`World::quiet`] first.
    ///
    /// # Panics
    /// If a promise is broken, with all records of the messages concerned, or if a promise could
    /// not be checked.
    pub async fn assert_promises_kept(&self) {
        let judged = async {
            self.quiet().await?;
            self.verdict().await
        };
        let verdict = match judged.await {
            Ok(verdict) => verdict,
            Err(failure) => panic!("{failure:?}"),
        };
        assert!(verdict.holds(), "a promise is broken:\n{verdict}");
        let is_watching = !lock(&self.watched).is_empty();
        let expected = if is_watching { &EXPECTED[..] } else { &EXPECTED[..4] };
        for promise in expected {
            assert!(verdict.ruling(*promise).not_checked.is_none(), "not checked:\n{verdict}");
        }
    }

    /// Asserts that nothing is parked or dead-lettered.
    ///
    /// # Panics
    /// If any message is parked or dead-lettered, with a list of these messages.
    pub async fn assert_nothing_parked(&self) {
        match self.parked().await {
            Ok(parked) => assert!(parked.is_empty(), "parked:\n{}", parked.join("\n")),
            Err(failure) => panic!("{failure:?}"),
        }
    }
}
