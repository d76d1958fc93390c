//! `relay migrate`: the tables of outbox, inbox, idempotency keys and sagas.

mod session;

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use migrations::{Backend, Dialect, Identifier, Line, MigrateError, Migrator, Status};
#[cfg(feature = "postgres")]
use outbox::connect::Hosts;
use outbox::connect::sqlite_options;
use outbox_log::LogError;
use serde::Serialize;
#[cfg(feature = "postgres")]
use sqlx::Postgres;
use sqlx::Sqlite;

use super::config::{ConfigFile, find};
#[cfg(not(feature = "postgres"))]
use super::database::without_postgres;
use super::database::{Goal, NamedDatabase};
use super::exit::Exit;
use super::failure::{Failure, first};
use super::output::{self, Format, Table};
use super::progress::{aside, during};
use super::roles::RolesScript;
use session::{close, opened, within};
#[cfg(feature = "postgres")]
use session::{connected, failed};

/// Actions on the tables.
#[derive(Debug, Subcommand)]
pub enum Migrate {
    /// Apply missing migrations, with one transaction per line. Several processes can run it at
    /// once.
    Up(Target),
    /// Show applied and missing migrations. Exits with 2 if a schema does not match this build.
    Status(Target),
    /// Print the SQL, so that an administrator can run it by hand. Includes the statements that
    /// record the applied versions.
    Sql(Script),
    /// Print the SQL that creates PostgreSQL roles of least privilege: producer, relay, consumer,
    /// claimant, observer, migrator.
    ///
    /// Run it as the owner of the tables, after `migrate up` and again after each upgrade, or use
    /// --apply. The roles cannot log in: add the users of your services to them.
    Roles(RolesScript),
}

/// Databases, and the tables in them.
#[derive(Debug, Args)]
pub struct Target {
    /// Only these lines (groups of tables). Can be repeated. Default: all.
    #[arg(long = "line", value_enum, value_name = "LINE")]
    lines: Vec<LineName>,

    #[command(flatten)]
    named: NamedDatabase,

    /// Only the database of this pipeline.
    #[arg(long, value_name = "NAME")]
    pipeline: Option<String>,

    #[command(flatten)]
    config: ConfigFile,
}

/// The arguments of `relay migrate sql`.
#[derive(Debug, Args)]
pub struct Script {
    #[command(flatten)]
    target: Target,

    /// The SQL dialect, if no database is given.
    #[arg(long, value_enum, value_name = "DIALECT", conflicts_with_all = ["named_database", "pipeline"])]
    dialect: Option<DialectName>,

    /// The first version to print. Earlier versions must already be applied.
    #[arg(long, value_name = "VERSION", default_value_t = 1, value_parser = clap::value_parser!(i32).range(1..))]
    from: i32,
}

/// A line of migrations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LineName {
    /// The tables of producers and relays.
    Outbox,
    /// The tables of consumers.
    Inbox,
    /// The tables of services that use idempotency keys.
    Idempotency,
    /// The tables of services that run sagas.
    Saga,
}

impl LineName {
    /// Returns the named lines, or all if none is named.
    pub(crate) fn chosen(names: &[Self]) -> Vec<Line> {
        let chosen = |line: &Line| {
            let name = match line {
                Line::Outbox => Self::Outbox,
                Line::Inbox => Self::Inbox,
                Line::Idempotency => Self::Idempotency,
                Line::Saga => Self::Saga,
            };
            names.is_empty() || names.contains(&name)
        };
        Line::ALL.into_iter().filter(chosen).collect()
    }
}

/// A dialect of SQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DialectName {
    /// PostgreSQL 13 or newer.
    Postgres,
    /// SQLite 3.43 or newer.
    Sqlite,
}

/// The result for one line of one database.
#[derive(Debug, Serialize)]
struct Outcome {
    database: String,
    line: &'static str,
    version: i32,
    version_needed: i32,
    /// Names of the migrations: just applied (up), or still missing (status).
    migrations: Vec<&'static str>,
    /// The reason why the line does not fit, and what to do.
    problem: Option<String>,
}

impl Migrate {
    pub(crate) async fn execute(self, format: Format) -> Result<Exit, Failure> {
        match self {
            Self::Up(target) => target.act(Act::Up, format).await,
            Self::Status(target) => target.act(Act::Look, format).await,
            Self::Sql(script) => script.print().await,
            Self::Roles(script) => script.execute().await,
        }
    }
}

impl Target {
    fn lines(&self) -> Vec<Line> {
        LineName::chosen(&self.lines)
    }

    /// Acts on every database and prints the results, even when one of them fails. Returns
    /// [`Exit::Usage`] if a schema does not fit.
    async fn act(&self, act: Act, format: Format) -> Result<Exit, Failure> {
        let (mut outcomes, mut failed) = (Vec::new(), None);
        let lines = self.lines();
        for goal in self.goals()? {
            if let Err(failure) = during(act.doing(), each(&goal, &lines, act, &mut outcomes)).await {
                failed = first(failed, failure);
            }
        }
        if failed.is_none() || !outcomes.is_empty() {
            format.print(&outcomes, |outcomes| shown(outcomes, act.word()))?;
        }
        let fits = outcomes.iter().all(|outcome| outcome.problem.is_none());
        failed.map_or(Ok(if fits { Exit::Success } else { Exit::Usage }), Err)
    }

    /// Returns the databases. One that several pipelines share appears once.
    fn goals(&self) -> Result<Vec<Goal>, Failure> {
        if let Some(goal) = self.named.goal()? {
            return Ok(vec![goal]);
        }
        let config = self.config.read()?;
        let pipelines = match &self.pipeline {
            Some(name) => vec![find(&config, name)?],
            None => config.pipelines.iter().collect(),
        };
        let mut goals: Vec<Goal> = Vec::new();
        for pipeline in pipelines {
            let found = self.named.of(pipeline)?;
            let same = |goal: &Goal| goal.url() == found.url() && goal.options.schema == found.options.schema;
            if !goals.iter().any(same) {
                goals.push(found);
            }
        }
        Ok(goals)
    }
}

/// An action on one line of one database.
#[derive(Debug, Clone, Copy)]
enum Act {
    Up,
    Look,
}

impl Act {
    /// Returns what the command is doing, for its progress.
    fn doing(self) -> &'static str {
        match self {
            Self::Up => "migrating",
            Self::Look => "looking",
        }
    }

    /// Returns the word for the migrations that it lists.
    fn word(self) -> &'static str {
        match self {
            Self::Up => "applied",
            Self::Look => "missing",
        }
    }
}

/// Time that `relay migrate sql` spends on comparing with a database, which it does not need.
const LOOK_TIMEOUT: Duration = Duration::from_secs(3);

/// Returns a comment for the script if the database is up to date and needs nothing from it.
/// Returns `None` if the database is unreachable or lacks something.
async fn needs_nothing(goal: &Goal, lines: &[Line]) -> Option<String> {
    let mut outcomes = Vec::new();
    let looked = each(goal, lines, Act::Look, &mut outcomes);
    tokio::time::timeout(LOOK_TIMEOUT, looked).await.ok()?.ok()?;
    let is_whole = outcomes.iter().all(|outcome| outcome.problem.is_none());
    let database = outcomes.first().map(|outcome| output::one_line(&outcome.database))?;
    is_whole.then(|| format!("-- {database} is up to date: it needs nothing from this script\n"))
}

async fn each(goal: &Goal, lines: &[Line], act: Act, outcomes: &mut Vec<Outcome>) -> Result<(), Failure> {
    let url = goal.url();
    let invalid = |error| Failure::from(LogError::from(error));
    match goal.dialect()? {
        #[cfg(not(feature = "postgres"))]
        Dialect::Postgres => Err(without_postgres()),
        #[cfg(feature = "postgres")]
        Dialect::Postgres => {
            let hosts = Hosts::of(url, goal.options.allow_plaintext).map_err(invalid)?;
            let database = described(&hosts);
            let mut connection = connected(hosts.application_name("relay migrate"), &database).await?;
            let set = outbox::connect::set_own_defaults(&mut connection);
            let set = within(async { set.await.map_err(|error| failed("configure the session", error)) });
            set.await.map_err(|failure| failure.about(&database))?;
            with::<Postgres>(goal, &mut connection, &database, lines, act, outcomes).await?;
            close(connection).await
        }
        Dialect::Sqlite => {
            let options = sqlite_options(url).map_err(invalid)?;
            let database = format!("sqlite {}", options.get_filename().display());
            let mut connection = opened(&options, &database).await.map_err(|failure| {
                if options.get_filename().exists() {
                    failure
                } else {
                    Failure::with_help(failure.exit(), failure, "?mode=rwc creates a missing file")
                }
            })?;
            with::<Sqlite>(goal, &mut connection, &database, lines, act, outcomes).await?;
            close(connection).await
        }
    }
}

async fn with<DB: Backend>(
    goal: &Goal,
    connection: &mut DB::Connection,
    database: &str,
    lines: &[Line],
    act: Act,
    outcomes: &mut Vec<Outcome>,
) -> Result<(), Failure> {
    for &line in lines {
        let schema = goal.options.schema.clone();
        let name = database.to_owned();
        let migrator = Migrator::<DB>::new(line).schema(schema).on_wait(move |waiting| {
            let holder = output::one_line(&waiting.holder);
            aside(&format!("{name}: waiting for another migration: {holder}"));
        });
        let about = |failure: Failure| failure.about(database);
        let applied = match act {
            Act::Up => Some(migrator.up(connection).await.map_err(|error| about(error.into()))?),
            Act::Look => None,
        };
        let status = within(async { migrator.status(connection).await.map_err(Failure::from) });
        let status = status.await.map_err(about)?;
        let fits = within(async { Ok(migrator.check(connection).await) }).await.map_err(about)?;
        let problem = match fits {
            Ok(()) => None,
            Err(MigrateError::Schema(error)) => Some(error.to_string()),
            Err(error) => return Err(about(error.into())),
        };
        outcomes.push(outcome(database, &status, applied, problem));
    }
    Ok(())
}

/// Returns the hosts and the name of a database, for people.
#[cfg(feature = "postgres")]
fn described(hosts: &Hosts) -> String {
    let first = hosts.first();
    let name = first.get_database().unwrap_or_else(|| first.get_username());
    let places = hosts.all().iter().map(|host| format!("{}:{}", host.get_host(), host.get_port()));
    format!("postgresql {}/{name}", places.collect::<Vec<_>>().join(","))
}

/// Runs an SQL script on PostgreSQL.
#[cfg(feature = "postgres")]
pub(crate) async fn run_script(goal: &Goal, script: String) -> Result<(), Failure> {
    if goal.dialect()? != Dialect::Postgres {
        return Err(Failure::new(Exit::Usage, "SQLite has no roles"));
    }
    let invalid = |error| Failure::from(LogError::from(error));
    let hosts = Hosts::of(goal.url(), goal.options.allow_plaintext).map_err(invalid)?;
    let database = described(&hosts);
    let mut connection = connected(hosts.application_name("relay migrate"), &database).await?;
    let ran = sqlx::raw_sql(sqlx::AssertSqlSafe(script)).execute(&mut connection);
    let ran = within(async { ran.await.map_err(|error| failed("create the roles", error)) });
    ran.await.map_err(|failure| failure.about(&database))?;
    close(connection).await
}

/// Runs an SQL script on PostgreSQL.
#[cfg(not(feature = "postgres"))]
pub(crate) async fn run_script(_: &Goal, _: String) -> Result<(), Failure> {
    Err(without_postgres())
}

fn outcome(
    database: &str,
    status: &Status,
    applied: Option<&'static [migrations::Migration]>,
    problem: Option<String>,
) -> Outcome {
    let listed = applied.unwrap_or_else(|| status.pending().unwrap_or_default());
    Outcome {
        database: database.to_owned(),
        line: status.line.as_str(),
        version: status.database_version(),
        version_needed: status.build_version(),
        migrations: listed.iter().map(|migration| migration.name).collect(),
        problem,
    }
}

fn shown(outcomes: &[Outcome], what: &str) -> String {
    let rows = outcomes.iter().map(|outcome| {
        let migrations = match &outcome.problem {
            Some(problem) => problem.clone(),
            None if outcome.migrations.is_empty() => String::from("up to date"),
            None => format!("{what} {}", outcome.migrations.join(", ")),
        };
        let version = format!("{} of {}", outcome.version, outcome.version_needed);
        [outcome.database.clone(), outcome.line.to_owned(), version, migrations]
    });
    Table::new(["database", "line", "version", "state"], rows).optional(&["version"]).shown()
}

impl Script {
    async fn print(&self) -> Result<Exit, Failure> {
        let mut scripts = Vec::new();
        let lines = self.target.lines();
        if let Some(dialect) = self.dialect {
            let dialect = match dialect {
                DialectName::Postgres => Dialect::Postgres,
                DialectName::Sqlite => Dialect::Sqlite,
            };
            self.render(dialect, self.target.named.schema.as_ref(), &lines, &mut scripts)?;
        } else {
            for goal in self.target.goals()? {
                scripts.extend(needs_nothing(&goal, &lines).await);
                self.render(goal.dialect()?, goal.options.schema.as_ref(), &lines, &mut scripts)?;
            }
        }
        output::print(&scripts.join("\n"))?;
        Ok(Exit::Success)
    }

    fn render(
        &self,
        dialect: Dialect,
        schema: Option<&Identifier>,
        lines: &[Line],
        scripts: &mut Vec<String>,
    ) -> Result<(), Failure> {
        for &line in lines {
            let known = line.migrations(dialect).last().map_or(0, |migration| migration.version);
            let versions = self.from..=known.max(self.from);
            let script = match dialect {
                #[cfg(not(feature = "postgres"))]
                Dialect::Postgres => {
                    let _ = schema;
                    return Err(without_postgres());
                }
                #[cfg(feature = "postgres")]
                Dialect::Postgres => Migrator::<Postgres>::new(line).schema(schema.cloned()).sql(versions)?,
                Dialect::Sqlite => Migrator::<Sqlite>::new(line).sql(versions)?,
            };
            if !scripts.contains(&script) {
                scripts.push(script);
            }
        }
        Ok(())
    }
}
