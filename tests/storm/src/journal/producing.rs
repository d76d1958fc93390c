//! Operations as their client sees them.

use std::collections::HashMap;
use std::sync::Arc;

use checker::{Enqueued, Operation, Outcome};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A step of one operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// The operation has begun, but nothing is done yet.
    Begun {
        /// The operation.
        operation: Uuid,
        /// The time; see [`crate::clock`].
        at: u64,
    },
    /// All statements are done, and the next step may commit. Only the last of these steps counts,
    /// because earlier attempts were rolled back.
    Sent {
        /// The operation.
        operation: Uuid,
        /// The rows and messages that the operation wrote.
        #[serde(flatten)]
        sent: Sent,
    },
    /// The operation ended for its client, perhaps with an unknown outcome.
    Ended {
        /// The operation.
        operation: Uuid,
        /// The time; see [`crate::clock`].
        at: u64,
        /// The answer that the client got.
        outcome: Outcome,
        /// Details for people.
        detail: String,
    },
}

/// The rows and messages of an operation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sent {
    /// Business rows.
    pub rows: Vec<Arc<str>>,
    /// Messages.
    pub messages: Vec<Enqueued>,
    /// Business rows that were rolled back to a savepoint.
    pub undone_rows: Vec<Arc<str>>,
    /// Messages that were rolled back to a savepoint.
    pub undone_messages: Vec<Uuid>,
}

/// Returns the operations that these steps describe, in the order in which they began. An operation
/// without an end is unknown. An operation that never sent anything has failed, because its client
/// died before it could commit.
#[must_use]
pub fn operations(steps: impl IntoIterator<Item = Step>) -> Vec<Operation> {
    let mut places: HashMap<Uuid, usize> = HashMap::new();
    let mut operations: Vec<(Operation, bool)> = Vec::new();
    for step in steps {
        match step {
            Step::Begun { operation, at } => {
                places.insert(operation, operations.len());
                let id = operation.to_string().into();
                operations.push((Operation { id, started: Some(at), ..Operation::default() }, false));
            }
            Step::Sent { operation, sent } => {
                let Some((known, has_sent)) = places.get(&operation).map(|place| &mut operations[*place])
                else {
                    continue;
                };
                *has_sent = true;
                known.rows = sent.rows;
                known.messages = sent.messages;
                known.undone_rows = sent.undone_rows;
                known.undone_messages = sent.undone_messages;
            }
            Step::Ended { operation, at, outcome, .. } => {
                let Some((known, _)) = places.get(&operation).map(|place| &mut operations[*place]) else {
                    continue;
                };
                known.ended = Some(at);
                known.outcome = outcome;
            }
        }
    }
    for (operation, has_sent) in &mut operations {
        if !*has_sent && operation.outcome == Outcome::Unknown {
            operation.outcome = Outcome::Failed;
        }
    }
    operations.into_iter().map(|(operation, _)| operation).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(row: &str) -> Sent {
        Sent { rows: vec![row.into()], ..Sent::default() }
    }

    #[test]
    fn an_operation_is_as_unknown_as_its_client_left_it() {
        let ids: Vec<Uuid> = (1..=4).map(Uuid::from_u128).collect();
        let begun = |n: usize| Step::Begun { operation: ids[n], at: n as u64 };
        let wrote = |n: usize, row: &str| Step::Sent { operation: ids[n], sent: sent(row) };
        let ended =
            |n: usize, outcome| Step::Ended { operation: ids[n], at: 9, outcome, detail: String::new() };
        let steps = [
            begun(0),
            wrote(0, "first attempt"),
            wrote(0, "second attempt"),
            ended(0, Outcome::Ok),
            begun(1),
            wrote(1, "killed before the end"),
            begun(2),
            begun(3),
            ended(3, Outcome::Failed),
        ];
        let found = operations(steps);
        let outcomes: Vec<_> = found.iter().map(|operation| operation.outcome).collect();
        assert_eq!(outcomes, [Outcome::Ok, Outcome::Unknown, Outcome::Failed, Outcome::Failed]);
        assert_eq!(found[0].rows, ["second attempt".into()]);
        assert_eq!((found[0].started, found[0].ended, found[1].ended), (Some(0), Some(9), None));
    }

    #[test]
    fn steps_are_read_back() {
        let step = Step::Sent { operation: Uuid::from_u128(1), sent: sent("row") };
        let text = serde_json::to_string(&step).unwrap();
        assert_eq!(serde_json::from_str::<Step>(&text).unwrap(), step);
    }
}
