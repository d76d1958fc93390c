//! Business rows and outbox rows of one transaction: both or neither.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{NO_OUTBOX, need};
use crate::history::{BusinessRow, Operation, OutboxRow, Outcome};
use crate::index::Index;
use crate::verdict::{Findings, NotChecked, Subject, Violation};

pub(super) fn check(index: &Index<'_>, findings: &mut Findings) -> Result<(), NotChecked> {
    let outbox = need(&index.history.outbox, NO_OUTBOX)?;
    if index.history.operations.is_none() && index.history.business.is_none() {
        return Err("neither business rows nor actions of clients were recorded");
    }
    check_twice(outbox, findings);
    for operation in index.history.operations.iter().flatten() {
        findings.checked(1);
        check_parts(index, operation, findings);
        check_undone(index, operation, findings);
    }
    if let Some(business) = &index.history.business {
        findings.checked(business.len());
        check_pairs(index, business, outbox, findings);
    }
    Ok(())
}

/// Checks that each id has one row.
fn check_twice(outbox: &[OutboxRow], findings: &mut Findings) {
    let mut seen = HashSet::with_capacity(outbox.len());
    for row in outbox.iter().filter(|row| !seen.insert(row.id)) {
        findings.breach(Violation::EnqueuedTwice, || Subject::message(row.id));
    }
}

/// Returns how many of an operation's messages and rows exist, and how many it wrote.
pub(super) fn parts(index: &Index<'_>, operation: &Operation) -> (usize, usize) {
    // All messages and rows of a successful operation must exist, even if another operation wrote
    // them as well. For an operation with any other outcome, only those count that no other
    // operation can have written.
    let outcome = operation.outcome;
    let counts = |is_only: bool| outcome == Outcome::Ok || is_only;
    // A forgotten message no longer exists, and neither does anything else that its transaction
    // wrote.
    let messages = operation.messages.iter().map(|message| message.id).filter(|id| !index.is_forgotten(*id));
    let messages =
        messages.filter(|id| counts(index.messages.get(id).is_some_and(|claims| claims.is_only(outcome))));
    let (mut present, mut all) = (0, 0);
    for id in messages {
        all += 1;
        present += usize::from(index.is_committed(id));
    }
    if index.history.business.is_none() {
        return (present, all);
    }
    for row in operation.rows.iter().filter(|row| !index.is_row_forgotten(row)) {
        if counts(index.rows.get(&**row).is_some_and(|claims| claims.is_only(outcome))) {
            all += 1;
            present += usize::from(index.business.contains(&**row));
        }
    }
    (present, all)
}

fn check_parts(index: &Index<'_>, operation: &Operation, findings: &mut Findings) {
    let (present, all) = parts(index, operation);
    if present > 0 && present < all {
        findings.breach(Violation::CommittedInPart, || of_operation(operation));
    }
}

/// Returns a subject with the operation and its messages, which selects all their events.
pub(super) fn of_operation(operation: &Operation) -> Subject {
    Subject {
        operation: Some(Arc::clone(&operation.id)),
        ids: operation.messages.iter().map(|message| message.id).collect(),
        ..Subject::default()
    }
}

/// Checks that messages and rows rolled back to a savepoint are absent, unless another operation
/// wrote them.
fn check_undone(index: &Index<'_>, operation: &Operation, findings: &mut Findings) {
    for id in &operation.undone_messages {
        if index.is_committed(*id) && !index.messages.get(id).is_some_and(|claims| claims.is_possible()) {
            findings.breach(Violation::UndoneAndPresent, || Subject::message(*id));
        }
    }
    for row in &operation.undone_rows {
        if index.business.contains(&**row)
            && !index.rows.get(&**row).is_some_and(|claims| claims.is_possible())
        {
            findings.breach(Violation::UndoneAndPresent, || Subject::row(row));
        }
    }
}

/// Checks that business rows and the outbox rows that name them match.
fn check_pairs(index: &Index<'_>, business: &[BusinessRow], outbox: &[OutboxRow], findings: &mut Findings) {
    let mut pairs: HashMap<&str, (&BusinessRow, u32)> =
        business.iter().map(|row| (&*row.id, (row, 0))).collect();
    for row in outbox {
        let Some(cause) = &row.row else { continue };
        let Some((business, messages)) = pairs.get_mut(&**cause) else {
            // A message that operations name is checked together with them. A message whose row was
            // rolled back is a phantom.
            let may_be = index.rows.get(&**cause).is_none_or(|claims| claims.is_possible());
            if may_be && !index.messages.contains_key(&row.id) {
                let subject = || Subject { row: Some(Arc::clone(cause)), ..Subject::message(row.id) };
                findings.breach(Violation::WithoutBusinessRow, subject);
            }
            continue;
        };
        *messages += 1;
        if matches!((business.payload, row.content.payload), (Some(due), Some(found)) if due != found) {
            findings.breach(Violation::SaysSomethingElse, || Subject::message(row.id));
        }
    }
    // Rows that retention has removed can no longer be counted.
    let may_lack = !index.removed.is_empty();
    for row in business {
        let Some((due, (_, found))) = row.messages.zip(pairs.get(&*row.id)) else { continue };
        if *found < due && !may_lack {
            findings.breach(Violation::WithoutMessage, || Subject::row(&row.id));
        } else if *found > due {
            findings.breach(Violation::TooManyMessages, || Subject::row(&row.id));
        }
    }
}
