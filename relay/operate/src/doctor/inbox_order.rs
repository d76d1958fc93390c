//! Checks whether new dead letters of an inbox come after older ones. Pure, except for the query.

use super::facts::{InboxFacts, LetterNumbers};
use super::gather;
use super::report::{CheckState, Finding};
use crate::InboxConfig;

/// Queries one inbox and checks it.
pub async fn examine_inbox_order(inbox: &InboxConfig) -> Vec<Finding> {
    check(&[gather::inbox::gather(inbox).await])
}

/// Compares the sequence of each inbox with its rows. Where keys are held, a message waits for the
/// open dead letters of its key with smaller numbers. Logical replication and a restore of rows
/// alone leave the sequence behind.
#[must_use]
pub(crate) fn check(inboxes: &[InboxFacts]) -> Vec<Finding> {
    let numbered = inboxes.iter().filter_map(|inbox| Some((inbox, inbox.letter_numbers?)));
    numbered.map(|(inbox, numbers)| compare(&format!("inbox {}", inbox.consumer), numbers)).collect()
}

fn compare(subject: &str, numbers: LetterNumbers) -> Finding {
    let name = "inbox-order";
    let LetterNumbers { last, largest } = numbers;
    let Some(last) = last else {
        let remedy = "GRANT outbox_observer TO this user; if it has that role, run the output of relay migrate \
                      roles, which grants it SELECT on inbox_dead_letter_seq_seq";
        return Finding::unknown(
            name,
            subject,
            "this role may not read the sequence of dead letters",
            remedy,
        );
    };
    let problem = (last < largest).then(|| {
        let remedy = "new dead letters would overtake older ones of their keys: stop the consumers, run SELECT \
                      setval('inbox_dead_letter_seq_seq', (SELECT max(seq) FROM inbox_dead_letter)) as the \
                      owner, and start them again (docs/operations/histories.md: logical replication of the \
                      inbox)";
        (CheckState::Fail, remedy.to_owned())
    });
    let measured = match problem {
        Some(_) => format!("the sequence is at {last}, and an open dead letter has the number {largest}"),
        None => format!("the sequence is at {last}"),
    };
    Finding::unless(name, subject, measured, problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_that_is_behind_its_rows_fails() {
        for (last, largest, state) in [
            (Some(0), 0, CheckState::Pass),
            (Some(7), 7, CheckState::Pass),
            (Some(8), 7, CheckState::Pass),
            (Some(0), 1_003, CheckState::Fail),
            (None, 7, CheckState::Unknown),
        ] {
            let finding = compare("inbox billing", LetterNumbers { last, largest });
            assert_eq!(finding.state, state, "{finding:?}");
        }
    }
}
