//! The stage: everything that a fault can reach. All of it belongs to the storm, so faults harm
//! nothing outside it.
//!
//! | module | contents |
//! |---|---|
//! | `broker` | the broker, its topics and queues |
//! | `database` | the databases of producers, consumers, sagas and their bank |
//! | `services` | starting and stopping of servers |
//! | `wires` | the proxies between processes and servers |

mod broker;
mod database;
mod services;
mod wires;

use std::path::PathBuf;
use std::time::Duration;

use harness::faults::Reach;
use proxy::Proxy;

pub use broker::{Broker, Topic};
pub use database::Database;
pub use harness::processes::{Processes, Recipe, Role, Signal};
pub use services::{Service, Services};
pub use wires::{Peer, Wire, Wires};

use crate::Failure;
use crate::pair::Pair;

/// The variable that arms crash points of a process; [`message::crash_points`] defines its format.
pub const CRASH_POINTS: &str = message::crash_points::VARIABLE;

/// Everything that a fault can reach.
pub struct Stage {
    /// The database and the broker of this storm.
    pub pair: Pair,
    /// Producers, relays and consumers.
    pub processes: Processes,
    /// The proxies between them and the servers.
    pub wires: Wires,
    /// The servers' private instances.
    pub services: Services,
    /// The databases.
    pub database: Database,
    /// The broker.
    pub broker: Broker,
    /// The time during which faults are injected.
    pub length: Duration,
    /// The folder of journals, logs and configurations. Faults may keep files in it.
    pub folder: PathBuf,
}

impl Reach for Stage {
    fn processes(&self) -> &Processes {
        &self.processes
    }

    fn wires(&self) -> Vec<(String, &Proxy)> {
        self.wires.proxies.iter().map(|(wire, proxy)| (wire.to_string(), proxy)).collect()
    }

    fn switch_cluster(&self, up: bool) -> Result<(), Failure> {
        let mock = self.broker.mock()?;
        Ok(if up { mock.up() } else { mock.down() }?)
    }
}
