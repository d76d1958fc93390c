//! The tables of an inbox in a database. Each method runs one statement, or a few in the caller's
//! transaction, and decides nothing. All databases share this code;
//! [`parts`](crate::dialect::parts) has the operations in which they differ. No method is
//! cancel-safe: a statement may or may not have taken effect.

mod attempts;
mod chunks;
mod dead_letters;
mod erasure;
mod guard;
mod known;
mod minutes;
mod retention;

use migrations::query::Query;
use migrations::{Identifier, Line, Statement};
use outbox::Audit;

use crate::ids::Key;
use crate::statements::{Shared, Texts};

/// The tables of an inbox, in a schema.
pub struct Tables<DB: Texts> {
    pub(crate) shared: Shared,
    /// The SQL that only this database has.
    pub(crate) own: DB::Statements,
    /// The decisions of operators.
    pub(crate) audit: Audit,
}

/// The columns of a decision that say what it is about.
const SUBJECT: &str = "dead_letter, consumer, accept_late, outcome, done_at, decision";

impl<DB: Texts> Tables<DB> {
    pub(crate) fn new(schema: Option<&Identifier>) -> Self {
        let own = DB::statements(schema);
        let audit = Audit::new::<DB>(schema, Line::Inbox, SUBJECT);
        Self { shared: DB::shared_statements(&own), own, audit }
    }
}

/// Begins a statement about one message of a consumer.
pub(crate) fn of_key<DB: Texts>(statement: &Statement, key: Key<'_>) -> Query<DB> {
    Query::new(statement).bind(key.id).bind(key.consumer).bind(key.tenant)
}

/// Returns a number as a database stores it, in 32 bits.
fn stored(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
