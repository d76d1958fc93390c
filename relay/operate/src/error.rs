//! Errors of operators' requests.

use std::error::Error;
use std::fmt::Display;
use std::iter::successors;

use brokers::InvalidSetting;
use inbox::{OpenError, RedriveError, StoreError};
use message::{Fault, error_text};
use migrations::{MigrateError, SqlErrorKind};
use outbox_log::LogError;
use outbox_log::admin::DecideError;

use crate::outage;

/// The kind of remedy that an [`OperateError`] has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OperateErrorKind {
    /// The operator's role does not permit it.
    Forbidden,
    /// The request is invalid: change it.
    Refused,
    /// The database user may not read or write a table: its owner can grant the right.
    NotGranted,
    /// The database has no such tables, or not those of this version: migrate, or ask elsewhere.
    NoTables,
    /// Another operator or the relay was faster: look again.
    Conflict,
    /// A database is unreachable: try again later.
    Unavailable,
    /// A promise was broken, or the program itself failed.
    Broken,
}

/// One of several messages that an id fits.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Candidate {
    /// The pipeline in whose outbox it is.
    pub pipeline: String,
    /// Its message id.
    pub message_id: String,
}

/// The reason why a request failed. Holds no payload and no secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct OperateError {
    kind: OperateErrorKind,
    message: String,
    help: Option<String>,
    is_unknown: bool,
    /// The database that does not answer.
    location: Option<String>,
    candidates: Vec<Candidate>,
}

impl OperateError {
    /// Creates an error with its text.
    #[must_use]
    pub fn new(kind: OperateErrorKind, message: impl Display) -> Self {
        let message = message.to_string();
        Self { kind, message, help: None, is_unknown: false, location: None, candidates: Vec::new() }
    }

    /// Creates an error for an invalid request, with advice.
    #[must_use]
    pub fn refused(message: impl Display, help: impl Display) -> Self {
        Self::new(OperateErrorKind::Refused, message).with_help(help)
    }

    /// Creates an error for an id that fits several messages.
    pub(crate) fn ambiguous(message: impl Display, candidates: Vec<Candidate>) -> Self {
        Self { candidates, ..Self::refused(message, "add --pipeline, or give the message id") }
    }

    /// Returns the messages that the id in the request fits, if there are several.
    #[must_use]
    pub fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }

    /// Creates an error for a decision whose outcome is unknown.
    pub(crate) fn unknown(message: impl Display) -> Self {
        Self { is_unknown: true, ..Self::new(OperateErrorKind::Unavailable, message) }
    }

    /// Adds advice.
    #[must_use]
    pub fn with_help(self, help: impl Display) -> Self {
        Self { help: Some(help.to_string()), ..self }
    }

    /// Puts the subject before the text.
    #[must_use]
    pub(crate) fn about(self, subject: impl Display) -> Self {
        Self { message: format!("{subject}: {}", self.message), ..self }
    }

    /// Rewrites the text.
    #[must_use]
    pub(crate) fn told_as(self, told: impl FnOnce(&str) -> String) -> Self {
        Self { message: told(&self.message), ..self }
    }

    /// Puts the database before the text of an error that may be temporary, and adds the remedy.
    pub(crate) fn of_place(self, place: impl Display) -> Self {
        if self.kind != OperateErrorKind::Unavailable {
            return self;
        }
        let help = if self.is_unknown {
            "check whether it was done, and try again if it was not"
        } else {
            "nothing was changed: try again once this database answers"
        };
        let help = self.help.clone().unwrap_or_else(|| help.to_owned());
        let place = place.to_string();
        let told = match outage::with_place(&self.message, &place) {
            Some(message) => Self { message, ..self },
            None => self.about(&place),
        };
        Self { location: Some(place), ..told.with_help(help) }
    }

    /// Returns the location of the database that does not answer, if the error is about one.
    #[must_use]
    pub fn location(&self) -> Option<&str> {
        self.location.as_deref()
    }

    /// Joins several errors into one that names each; `None` without any. Kind and help are those
    /// of the first.
    pub(crate) fn all_of(errors: Vec<Self>) -> Option<Self> {
        errors.into_iter().reduce(|all, error| {
            if all.message.contains(&error.message) {
                all
            } else {
                Self { message: format!("{}; {}", all.message, error.message), ..all }
            }
        })
    }

    /// Returns the kind of remedy.
    #[must_use]
    pub fn kind(&self) -> OperateErrorKind {
        self.kind
    }

    /// Returns whether the request may have succeeded nevertheless: the answer was lost.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        self.is_unknown
    }

    /// Returns advice, if there is any beyond the error itself.
    #[must_use]
    pub fn help(&self) -> Option<&str> {
        self.help.as_deref()
    }

    /// Creates an error for tables that were not opened. A database that did not answer is
    /// distinguished from one without such tables.
    pub(crate) fn of_schema(error: MigrateError) -> Self {
        match error {
            MigrateError::Database { .. } | MigrateError::Busy { .. } => error.into(),
            error => Self::new(OperateErrorKind::NoTables, error),
        }
    }

    pub(crate) fn by_fault(fault: Fault, message: impl Display) -> Self {
        Self::of_kind(kind_of(fault), &message.to_string())
    }

    /// Creates an error for a failed statement. A missing right is recognised by its SQLSTATE.
    pub(crate) fn of_statement(fault: Fault, error: &(dyn Error + 'static)) -> Self {
        let kind = if is_denied(error) { OperateErrorKind::NotGranted } else { kind_of(fault) };
        Self::of_kind(kind, &error_text::chain(error))
    }

    /// Creates an error with the words of an outage, if it is one.
    fn of_kind(kind: OperateErrorKind, text: &str) -> Self {
        match kind {
            OperateErrorKind::Unavailable => Self::new(kind, outage::told(text)),
            kind => Self::new(kind, text),
        }
    }
}

/// Returns whether a source of the error is a refusal for want of a right.
fn is_denied(error: &(dyn Error + 'static)) -> bool {
    let mut causes = successors(Some(error), |error| (*error).source());
    causes.any(|cause| cause.downcast_ref().is_some_and(SqlErrorKind::is_denied))
}

/// Returns the kind of remedy for a fault: a temporary one may pass, others need a change.
fn kind_of(fault: Fault) -> OperateErrorKind {
    if fault.is_temporary() { OperateErrorKind::Unavailable } else { OperateErrorKind::Refused }
}

impl From<InvalidSetting> for OperateError {
    fn from(error: InvalidSetting) -> Self {
        Self::new(OperateErrorKind::Refused, error)
    }
}

impl From<LogError> for OperateError {
    fn from(error: LogError) -> Self {
        Self::by_fault(error.fault(), error)
    }
}

impl From<MigrateError> for OperateError {
    fn from(error: MigrateError) -> Self {
        LogError::from(error).into()
    }
}

impl From<DecideError> for OperateError {
    fn from(error: DecideError) -> Self {
        match error {
            DecideError::NotDead { .. }
            | DecideError::NoSuchEntry { .. }
            | DecideError::Edited { .. }
            | DecideError::NoContent { .. }
            | DecideError::AnotherMessage { .. } => Self::new(OperateErrorKind::Conflict, error),
            DecideError::Unknown(_) => Self::unknown(error),
            error => Self::by_fault(error.fault(), error),
        }
    }
}

impl From<OpenError> for OperateError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Schema(error) => Self::new(OperateErrorKind::Refused, error),
            error => Self::by_fault(error.fault(), error_text::chain(&error)),
        }
    }
}

impl From<StoreError> for OperateError {
    fn from(error: StoreError) -> Self {
        Self::by_fault(error.fault(), error_text::chain(&error))
    }
}

impl From<RedriveError> for OperateError {
    fn from(error: RedriveError) -> Self {
        match error {
            RedriveError::Store(error) => error.into(),
            RedriveError::InHand { .. } => Self::new(OperateErrorKind::Conflict, error),
            RedriveError::Commit(error) if error.is_innocent() => {
                let is_unknown = !error.is_rolled_back();
                let error = Self::new(OperateErrorKind::Unavailable, error_text::chain(&error));
                Self { is_unknown, ..error }
            }
            error => Self::new(OperateErrorKind::Refused, error.report()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::fmt;
    use std::time::Duration;

    use migrations::{Line, SchemaError};
    use sqlx::error::{DatabaseError, ErrorKind};

    use super::*;

    /// A server's answer with this code.
    #[derive(Debug)]
    struct Answer(&'static str);

    impl Display for Answer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("permission denied for table idempotency_audit")
        }
    }

    impl Error for Answer {}

    impl DatabaseError for Answer {
        fn message(&self) -> &str {
            "permission denied for table idempotency_audit"
        }

        fn code(&self) -> Option<Cow<'_, str>> {
            Some(self.0.into())
        }

        fn as_error(&self) -> &(dyn Error + Send + Sync + 'static) {
            self
        }

        fn as_error_mut(&mut self) -> &mut (dyn Error + Send + Sync + 'static) {
            self
        }

        fn into_error(self: Box<Self>) -> Box<dyn Error + Send + Sync + 'static> {
            self
        }

        fn kind(&self) -> ErrorKind {
            ErrorKind::Other
        }
    }

    /// Goal: tables are not called missing because the database did not answer while it was opened.
    /// Oracle: the kinds of the errors of a check of the schema.
    #[test]
    fn an_outage_while_a_schema_is_checked_is_no_missing_table() {
        let during = |error: sqlx::Error| MigrateError::Database {
            what: String::from("read its versions"),
            source: Box::new(error),
        };
        let lost = sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into());
        let busy = MigrateError::Busy { holder: String::from("a session"), waited: Duration::from_secs(1) };
        for (error, kind) in [
            (MigrateError::from(SchemaError::Missing { line: Line::Saga }), OperateErrorKind::NoTables),
            (during(lost), OperateErrorKind::Unavailable),
            (during(sqlx::Error::PoolTimedOut), OperateErrorKind::Unavailable),
            (busy, OperateErrorKind::Unavailable),
            (during(sqlx::Error::Database(Box::new(Answer("42501")))), OperateErrorKind::Refused),
        ] {
            let text = error.to_string();
            assert_eq!(OperateError::of_schema(error).kind(), kind, "{text}");
        }
    }

    /// Goal: a database that does not answer has one sentence, with its place if that is known.
    /// Oracle: the errors of a log and of a store that could not connect.
    #[test]
    fn a_database_that_does_not_answer_is_told_in_one_way() {
        let refused = || sqlx::Error::Io(std::io::ErrorKind::ConnectionRefused.into());
        let log = OperateError::from(LogError::from(MigrateError::Database {
            what: String::from("read its versions"),
            source: Box::new(refused()),
        }));
        let store = OperateError::from(StoreError::during("list decisions")(refused()));
        for error in [log, store] {
            assert_eq!(error.kind(), OperateErrorKind::Unavailable, "{error}");
            assert_eq!(error.to_string(), "the database does not answer: connection refused");
            let placed = error.of_place("db:5432/shop");
            assert_eq!(placed.location(), Some("db:5432/shop"));
            assert_eq!(placed.to_string(), "the database db:5432/shop does not answer: connection refused");
        }
    }

    /// Goal: a missing right is recognised by its SQLSTATE, below the error of a store. Oracle: the
    /// kinds of one text with several codes.
    #[test]
    fn a_missing_right_has_a_kind_of_its_own() {
        for (code, kind) in [
            ("42501", OperateErrorKind::NotGranted),
            ("42P01", OperateErrorKind::Refused),
            ("57P01", OperateErrorKind::Unavailable),
        ] {
            let error = StoreError::during("list decisions")(sqlx::Error::Database(Box::new(Answer(code))));
            let error = OperateError::of_statement(error.fault(), &error);
            assert_eq!(error.kind(), kind, "{code}");
            assert!(error.to_string().contains("permission denied"), "{error}");
        }
    }
}
