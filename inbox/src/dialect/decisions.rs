//! Stores the decisions of operators about dead letters.

use std::future::Future;

use time::OffsetDateTime;

use super::Guards;
use crate::decision::Decision;

type Result<T> = std::result::Result<T, sqlx::Error>;

/// Decisions about dead letters.
#[doc(hidden)]
pub trait Decisions: Guards {
    /// Stores a decision. Returns its number, or `None` when the same request is already open.
    fn note_decision(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        decision: &Decision,
    ) -> impl Future<Output = Result<Option<i64>>> + Send;

    /// Notes the outcome of a request. Returns how many open requests had this number.
    fn finish_request(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        number: i64,
        outcome: &str,
    ) -> impl Future<Output = Result<u64>> + Send;

    /// Returns whether a request is open and no other transaction has locked it. Locks it until
    /// this transaction ends.
    fn is_requested(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        number: i64,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Returns the open requests of a consumer after a number, oldest first.
    fn requests(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        consumer: &str,
        after: i64,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<Decision>>> + Send;

    /// Deletes decisions from before a moment that were carried out, the oldest first; at most
    /// `limit`. Returns the number deleted.
    fn purge_decisions(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        before: OffsetDateTime,
        limit: u32,
    ) -> impl Future<Output = Result<u64>> + Send;

    /// Returns the decisions, newest first.
    fn decisions(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<Decision>>> + Send;
}
