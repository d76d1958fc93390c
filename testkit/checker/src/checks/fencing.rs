//! A holder that has lost its lease no longer changes anything.

use std::collections::HashMap;
use std::sync::Arc;

use super::need;
use crate::history::LeaseEvent;
use crate::index::Index;
use crate::verdict::{Breach, Event, Findings, NotChecked, Subject, Violation};

pub(super) fn check(index: &Index<'_>, findings: &mut Findings) -> Result<(), NotChecked> {
    let events = need(&index.history.leases, "leases were not recorded")?;
    // The grant with the largest epoch so far, for each lease.
    let mut current: HashMap<&str, (u64, &LeaseEvent)> = HashMap::new();
    for event in events {
        findings.checked(1);
        match event {
            LeaseEvent::Granted { lease, epoch, .. } => match current.get(&**lease) {
                Some((newest, grant)) if epoch <= newest => {
                    findings.breach_seen(|| breach(Violation::EpochReused, lease, grant, event));
                }
                _ => {
                    current.insert(lease, (*epoch, event));
                }
            },
            LeaseEvent::Wrote { lease, epoch, applied: true, .. } => {
                if let Some((_, grant)) = current.get(&**lease).filter(|(newest, _)| epoch < newest) {
                    findings.breach_seen(|| breach(Violation::StaleWrite, lease, grant, event));
                }
            }
            LeaseEvent::Wrote { applied: false, .. } => {}
        }
    }
    Ok(())
}

/// Returns a breach whose events are already known: the grant that ended the epoch, and the event
/// that happened nevertheless.
fn breach(violation: Violation, lease: &Arc<str>, grant: &LeaseEvent, event: &LeaseEvent) -> Breach {
    Breach {
        violation,
        subject: Subject { held: Some(Arc::clone(lease)), ..Subject::default() },
        events: [grant, event].map(|event| Event::Lease { event: event.clone() }).into(),
    }
}
