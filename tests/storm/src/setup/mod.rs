//! Sets up the stage of one storm: databases, topics and queues, proxies, and the tasks of
//! processes.
//!
//! | module | contents |
//! |---|---|
//! | `addresses` | the addresses of servers, direct and through proxies |
//! | `broker` | topics, exchanges, queues |
//! | `database` | databases, tables |
//! | `processes` | starts producers, relays and consumers |
//! | `sagas` | tables and topics of sagas, and their pipeline |
//! | `roles` | the PostgreSQL users of least privilege for the processes |

mod addresses;
mod broker;
mod database;
mod processes;
mod roles;
mod sagas;

use std::path::{Path, PathBuf};
use std::time::Duration;

use url::Url;

use crate::Failure;
use crate::load::Topics;
use crate::pair::{DatabaseKind, Pair};
use crate::sagas::SagaTopics;
use crate::stage::{Processes, Services, Stage, Wires};

pub use addresses::Servers;
pub(crate) use processes::{HEARTBEAT, LEASE, RETRY_MAX};
pub use processes::{Programs, RELAY_NAME};

/// The plan of one storm.
#[derive(Debug, Clone)]
pub struct Plot {
    /// The database and the broker of the storm.
    pub pair: Pair,
    /// The prefix of everything that this storm creates.
    pub name: String,
    /// The folder for all files.
    pub folder: PathBuf,
    /// The time during which faults are injected.
    pub length: Duration,
    /// The pause between two operations of one worker.
    pub pause: Duration,
    /// Whether the inbox's guard is on.
    pub guarded: bool,
    /// Whether relays publish in transactions.
    pub transactional: bool,
    /// Whether PostgreSQL never analyses its tables.
    pub never_analysed: bool,
    /// The time at which the storm began, in seconds since 1970.
    pub began: i64,
}

/// Number of accounts for which producers contend.
pub const ACCOUNTS: u32 = 40;

impl Plot {
    /// Returns the topics of producers' messages.
    #[must_use]
    pub fn topics(&self) -> Topics {
        Topics { main: self.topic("rows"), nowhere: self.topic("nowhere") }
    }

    /// Returns the topics of the sagas' messages.
    #[must_use]
    pub fn saga_topics(&self) -> SagaTopics {
        SagaTopics { ship: self.topic("ship"), replies: self.topic("replies") }
    }

    fn topic(&self, word: &str) -> String {
        let suffix = if self.pair.broker == crate::pair::BrokerKind::SqsFifo { ".fifo" } else { "" };
        format!("{}-{word}{suffix}", self.name)
    }

    /// Returns the names under which messages are applied.
    #[must_use]
    pub fn consumers(&self) -> [&'static str; 2] {
        ["billing", "audit"]
    }

    /// Returns the name under which a consumer's dead letters are stored. Where one reader applies
    /// a message under both names, it is the name of that reader.
    #[must_use]
    pub fn dead_lettered_by(&self, consumer: &'static str) -> &'static str {
        if self.pair.broker.has_one_reader() { self.consumers()[0] } else { consumer }
    }

    /// Returns the Kafka group of a consumer.
    #[must_use]
    pub fn group(&self, consumer: &str) -> String {
        format!("{}-{consumer}", self.name)
    }

    /// Returns the path of a file of this storm.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

/// Sets up everything except the processes.
///
/// # Errors
/// A server that this pair needs is missing, or refuses.
pub async fn stage(plot: &Plot, servers: &Servers, xtask: &Path) -> Result<Stage, Failure> {
    let mut database = match plot.pair.database {
        DatabaseKind::Postgres => database::postgres(plot, servers.postgres()?).await?,
        DatabaseKind::Sqlite => database::sqlite(plot).await?,
    };
    let broker = broker::make(plot, servers).await?;
    sagas::make_topics(plot, &broker).await?;
    let mut wires = Wires::default();
    addresses::wire(plot.pair, servers, &broker, &mut wires).await?;
    if let Some(own) = &wires.own {
        database.producers = addresses::through(&Url::parse(&database.producers)?, own.address())?;
    }
    Ok(Stage {
        pair: plot.pair,
        processes: Processes::default(),
        wires,
        services: Services::new(xtask.to_owned()),
        database,
        broker,
        length: plot.length,
        folder: plot.folder.clone(),
    })
}

/// Reverts the settings of a server that others may use. Needed however the storm ends.
///
/// # Errors
/// The server refuses.
pub async fn restore(plot: &Plot, servers: &Servers) -> Result<(), Failure> {
    if plot.never_analysed && plot.pair.database == DatabaseKind::Postgres {
        database::analyse_again(servers.postgres()?).await?;
    }
    Ok(())
}

/// Starts every process.
///
/// # Errors
/// A task cannot be written.
pub async fn start(
    plot: &Plot,
    servers: &Servers,
    stage: &Stage,
    programs: &Programs,
) -> Result<(), Failure> {
    processes::start(plot, servers, stage, programs).await
}

/// Removes everything that was created on servers. Files stay with their folder.
///
/// # Errors
/// A server refuses.
pub async fn remove(plot: &Plot, servers: &Servers, stage: &Stage) -> Result<(), Failure> {
    if plot.pair.database == DatabaseKind::Postgres {
        database::drop_postgres(plot, servers.postgres()?).await?;
    }
    stage.services.remove_others().await?;
    sagas::remove_topics(plot, stage).await?;
    broker::remove(plot, stage).await
}
