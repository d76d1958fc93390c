//! `relay sagas`: operations over several services, and operators' decisions about them.

mod decide;
mod show;

use std::num::NonZeroU32;

use clap::{Args, Subcommand, ValueEnum};
use operate::sagas::SagaDatabase;
use saga::{Choice, SagaId, SagaOutline, SagaQuery, State};

use super::database::TablesDatabase;
use super::exit::Exit;
use super::failure::Failure;
use super::operator::viewer;
use super::output::Format;
use super::progress::during;
use decide::{Decide, Skip};

/// Actions on sagas.
#[derive(Debug, Subcommand)]
pub enum Sagas {
    /// List sagas, oldest first. Default: only those that have not ended.
    List(List),
    /// Show a saga and its steps with their times, but without input, results and replies.
    Show(Which),
    /// List sagas that need an operator, starting with the one that has needed one the longest.
    Stuck(Stuck),
    /// Continue a stuck saga where it stopped. Its attempts are counted from zero.
    Retry(Decide),
    /// Cancel a running saga and undo its steps.
    Cancel(Decide),
    /// Skip the undo of a step of a stuck saga, or the step itself, which then needs a result.
    Skip(Skip),
    /// List decisions, latest first.
    Audit(Audit),
}

/// The arguments of `relay sagas list`.
#[derive(Debug, Args)]
pub struct List {
    #[command(flatten)]
    place: TablesDatabase,

    /// Only sagas of this type.
    #[arg(long = "type", value_name = "TYPE")]
    saga_type: Option<String>,

    /// Only sagas in this state.
    #[arg(long, value_enum, value_name = "STATE")]
    state: Option<StateName>,

    /// Include sagas that have finished or are undone.
    #[arg(long)]
    ended: bool,

    /// Maximum number of sagas.
    #[arg(long, value_name = "COUNT", default_value = "100")]
    limit: NonZeroU32,
}

/// The arguments of `relay sagas stuck`.
#[derive(Debug, Args)]
pub struct Stuck {
    #[command(flatten)]
    place: TablesDatabase,

    /// Only sagas of this type.
    #[arg(long = "type", value_name = "TYPE")]
    saga_type: Option<String>,

    /// Maximum number of sagas.
    #[arg(long, value_name = "COUNT", default_value = "100")]
    limit: NonZeroU32,
}

/// One saga.
#[derive(Debug, Args)]
pub struct Which {
    #[command(flatten)]
    place: TablesDatabase,

    /// The type of the saga.
    #[arg(long = "type", value_name = "TYPE")]
    saga_type: String,

    /// The id of the saga.
    #[arg(long, value_name = "ID")]
    id: String,
}

/// The decisions to list.
#[derive(Debug, Args)]
pub struct Audit {
    #[command(flatten)]
    place: TablesDatabase,

    /// Maximum number of decisions.
    #[arg(long, value_name = "COUNT", default_value = "100")]
    limit: NonZeroU32,
}

/// A state, as the command line spells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StateName {
    /// Its steps are running.
    Running,
    /// Its steps are being undone.
    Undoing,
    /// All steps are done.
    Finished,
    /// All steps are undone.
    Undone,
}

impl From<StateName> for State {
    fn from(name: StateName) -> Self {
        match name {
            StateName::Running => Self::Running,
            StateName::Undoing => Self::Undoing,
            StateName::Finished => Self::Finished,
            StateName::Undone => Self::Undone,
        }
    }
}

impl Which {
    fn id(&self) -> Result<SagaId, Failure> {
        SagaId::new(&self.saga_type, &self.id).map_err(|error| Failure::new(Exit::Usage, error))
    }
}

/// Connects to the sagas of a database.
async fn opened(place: &TablesDatabase) -> Result<SagaDatabase, Failure> {
    let goal = place.goal()?;
    Ok(during("connecting", SagaDatabase::open(&goal)).await?)
}

async fn listed(place: &TablesDatabase, query: &SagaQuery) -> Result<Vec<SagaOutline>, Failure> {
    let sagas = opened(place).await?;
    let listed = during("looking", sagas.list(&viewer(), query)).await?;
    sagas.close().await;
    Ok(listed)
}

impl Sagas {
    pub(crate) async fn execute(self, format: Format) -> Result<Exit, Failure> {
        match self {
            Self::List(List { place, saga_type, state, ended, limit }) => {
                let mut query = SagaQuery::open(limit);
                query.saga_type = saga_type;
                query.state = state.map(State::from);
                query.with_ended = ended || query.state.is_some_and(State::has_ended);
                show::list(&listed(&place, &query).await?, "no sagas", format)?;
                Ok(Exit::Success)
            }
            Self::Stuck(Stuck { place, saga_type, limit }) => {
                let mut query = SagaQuery::open(limit);
                query.saga_type = saga_type;
                query.is_stuck = true;
                show::list(&listed(&place, &query).await?, "no saga is stuck", format)?;
                Ok(Exit::Success)
            }
            Self::Show(which) => {
                let id = which.id()?;
                let sagas = opened(&which.place).await?;
                let found = during("looking", sagas.show(&viewer(), &id)).await?;
                sagas.close().await;
                let Some((saga, steps)) = found else {
                    let help = "an ended saga is deleted after its retention; `relay sagas list --ended` shows the others";
                    return Err(Failure::with_help(Exit::Usage, format_args!("there is no saga {id}"), help));
                };
                show::one(&saga, &steps, format)
            }
            Self::Retry(decide) => decide.execute(Choice::Retry, format).await,
            Self::Cancel(decide) => decide.execute(Choice::Cancel, format).await,
            Self::Skip(skip) => skip.execute(format).await,
            Self::Audit(Audit { place, limit }) => {
                let sagas = opened(&place).await?;
                let decisions = during("reading", sagas.decisions(&viewer(), i64::MAX, limit)).await?;
                sagas.close().await;
                show::audit(&decisions, format)
            }
        }
    }
}
