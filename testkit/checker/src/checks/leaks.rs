//! At the end no transaction, lease or unanswered message is left.

use std::sync::Arc;

use super::{need, need_quiet};
use crate::index::Index;
use crate::verdict::{Findings, NotChecked, Subject, Violation};

pub(super) fn check(index: &Index<'_>, findings: &mut Findings) -> Result<(), NotChecked> {
    need_quiet(index)?;
    let leaks = need(&index.history.leaks, "resources that are still held were not recorded")?;
    findings.checked(leaks.len());
    for leak in leaks {
        findings.breach(Violation::Leaked, || Subject {
            held: Some(Arc::clone(&leak.what)),
            ..Subject::default()
        });
    }
    Ok(())
}
