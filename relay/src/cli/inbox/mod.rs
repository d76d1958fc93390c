//! `relay inbox`: what operators look at in the inbox of a consumer, and decide about.

mod decide;
mod place;
mod select;
mod show;

use std::num::NonZeroU32;

use ::inbox::{Action, DeadLetterId};
use clap::{Args, Subcommand};

use super::database::TablesDatabase;
use super::exit::Exit;
use super::failure::Failure;
use super::output::Format;
use decide::Decide;
use place::Opened;
use select::Selection;

/// Actions on the inbox of a consumer.
#[derive(Debug, Subcommand)]
pub enum Inbox {
    /// Look at dead letters of consumers and decide about them.
    #[command(subcommand)]
    Dead(Dead),
}

/// Actions on dead letters.
#[derive(Debug, Subcommand)]
pub enum Dead {
    /// List open dead letters, oldest first.
    List(List),
    /// Show everything known of single dead letters, but no payload.
    Show(Show),
    /// Ask the consumer to run its handler once more; it does so within seconds, if it runs.
    ///
    /// The outcome stands in `relay inbox dead audit`.
    Redrive(Redrive),
    /// Give messages up: no further copy of them takes effect.
    Discard(Decide),
    /// List the decisions taken so far, the latest first, with what came of them.
    Audit(Audit),
}

/// The arguments of `relay inbox dead list`.
#[derive(Debug, Args)]
pub struct List {
    #[command(flatten)]
    place: TablesDatabase,

    #[command(flatten)]
    selection: Selection,

    /// Also those that are closed.
    #[arg(long)]
    closed: bool,

    /// At most so many.
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    limit: usize,
}

/// The arguments of `relay inbox dead show`.
#[derive(Debug, Args)]
pub struct Show {
    #[command(flatten)]
    place: TablesDatabase,

    /// The dead letter. May be repeated.
    #[arg(long = "id", value_name = "ID", required = true)]
    ids: Vec<DeadLetterId>,
}

/// The arguments of `relay inbox dead redrive`.
#[derive(Debug, Args)]
pub struct Redrive {
    #[command(flatten)]
    decide: Decide,

    /// Apply also what is older than the inbox remembers. Find out first whether it took effect:
    /// the inbox cannot know.
    #[arg(long)]
    accept_late: bool,
}

/// Which decisions to list.
#[derive(Debug, Args)]
pub struct Audit {
    #[command(flatten)]
    place: TablesDatabase,

    /// At most so many.
    #[arg(long, value_name = "COUNT", default_value = "100")]
    limit: NonZeroU32,
}

impl Inbox {
    pub(crate) async fn execute(self, format: Format) -> Result<Exit, Failure> {
        let Self::Dead(dead) = self;
        match dead {
            Dead::List(List { place, selection, closed, limit }) => {
                let inbox = Opened::of(&place).await?;
                let letters = selection.read(&inbox, closed, limit).await?;
                inbox.close().await;
                show::list(&letters, format)
            }
            Dead::Show(Show { place, ids }) => {
                let inbox = Opened::of(&place).await?;
                let letters = select::by_id(&inbox, &ids).await?;
                inbox.close().await;
                show::each(&letters, format)
            }
            Dead::Redrive(Redrive { decide, accept_late }) => {
                decide.execute(Action::Redrive, accept_late, format).await
            }
            Dead::Discard(decide) => decide.execute(Action::Discard, false, format).await,
            Dead::Audit(Audit { place, limit }) => {
                let inbox = Opened::of(&place).await?;
                let decisions = inbox.decisions(limit).await?;
                inbox.close().await;
                show::audit(&decisions, format)
            }
        }
    }
}
