//! Audits: the decisions of operators, with their authors and reasons.
//!
//! Each line of tables has one, `{line}_audit`, and that of the outbox a second one for other
//! operations, `outbox_operation`. Their first columns are the same: number, time, [`Signature`]
//! and action. The subject of the decision follows. The crates have their own words for actions and
//! their own subjects.

use std::time::Duration;

use message::InvalidText;
use migrations::query::{Query, Row};
use migrations::{Backend, Dialect, Identifier, Line, Statement, Template};
use time::OffsetDateTime;

type Result<T> = std::result::Result<T, sqlx::Error>;

/// Default retention of operators' decisions: three years.
#[doc(hidden)]
pub const AUDIT_RETENTION_DEFAULT: Duration = Duration::from_secs(1_096 * 86_400);
/// Minimum retention of operators' decisions.
#[doc(hidden)]
pub const AUDIT_RETENTION_MIN: Duration = Duration::from_secs(31 * 86_400);
/// Maximum retention of operators' decisions: a century.
#[doc(hidden)]
pub const AUDIT_RETENTION_MAX: Duration = Duration::from_secs(36_525 * 86_400);

/// Who decides, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    /// The person or program: 1 to 255 bytes.
    pub actor: String,
    /// The reason: 1 to 2,000 bytes.
    pub note: String,
    /// The filter that selected the subject of the decision, and how many it selected; of another
    /// operation, its scope. `None` when unknown.
    pub selection: Option<String>,
}

impl Signature {
    /// Creates a signature without a selection.
    #[must_use]
    pub fn new(actor: impl Into<String>, note: impl Into<String>) -> Self {
        Self { actor: actor.into(), note: note.into(), selection: None }
    }

    /// Checks that the audit can store the signature.
    ///
    /// # Errors
    /// [`InvalidText`]: an actor or a note that is empty or too long, or holds a NUL character.
    #[doc(hidden)]
    pub fn check(&self) -> std::result::Result<(), InvalidText> {
        message::check_signature(&self.actor, &self.note)
    }

    /// Binds actor, note and selection, in this order.
    #[doc(hidden)]
    pub fn bind<DB: Backend>(&self, query: Query<DB>) -> Query<DB> {
        query.bind(&self.actor).bind(&self.note).bind(self.selection.as_deref())
    }

    /// Reads the columns of these names.
    ///
    /// # Errors
    /// Those of the client library.
    #[doc(hidden)]
    pub fn read<DB: Backend>(row: &Row<DB>) -> Result<Self> {
        Ok(Self { actor: row.get("actor")?, note: row.get("note")?, selection: row.get("selection")? })
    }
}

/// A decision of an operator, as an audit stores it: an action `A` about a subject `S`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditLine<A, S> {
    /// Sequence number in its table; ascends.
    pub number: i64,
    /// When the decision was made, by the database's clock.
    pub at: OffsetDateTime,
    /// Who decided, and why.
    pub signature: Signature,
    /// The choice.
    pub action: A,
    /// Its subject.
    pub subject: S,
}

impl<A, S> AuditLine<A, S> {
    /// Reads the columns that every audit has. `action` parses the word of the action.
    ///
    /// # Errors
    /// Those of the client library; `Decode` for a word that this build does not know.
    #[doc(hidden)]
    pub fn read<DB: Backend>(
        row: &Row<DB>,
        action: impl FnOnce(&str) -> Option<A>,
        subject: S,
    ) -> Result<Self> {
        Ok(Self {
            number: row.get("seq")?,
            at: row.get("at")?,
            signature: Signature::read(row)?,
            action: read_action(row, action)?,
            subject,
        })
    }
}

/// Reads the action of a row.
///
/// # Errors
/// As for [`AuditLine::read`].
#[doc(hidden)]
pub fn read_action<DB: Backend, A>(row: &Row<DB>, action: impl FnOnce(&str) -> Option<A>) -> Result<A> {
    let word: String = row.get("action")?;
    let unknown = || sqlx::Error::Decode(format!("this version does not know the action {word:?}").into());
    action(&word).ok_or_else(unknown)
}

/// The statements that every line has for its audit. A line adds those that write to it, because
/// they depend on its subjects.
#[doc(hidden)]
#[derive(Debug, Clone)]
pub struct Audit {
    before: Statement,
    purge: Statement,
}

impl Audit {
    /// Makes the statements; `subject` has the columns of the subject.
    #[must_use]
    pub fn new<DB: Backend>(schema: Option<&Identifier>, line: Line, subject: &'static str) -> Self {
        let purge = match DB::DIALECT {
            // The database's own function, which runs with the owner's rights.
            Dialect::Postgres => "SELECT {schema}{line}_purge_audit($1, $2::integer) AS gone",
            // The limit counts only rows that are removed: many open requests must not hide those
            // behind them.
            Dialect::Sqlite => {
                "DELETE FROM {line}_audit WHERE seq IN (SELECT seq FROM {line}_audit \
                 WHERE at < $1 AND {is_settled} ORDER BY at LIMIT $2)"
            }
        };
        let before = "SELECT seq, at, actor, note, selection, action, {subject} FROM {schema}{line}_audit \
            WHERE seq < $2 ORDER BY seq DESC LIMIT $1";
        let render = |sql| {
            let of_line = Template::new(sql).part("line", line.as_str()).part("is_settled", line.settled());
            of_line.part("subject", subject).schema(schema).render()
        };
        Self { before: render(before), purge: render(purge) }
    }

    /// Returns the decisions with numbers below `before`, the latest first, at most `limit`.
    ///
    /// # Errors
    /// Those of the client library.
    pub async fn before<DB: Backend>(
        &self,
        connection: &mut DB::Connection,
        before: i64,
        limit: u32,
    ) -> Result<Vec<Row<DB>>> {
        // A plan that was made while the table was small would read all of it later.
        let query = Query::<DB>::new(&self.before).persistent(false);
        query.bind(limit).bind(before).rows(connection).await
    }

    /// Removes the oldest decisions from before a time, at most `limit`; returns how many. Not
    /// cancel-safe: the statement may or may not have taken effect.
    ///
    /// # Errors
    /// Those of the client library, also for a role that lacks the right.
    pub async fn purge<DB: Backend>(
        &self,
        connection: &mut DB::Connection,
        before: OffsetDateTime,
        limit: u32,
    ) -> Result<u64> {
        let query = Query::<DB>::new(&self.purge).bind(before).bind(limit);
        match DB::DIALECT {
            Dialect::Postgres => query.one(connection).await?.get("gone"),
            Dialect::Sqlite => query.run(connection).await,
        }
    }
}
