//! `relay dead decision`: what became of a decision, and where its messages are now.

use clap::Args;
use operate::dead::{Decision, DecisionFound, REMOVE_THE_CAUSE, decision};
use operate::{Operator, Places, seconds};
use uuid::Uuid;

use super::super::exit::Exit;
use super::super::failure::{self, Failure};
use super::super::hint;
use super::super::operator::viewer;
use super::super::output::{Format, card, counted, sentence, table, terminal_width};
use super::super::places::Where;
use super::super::progress::during;

/// The decision.
#[derive(Debug, Args)]
pub struct OfDecision {
    #[command(flatten)]
    place: Where,

    /// The id that `relay dead requeue` and `discard` have printed.
    #[arg(value_name = "ID")]
    id: Uuid,
}

impl OfDecision {
    pub(crate) async fn execute(self, format: Format) -> Result<Exit, Failure> {
        let places = self.place.open().await?;
        let found = during("looking", decision(&places, &viewer(), self.id)).await;
        places.close().await;
        let DecisionFound { decision, away } = found?;
        if let Some(decision) = &decision {
            format.print(decision, |decision| text(decision, terminal_width()))?;
        }
        let away = away.into_iter().map(Failure::from).fold(None, failure::first);
        match (away, decision) {
            (Some(failure), _) => Err(failure),
            (None, Some(_)) => Ok(Exit::Success),
            (None, None) => {
                let text = format_args!("no decision has the id {}", self.id);
                Err(Failure::with_help(Exit::Usage, text, "`relay audit` lists decisions"))
            }
        }
    }
}

/// Returns the decision in words: who made it, and where its messages are now.
fn text(decision: &Decision, width: Option<usize>) -> String {
    let chosen = decision.chosen().map(|chosen| format!(" of {chosen}")).unwrap_or_default();
    let when = match (seconds::text(decision.first), seconds::text(decision.last)) {
        (first, last) if first == last => first,
        (first, last) => format!("{first} to {last}"),
    };
    let about = card(
        0,
        [
            ("action", Some(decision.action.to_owned())),
            ("messages", Some(format!("{}{chosen}", decision.done))),
            ("in", Some(decision.owners.join(", "))),
            ("actor", Some(decision.actor.clone())),
            ("at", Some(when)),
            ("note", Some(decision.note.clone())),
            ("selection", decision.selection.clone()),
        ],
    );
    let rows = decision
        .standing
        .iter()
        .map(|it| [it.what.to_owned(), format!("{}{}", if it.is_at_least { "≥ " } else { "" }, it.count)]);
    let again = decision.dead_again(|number| number.to_string());
    let again = again.map(|again| sentence(&format!("{again} {REMOVE_THE_CAUSE}"), width));
    let parts = [about, table(["now", "messages"], rows)].into_iter().chain(again);
    parts.collect::<Vec<_>>().join("\n\n")
}

/// Returns the result of a requeue as far as it is known now; `None` where it cannot be read. Asks
/// what the page asks.
pub(super) async fn result(places: &Places, operator: &Operator, id: Uuid) -> Option<Decision> {
    decision(places, operator, id).await.ok()?.decision
}

/// Says what became of a requeue: how many messages are dead again already, and the command that
/// shows where all of them are. They may need a while.
pub(super) fn tell(id: Uuid, result: Option<&Decision>) {
    let again = result.and_then(|decision| decision.dead_again(|number| number.to_string()));
    if let Some(again) = again {
        note!("{}", sentence(&format!("{again} {REMOVE_THE_CAUSE}"), terminal_width()));
    }
    note!("where they are now: {}", hint::command(&["dead", "decision", &id.to_string()]));
}

/// Returns the advice after a requeue was stopped: the same command takes what it has not reached,
/// and more.
pub(super) fn rest_of_requeue(id: Uuid, done: u64) -> String {
    format!(
        "the same command requeues the rest, and also those of the {} that are dead again: first see `relay \
         dead decision {id}`",
        counted(done, "requeued message")
    )
}

#[cfg(test)]
mod tests {
    use operate::dead::Standing;
    use time::OffsetDateTime;

    use super::*;

    /// Goal: an operator sees in the terminal that a requeue did not help. Oracle: the text of a
    /// decision of which most messages died again.
    #[test]
    fn a_decision_says_where_its_messages_are() {
        let of = |what, count, is_at_least| Standing { what, count, is_at_least };
        let decided = Decision {
            id: Uuid::nil(),
            action: "requeue",
            actor: String::from("ann"),
            note: String::from("prices are back"),
            selection: Some(String::from("topic=orders: 2009 chosen")),
            done: 2_009,
            first: OffsetDateTime::UNIX_EPOCH,
            last: OffsetDateTime::UNIX_EPOCH,
            standing: vec![of("dead again", 1_787, false), of("on its way", 222, true)],
            owners: vec![String::from("outbox orders")],
        };
        let expected = "\
action     requeue
messages   2009 of 2009
in         outbox orders
actor      ann
at         1970-01-01T00:00:00Z
note       prices are back
selection  topic=orders: 2009 chosen

NOW         MESSAGES
dead again  1787
on its way  ≥ 222

1787 of them are dead again. Requeueing more will not help before the cause is removed.";
        assert_eq!(text(&decided, None), expected);
        let fine = Decision { standing: vec![of("on its way", 2_009, false)], ..decided };
        assert!(text(&fine, None).ends_with("on its way  2009"), "{}", text(&fine, None));
    }
}
