//! Retention removes no undecided message.

use super::{NO_PARKED, NO_TOPIC_READ, TOPIC_READ_INCOMPLETE, need};
use crate::history::ParkedEntry;
use crate::index::Index;
use crate::verdict::{Findings, NotChecked, Subject, Violation};

pub(super) fn check(index: &Index<'_>, findings: &mut Findings) -> Result<(), NotChecked> {
    let removed = need(&index.history.removed, "deletions by retention were not recorded")?;
    let topic_read = need(&index.history.topic_read, NO_TOPIC_READ)?;
    if !topic_read.complete {
        return Err(TOPIC_READ_INCOMPLETE);
    }
    need(&index.history.parked, NO_PARKED)?;
    findings.checked(removed.len());
    for id in removed {
        match index.parked.get(id) {
            Some(ParkedEntry::Discarded) => {}
            // This message can no longer be published, because its payload no longer exists.
            Some(_) => findings.breach(Violation::RemovedWhileParked, || Subject::message(*id)),
            None if index.published.contains(id) => {}
            None => findings.breach(Violation::RemovedUnpublished, || Subject::message(*id)),
        }
    }
    Ok(())
}
