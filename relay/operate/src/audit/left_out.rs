//! Audits that the database user was never granted the right to read.

use std::collections::BTreeMap;
use std::fmt;

use super::walk::Part;
use crate::error::{OperateError, OperateErrorKind};

/// The statement that lets the relay's role read keys and sagas, and their audits.
pub const OBSERVER_GRANT: &str = "GRANT outbox_observer TO outbox_relay";

/// Audits of keys and sagas that were not read because the database user has no right to.
///
/// The relay's role has none by default, and no setting names these audits: they are read wherever
/// a pipeline or an inbox may have them. So a missing right is neither an outage nor an error.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// The tables, by database.
    tables: BTreeMap<String, Vec<&'static str>>,
}

impl LeftOut {
    /// Returns whether every audit may be read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// Records an audit of keys or sagas whose database refused for want of a right. Returns any
    /// other error.
    pub(crate) fn take(
        &mut self,
        part: Part,
        owner: impl FnOnce() -> String,
        error: OperateError,
    ) -> Result<(), OperateError> {
        let table = match part {
            Part::Keys(_) => "idempotency_audit",
            Part::Sagas(_) => "saga_audit",
            Part::Messages(_) | Part::Operations(_) | Part::Letters(_) => return Err(error),
        };
        if error.kind() != OperateErrorKind::NotGranted {
            return Err(error);
        }
        self.tables.entry(owner()).or_default().push(table);
        Ok(())
    }

    /// Returns the text as an entry for the missing parts of an export.
    pub(crate) fn as_missing(&self) -> Option<OperateError> {
        (!self.is_empty()).then(|| OperateError::new(OperateErrorKind::NotGranted, self))
    }
}

/// Names the tables, their databases and the grant.
impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let databases: Vec<String> = self
            .tables
            .iter()
            .map(|(owner, tables)| format!("{} of {owner}", tables.join(" and ")))
            .collect();
        write!(
            f,
            "decisions that the database user may not read are left out: {}; to include them: {OBSERVER_GRANT}",
            databases.join(", ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(kind: OperateErrorKind) -> OperateError {
        OperateError::new(kind, "permission denied for table saga_audit")
    }

    /// Goal: only a missing right on the audits of keys and sagas is not an error. Oracle: the
    /// errors that come back, and the text for people.
    #[test]
    fn only_an_audit_that_was_never_granted_is_left_out() {
        let mut left_out = LeftOut::default();
        let mut take = |part, kind| {
            let error = error(kind);
            left_out.take(part, || String::from("pipeline:orders"), error.clone()).map_err(|back| {
                assert_eq!(back, error);
            })
        };
        let denied = OperateErrorKind::NotGranted;
        for kind in [OperateErrorKind::Unavailable, OperateErrorKind::Refused, OperateErrorKind::NoTables] {
            assert!(take(Part::Keys(0), kind).is_err(), "{kind:?}");
            assert!(take(Part::Sagas(0), kind).is_err(), "{kind:?}");
        }
        for part in [Part::Messages(0), Part::Operations(0), Part::Letters(0)] {
            assert!(take(part, denied).is_err(), "{part:?}");
        }
        assert!(take(Part::Keys(0), denied).is_ok() && take(Part::Sagas(0), denied).is_ok());
        assert_eq!(
            left_out.to_string(),
            "decisions that the database user may not read are left out: idempotency_audit and saga_audit of \
             pipeline:orders; to include them: GRANT outbox_observer TO outbox_relay"
        );
        assert_eq!(left_out.as_missing().map(|error| error.kind()), Some(denied));
        assert!(LeftOut::default().as_missing().is_none() && LeftOut::default().is_empty());
    }
}
