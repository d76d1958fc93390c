//! `relay dead`: messages that relays could not publish or consumers could not apply, and decisions
//! about them.

mod arguments;
mod bulk;
mod decide;
mod decision;
mod edits;
mod show;

use std::num::NonZeroU32;

use clap::{Args, Subcommand, ValueEnum};
use operate::audit::{AuditQuery, read};
use operate::dead::{self, Change, Filter, Listed, MessageRef, States, Total, survey};
use operate::export::DeadExport;
use operate::{OperateError, Places};
use outbox_log::ExceptionState;

use super::exit::Exit;
use super::export::{Export, Exporting};
use super::failure::Failure;
use super::operator::viewer;
use super::output::Format;
use super::places::Where;
use super::progress::during;
use arguments::Conditions;
#[cfg(feature = "fuzzing")]
pub(crate) use decide::edited_headers;
use decide::{Decide, Edit, Requeue};
use decision::OfDecision;
use edits::Edits;

/// Actions on messages that wait for an operator.
#[derive(Debug, Subcommand)]
pub enum Dead {
    /// List dead messages of outboxes and open dead letters of inboxes; with --state, other parked
    /// messages.
    List(List),
    /// Show all details of messages, except the payload.
    Show(Show),
    /// Retry dead messages: the relay publishes them, or their consumer runs its handler again.
    /// Takes a few seconds if that process is running.
    #[command(alias = "redrive")]
    Requeue(Requeue),
    /// Discard dead messages: they are not sent again, or never take effect. With --id, also a
    /// message of an outbox that is being retried, whatever the cause.
    Discard(Decide),
    /// Replace the payload or the headers of a message in an outbox. A dead message stays dead
    /// until you requeue it. A message that is retried because its topic is missing or refused is
    /// retried immediately.
    Edit(Edit),
    /// Show what operators have edited in a message of an outbox: payload and headers before and
    /// after, up to 64 KiB each. The audit records who looked.
    Edits(Edits),
    /// Show what became of a requeue or a discard: who decided, and where its messages are now,
    /// such as dead again.
    Decision(OfDecision),
    /// List decisions with their outcomes, latest first. Includes pauses and resumes.
    Audit(Audit),
}

/// The arguments of `relay dead list`.
#[derive(Debug, Args)]
pub struct List {
    #[command(flatten)]
    place: Where,

    #[command(flatten)]
    conditions: Conditions,

    /// Only messages in this state. Inboxes have only dead messages. Can be repeated.
    #[arg(long = "state", value_enum, value_name = "STATE", default_value = "dead")]
    states: Vec<State>,

    /// Include closed dead letters.
    #[arg(long, conflicts_with = "states")]
    closed: bool,

    /// Show the number of messages by topic and error instead of the messages. Errors that differ
    /// only in numbers and ids are one. Groups up to 100,000, and counts all dead or retrying ones.
    #[arg(long, conflicts_with_all = ["limit", "export"])]
    count: bool,

    /// Maximum number of messages.
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    limit: usize,

    #[command(flatten)]
    export: Export,
}

/// The arguments of `relay dead show`.
#[derive(Debug, Args)]
pub struct Show {
    #[command(flatten)]
    place: Where,

    /// Position in the log, message id, or id of the dead letter. Can be repeated.
    #[arg(long = "id", value_name = "ID", required = true)]
    ids: Vec<MessageRef>,
}

/// The decisions to list.
#[derive(Debug, Args)]
pub struct Audit {
    #[command(flatten)]
    place: Where,

    /// Print one line per message instead of one line per decision.
    #[arg(long)]
    each: bool,

    /// Maximum number of lines.
    #[arg(long, value_name = "COUNT", default_value = "100")]
    limit: NonZeroU32,
}

/// The reason why a message is parked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum State {
    /// It failed too often or was refused, and waits for an operator's decision.
    Dead,
    /// An earlier message of its key, or its whole topic, is blocked.
    Held,
    /// It failed and will be retried.
    Retrying,
    /// It is scheduled for later delivery.
    Scheduled,
    /// An operator discarded it. Listed with operator and reason while the outbox keeps the
    /// message.
    Discarded,
}

impl State {
    fn of_log(self) -> States {
        match self {
            Self::Dead => States::Dead,
            Self::Held => States::Parked(ExceptionState::Held),
            Self::Retrying => States::Parked(ExceptionState::Retrying),
            Self::Scheduled => States::Parked(ExceptionState::Scheduled),
            Self::Discarded => States::Parked(ExceptionState::Discarded),
        }
    }
}

impl Dead {
    pub(crate) async fn execute(self, format: Format) -> Result<Exit, Failure> {
        match self {
            Self::List(list) => list.execute(format).await,
            Self::Show(show) => show.execute(format).await,
            Self::Requeue(requeue) => Box::pin(requeue.execute(format)).await,
            Self::Discard(decide) => decide.execute(&Change::Discard, format).await,
            Self::Edit(edit) => edit.execute(format).await,
            Self::Edits(edits) => edits.execute(format).await,
            Self::Decision(decision) => decision.execute(format).await,
            Self::Audit(audit) => audit.execute(format).await,
        }
    }
}

impl List {
    async fn execute(self, format: Format) -> Result<Exit, Failure> {
        let places = self.place.open().await?;
        if let Some(file) = self.export.format() {
            let filter = self.conditions.filter(&[], &self.place);
            let export = DeadExport::new(places, &viewer(), filter, self.states(), file)?;
            return Exporting::Dead(Box::new(export)).print().await;
        }
        let listed = during("listing messages", self.look(&places)).await;
        let is_cut = self.count && listed.as_ref().is_ok_and(|listed| listed.more);
        let total = if is_cut { during("counting messages", self.total(&places)).await } else { None };
        places.close().await;
        let listed = listed?;
        if self.count {
            let grouped = listed.messages.len();
            let not_grouped = is_cut.then(|| beyond(grouped as u64, total));
            show::counts(&listed.messages, not_grouped, listed.away.is_empty(), format)?;
            if let Some(total) = total {
                let least = if total.is_at_least { "≥ " } else { "" };
                let number = total.number;
                note!("{least}{number} messages match; the groups above are of the first {grouped}");
            } else if is_cut {
                note!("more messages match; the groups above are of the first {grouped}");
            }
        } else {
            show::list(&listed.messages, listed.away.is_empty(), format)?;
            if listed.more {
                note!("there are more than {}: --limit shows more, --count counts them", self.limit);
            }
        }
        if listed.messages.is_empty() && self.place.lacks_inboxes()? {
            note!(
                "dead letters of consumers are not listed, because no inbox is configured: add \
                 [[verify.inbox]], or name one with --inbox"
            );
        }
        // An unreachable database does not hide the messages of the others.
        let away = listed.away.into_iter().map(Failure::from).fold(None, super::failure::first);
        away.map_or(Ok(Exit::Success), Err)
    }
}

impl List {
    fn states(&self) -> Vec<States> {
        if self.closed {
            return vec![States::Closed];
        }
        self.states.iter().map(|state| state.of_log()).collect()
    }

    /// Returns the number of messages that match, as the databases count them; `None` if they do
    /// not count these states at once, or do not answer.
    async fn total(&self, places: &Places) -> Option<Total> {
        let filter = self.conditions.filter(&[], &self.place);
        let mut all = Total::default();
        for state in self.counted_at_once()? {
            let found = survey(places, &viewer(), &filter, state).await.ok()?;
            all.number += found.total.number;
            all.is_at_least |= found.total.is_at_least || !found.away.is_empty();
        }
        Some(all)
    }

    /// Returns the selected states, if the databases count each of them at once.
    fn counted_at_once(&self) -> Option<Vec<ExceptionState>> {
        let of = |state: &State| match state {
            State::Dead => Some(ExceptionState::Dead),
            State::Retrying => Some(ExceptionState::Retrying),
            State::Held | State::Scheduled | State::Discarded => None,
        };
        if self.closed { None } else { self.states.iter().map(of).collect() }
    }

    /// Returns the messages of all requested states, in the order of the states.
    async fn look(&self, places: &Places) -> Result<Listed, OperateError> {
        let filter = self.conditions.filter(&[], &self.place);
        let limit = if self.count { COUNTED_MAX } else { self.limit };
        let mut all: Option<Listed> = None;
        for state in self.states() {
            let so_far = all.as_ref().map_or(0, |all| all.messages.len());
            let next = dead::list(places, &viewer(), &filter, state, limit - so_far).await?;
            all = Some(match all {
                None => next,
                Some(mut all) => {
                    all.messages.extend(next.messages);
                    all.more |= next.more;
                    all
                }
            });
        }
        all.ok_or_else(|| OperateError::refused("no state is selected", "add --state dead"))
    }
}

/// Returns the number of messages beyond those that are grouped. There is at least one, even if
/// some have left since.
fn beyond(grouped: u64, total: Option<Total>) -> Total {
    match total {
        Some(total) => Total { number: total.number.saturating_sub(grouped).max(1), ..total },
        None => Total { number: 1, is_at_least: true },
    }
}

/// Maximum number of messages that are grouped.
const COUNTED_MAX: usize = 100_000;

impl Show {
    async fn execute(self, format: Format) -> Result<Exit, Failure> {
        let places = self.place.open_for(&self.ids).await?;
        let filter = Filter { ids: self.ids, ..Filter::default() };
        let found = during("searching", dead::show(&places, &viewer(), &filter)).await;
        places.close().await;
        show::each(&found?, format)
    }
}

impl Audit {
    async fn execute(self, format: Format) -> Result<Exit, Failure> {
        let places = self.place.open().await?;
        let query = AuditQuery { is_each: self.each, ..AuditQuery::latest(self.limit) };
        let audited = during("reading", read(&places, &[], &viewer(), &query)).await;
        places.close().await;
        super::audit::print(audited?, false, format)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::super::{Cli, Command};
    use super::*;

    /// Returns the arguments of `relay dead list`.
    fn list(options: &str) -> List {
        let words = "relay dead list".split(' ').chain(options.split(' '));
        match Cli::parse_from(words).command {
            Command::Dead(Dead::List(list)) => list,
            other => panic!("{other:?}"),
        }
    }

    /// Goal: the number of more messages than are grouped is exact where that is cheap. Oracle: the
    /// states that a database counts at once.
    #[test]
    fn dead_and_retrying_messages_are_counted_however_many_they_are() {
        use ExceptionState::{Dead, Retrying};
        assert_eq!(list("--count").counted_at_once(), Some(vec![Dead]));
        let both = list("--count --state dead --state retrying").counted_at_once();
        assert_eq!(both, Some(vec![Dead, Retrying]));
        assert_eq!(list("--count --state held --state dead").counted_at_once(), None);
        assert_eq!(list("--count --closed").counted_at_once(), None);
    }

    #[test]
    fn the_help_of_discard_names_messages_that_are_retried() {
        let command = super::super::help::command();
        let discard = command.find_subcommand("dead").and_then(|dead| dead.find_subcommand("discard"));
        let help = discard.and_then(|discard| discard.get_about()).map(ToString::to_string);
        let help = help.unwrap_or_default();
        assert!(help.contains("an outbox that is being retried, whatever the cause"), "{help}");
    }

    /// Goal: messages that are in no group are never counted as none. Oracle: their number, with a
    /// total that is exact, a lower bound, smaller than what was grouped before, or unknown.
    #[test]
    fn messages_beyond_the_groups_are_at_least_one() {
        let total = |number, is_at_least| Total { number, is_at_least };
        assert_eq!(beyond(100_000, Some(total(152_009, false))), total(52_009, false));
        assert_eq!(beyond(100_000, Some(total(152_009, true))), total(52_009, true));
        assert_eq!(beyond(100_000, Some(total(99_990, false))), total(1, false));
        assert_eq!(beyond(100_000, None), total(1, true));
    }
}
