//! The decisions of operators about dead letters.

use migrations::query::Query;
use outbox::Signature;
use uuid::Uuid;

use crate::dead_letters::{
    Action, DecidedLetter, Decision, LETTERS_SURVEYED_MAX, LetterDecision, ManyDecided, REPLACED,
};
use crate::dialect::Dialect;
use crate::ids::ConsumerName;
use crate::rows;
use crate::tables::Tables;

type Result<T> = std::result::Result<T, sqlx::Error>;

impl<DB: Dialect> Tables<DB> {
    /// Stores a decision. Returns its number, or `None` when the same request is already open.
    pub(crate) async fn note_decision(
        &self,
        connection: &mut DB::Connection,
        signature: &Signature,
        action: Action,
        letter: &DecidedLetter,
    ) -> Result<Option<i64>> {
        let noted = signature
            .bind(Query::<DB>::new(&self.shared.note_decision))
            .bind(action.as_str())
            .bind(letter.dead_letter.0)
            .bind(&letter.consumer)
            .bind(letter.accept_late)
            .bind(letter.outcome.as_deref())
            .bind(letter.decision)
            .first(connection)
            .await?;
        noted.map(|row| row.get("seq")).transpose()
    }

    /// Records the outcome of a request. Returns how many open requests had this number.
    pub(crate) async fn finish_request(
        &self,
        connection: &mut DB::Connection,
        number: i64,
        outcome: &str,
    ) -> Result<u64> {
        Query::<DB>::new(&self.shared.finish_request).bind(number).bind(outcome).run(connection).await
    }

    /// Returns whether a request is open and no other transaction has locked it. Locks it until
    /// this transaction ends.
    pub(crate) async fn is_requested(&self, connection: &mut DB::Connection, number: i64) -> Result<bool> {
        let found = Query::<DB>::new(&self.shared.is_requested).bind(number).first(connection).await?;
        Ok(found.is_some())
    }

    /// Returns the open requests of a consumer after a number, oldest first.
    pub(crate) async fn requests(
        &self,
        connection: &mut DB::Connection,
        consumer: &str,
        after: i64,
        limit: u32,
    ) -> Result<Vec<Decision>> {
        let query = Query::<DB>::new(&self.shared.requests).bind(consumer).bind(after).bind(limit);
        query.rows(connection).await?.iter().map(rows::decision).collect()
    }

    /// Returns the decisions below a number, newest first.
    pub(crate) async fn decisions(
        &self,
        connection: &mut DB::Connection,
        before: i64,
        limit: u32,
    ) -> Result<Vec<Decision>> {
        self.audit.before::<DB>(connection, before, limit).await?.iter().map(rows::decision).collect()
    }

    /// Returns the newest decisions about each of these dead letters, newest first.
    pub(crate) async fn decisions_of(
        &self,
        connection: &mut DB::Connection,
        letters: &[Uuid],
        limit: u32,
    ) -> Result<Vec<Decision>> {
        let query = Query::<DB>::new(&self.shared.decisions_of).bind(letters).bind(limit);
        query.rows(connection).await?.iter().map(rows::decision).collect()
    }

    /// Returns the dead letters among these that belong to a topic, in no order.
    pub(crate) async fn letters_of_topic(
        &self,
        connection: &mut DB::Connection,
        letters: &[Uuid],
        topic: &str,
    ) -> Result<Vec<Uuid>> {
        let query = Query::<DB>::new(&self.shared.letters_of_topic).bind(letters).bind(topic);
        query.rows(connection).await?.iter().map(|row| row.get("id")).collect()
    }

    /// Reads what a decision has changed.
    pub(crate) async fn letter_decision(
        &self,
        connection: &mut DB::Connection,
        id: Uuid,
        consumer: Option<&ConsumerName>,
    ) -> Result<Option<LetterDecision>> {
        let of_decision = |statement| {
            let consumer = consumer.map(ConsumerName::as_str);
            Query::<DB>::new(statement).bind(id).bind(consumer).bind(LETTERS_SURVEYED_MAX)
        };
        let head = of_decision(&self.shared.letter_decision).first(&mut *connection).await?;
        let Some(head) = head else { return Ok(None) };
        let now = of_decision(&self.shared.letter_outcomes).bind(REPLACED).rows(connection).await?;
        rows::letter_decision(&head, &now).map(Some)
    }

    /// Closes open requests to redrive these dead letters that do not accept late messages, before
    /// requests that do are noted. `decision` is the one that is noted then.
    pub(crate) async fn replace_requests(
        &self,
        connection: &mut DB::Connection,
        ids: &[Uuid],
        decision: Option<Uuid>,
    ) -> Result<u64> {
        Query::<DB>::new(&self.shared.replace_requests)
            .bind(ids)
            .bind(decision)
            .bind(REPLACED)
            .run(connection)
            .await
    }

    /// Stores requests to redrive. Returns the dead letters of the new ones: one that is already
    /// open, or was made by the same decision, is left as it is.
    pub(crate) async fn note_requests(
        &self,
        connection: &mut DB::Connection,
        ids: &[Uuid],
        accept_late: bool,
        decided: &ManyDecided,
    ) -> Result<Vec<Uuid>> {
        let noted = decided
            .signature
            .bind(Query::<DB>::new(&self.shared.note_requests))
            .bind(accept_late)
            .bind(decided.id)
            .bind(ids)
            .rows(connection)
            .await?;
        noted.iter().map(|row| row.get("dead_letter")).collect()
    }
}
