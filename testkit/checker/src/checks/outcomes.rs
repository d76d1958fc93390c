//! The check that clients got true answers. An operation with an unknown outcome may have committed
//! or not.

use super::atomic::{of_operation, parts};
use super::{NO_OPERATIONS, NO_OUTBOX, need};
use crate::history::Outcome;
use crate::index::Index;
use crate::verdict::{Findings, NotChecked, Violation};

pub(super) fn check(index: &Index<'_>, findings: &mut Findings) -> Result<(), NotChecked> {
    let operations = need(&index.history.operations, NO_OPERATIONS)?;
    need(&index.history.outbox, NO_OUTBOX)?;
    for operation in operations.iter().filter(|operation| operation.outcome != Outcome::Unknown) {
        findings.checked(1);
        let (present, all) = parts(index, operation);
        // An operation that is only partly committed breaks another promise.
        match operation.outcome {
            Outcome::Ok if all > 0 && present == 0 => {
                findings.breach(Violation::DoneAndAbsent, || of_operation(operation));
            }
            Outcome::Failed if all > 0 && present == all => {
                findings.breach(Violation::FailedAndPresent, || of_operation(operation));
            }
            _ => {}
        }
    }
    Ok(())
}
