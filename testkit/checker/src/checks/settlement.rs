//! Checks that the relay's marks and cursor are correct.

use super::{NO_OUTBOX, NO_PARKED, NO_TOPIC_READ, TOPIC_READ_INCOMPLETE, need};
use crate::history::OutboxRow;
use crate::index::Index;
use crate::verdict::{Findings, NotChecked, Subject, Violation};

/// Checks that every row marked as published is at the broker or parked.
pub(super) fn check_settled(index: &Index<'_>, findings: &mut Findings) -> Result<(), NotChecked> {
    let outbox = done(index, |row| row.settled, "the relay marks no rows")?;
    for row in outbox.iter().filter(|row| row.settled == Some(true)) {
        findings.checked(1);
        if !index.is_accounted_for(row.id) {
            findings.breach(Violation::SettledUnpublished, || Subject::message(row.id));
        }
    }
    Ok(())
}

/// Checks that every row that the cursor has passed is at the broker or parked. A row that it has
/// not passed must not be parked, because a successor would read it again.
pub(super) fn check_cursor(index: &Index<'_>, findings: &mut Findings) -> Result<(), NotChecked> {
    let outbox = done(index, |row| row.passed, "the relay keeps no cursor")?;
    for row in outbox {
        match row.passed {
            Some(true) if !index.is_accounted_for(row.id) => {
                findings.breach(Violation::PassedUnpublished, || Subject::message(row.id));
            }
            Some(false) if index.parked.contains_key(&row.id) => {
                findings.breach(Violation::ParkedAhead, || Subject::message(row.id));
            }
            _ => {}
        }
        findings.checked(usize::from(row.passed.is_some()));
    }
    Ok(())
}

/// Returns the outbox, if the relay reports on its rows and every part for the comparison was read.
fn done<'a>(
    index: &Index<'a>,
    said: fn(&OutboxRow) -> Option<bool>,
    silent: NotChecked,
) -> Result<&'a [OutboxRow], NotChecked> {
    let outbox = need(&index.history.outbox, NO_OUTBOX)?;
    if !outbox.is_empty() && outbox.iter().all(|row| said(row).is_none()) {
        return Err(silent);
    }
    let topic_read = need(&index.history.topic_read, NO_TOPIC_READ)?;
    if !topic_read.complete {
        return Err(TOPIC_READ_INCOMPLETE);
    }
    need(&index.history.parked, NO_PARKED)?;
    Ok(outbox)
}
