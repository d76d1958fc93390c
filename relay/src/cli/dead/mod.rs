//! `relay dead`: look at parked messages and decide about dead ones.

mod decide;
mod select;
mod show;

use clap::{Args, Subcommand, ValueEnum};
use outbox::log::ExceptionState;

use super::config::OnePipeline;
use super::exit::Exit;
use super::failure::Failure;
use super::output::Format;

#[cfg(feature = "fuzzing")]
pub(crate) use decide::edited_headers;
use decide::{Decide, Edit};
pub(crate) use decide::{Signature, confirm};
use select::Selection;

/// Actions on parked messages.
#[derive(Debug, Subcommand)]
pub enum Dead {
    /// List parked messages: dead ones, unless another state is asked for.
    List(List),
    /// Show everything known of single parked messages.
    Show(Show),
    /// Try dead messages again, with their attempts counted from zero.
    Requeue(Decide),
    /// Give dead messages up: they are never published, and their keys go on.
    Discard(Decide),
    /// Replace payload or headers of a dead message; it stays dead until it is requeued.
    Edit(Edit),
    /// List the decisions taken so far, the latest first.
    Audit(Audit),
}

/// The arguments of `relay dead list`.
#[derive(Debug, Args)]
pub struct List {
    #[command(flatten)]
    pipeline: OnePipeline,

    /// The state.
    #[arg(long, value_enum, value_name = "STATE", default_value_t)]
    state: State,

    /// Only messages of this topic.
    #[arg(long, value_name = "TOPIC")]
    topic: Option<String>,

    /// Only messages with this ordering key.
    #[arg(long, value_name = "KEY")]
    key: Option<String>,

    /// At most so many.
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    limit: usize,
}

/// The arguments of `relay dead show`.
#[derive(Debug, Args)]
pub struct Show {
    #[command(flatten)]
    pipeline: OnePipeline,

    /// The message: its place in the log, or its message id. May be repeated.
    #[arg(long = "id", value_name = "ID", required = true)]
    ids: Vec<select::Id>,
}

/// Which decisions to list.
#[derive(Debug, Args)]
pub struct Audit {
    #[command(flatten)]
    pipeline: OnePipeline,

    /// At most so many.
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    limit: u32,
}

/// Why a message is parked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum State {
    /// It failed too often; an operator decides.
    #[default]
    Dead,
    /// An earlier message of its key, or its whole topic, is blocked.
    Held,
    /// It failed and is tried again when due.
    Retrying,
    /// It is to be delivered later.
    Scheduled,
    /// An operator gave it up; the relay is about to remove it.
    Discarded,
}

impl State {
    const ALL: [Self; 5] = [Self::Dead, Self::Held, Self::Retrying, Self::Scheduled, Self::Discarded];

    fn of_log(self) -> ExceptionState {
        match self {
            Self::Dead => ExceptionState::Dead,
            Self::Held => ExceptionState::Held,
            Self::Retrying => ExceptionState::Retrying,
            Self::Scheduled => ExceptionState::Scheduled,
            Self::Discarded => ExceptionState::Discarded,
        }
    }
}

impl Dead {
    pub(crate) async fn execute(self, format: Format) -> Result<Exit, Failure> {
        match self {
            Self::List(list) => {
                let selection = Selection { topic: list.topic, key: list.key, ..Selection::default() };
                show::list(&list.pipeline.read()?, list.state, &selection, list.limit, format).await
            }
            Self::Show(show) => {
                let selection = Selection { ids: show.ids, ..Selection::default() };
                show::each(&show.pipeline.read()?, &selection, format).await
            }
            Self::Requeue(decide) => decide.execute(outbox::admin::Decision::Requeue, format).await,
            Self::Discard(decide) => decide.execute(outbox::admin::Decision::Discard, format).await,
            Self::Edit(edit) => edit.execute(format).await,
            Self::Audit(audit) => show::audit(&audit.pipeline.read()?, audit.limit, format).await,
        }
    }
}
