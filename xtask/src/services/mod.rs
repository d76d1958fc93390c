//! Private instances of the real components, without Docker, with their own ports and data folders.

pub(crate) mod axe;
mod certificates;
pub(crate) mod chromium;
mod commands;
pub(crate) mod debezium;
pub(crate) mod faketime;
mod fault;
mod home;
mod install;
mod java;
mod kafka;
mod manager;
mod pgbouncer;
mod ports;
mod postgres;
mod postgres_release;
mod probe;
mod process;
mod progress;
pub(crate) mod promtool;
pub(crate) mod python;
mod rabbitmq;
mod settings;
mod sqs;
mod state;
mod unprivileged;

pub(crate) use certificates::DIR_VARIABLE as TLS_DIR_VARIABLE;
pub(crate) use commands::{Command, run};
pub(crate) use fault::Fault;
pub(crate) use home::remove;
pub(crate) use manager::{Outcome, UpReport, down, secure_addresses, up, version};
pub(crate) use settings::{DIR_VARIABLE, DOWNLOADS_VARIABLE, services_dir, wal_is_logical};

use home::Home;
use process::Signal;
use settings::Port;
use std::{path::PathBuf, process::Command as Program};

/// The services, in the order in which they are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Name {
    Postgres,
    Pgbouncer,
    Kafka,
    Rabbitmq,
    Sqs,
}

impl Name {
    pub(crate) const ALL: [Self; 5] =
        [Self::Postgres, Self::Pgbouncer, Self::Kafka, Self::Rabbitmq, Self::Sqs];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Pgbouncer => "pgbouncer",
            Self::Kafka => "kafka",
            Self::Rabbitmq => "rabbitmq",
            Self::Sqs => "sqs",
        }
    }

    /// Returns the variable in which tests, benches and examples look for the service's address.
    pub(crate) fn variable(self) -> &'static str {
        match self {
            Self::Postgres => "OUTBOX_POSTGRES_URL",
            Self::Pgbouncer => "OUTBOX_PGBOUNCER_URL",
            Self::Kafka => "OUTBOX_KAFKA_BROKERS",
            Self::Rabbitmq => "OUTBOX_RABBITMQ_URL",
            Self::Sqs => "OUTBOX_SQS_ENDPOINT",
        }
    }

    pub(crate) fn service(self) -> &'static dyn Service {
        match self {
            Self::Postgres => &postgres::Postgres,
            Self::Pgbouncer => &pgbouncer::Pgbouncer,
            Self::Kafka => &kafka::Kafka,
            Self::Rabbitmq => &rabbitmq::Rabbitmq,
            Self::Sqs => &sqs::Sqs,
        }
    }

    /// Returns the port that clients use.
    pub(crate) fn port(self) -> Result<u16, Fault> {
        self.service().client_port().number()
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.pad(self.as_str())
    }
}

/// The way in which a service is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Orderly: buffers are written, clients are notified.
    Gracefully,
    /// As in a crash: nothing is flushed, the next start recovers.
    Immediately,
}

/// An additional address of a service, besides that of its clients: with TLS, or for
/// administration.
pub(crate) struct Secure {
    /// The variable in which tests look for it.
    pub(crate) variable: &'static str,
    /// The variable of its port, if that is not the clients' own.
    pub(crate) port_variable: Option<&'static str>,
    pub(crate) port: u16,
    /// The variable's value.
    pub(crate) url: String,
    /// Whether a running instance offers it: one that was started by an older xtask may not.
    pub(crate) offered: fn(u16) -> bool,
}

/// A service's programs as found on this machine.
pub(crate) struct Installed {
    pub(crate) version: String,
    /// The folder of its programs, or of its jars.
    pub(crate) programs: PathBuf,
}

/// The parts in which services differ; everything else is the same for all of them (`manager`).
pub(crate) trait Service: Sync {
    fn client_port(&self) -> &'static Port;

    /// Returns the ports besides the clients' port, which must be free as well.
    fn other_ports(&self) -> &'static [Port] {
        &[]
    }

    /// Returns the value of [`Name::variable`] for an instance of ours.
    fn url(&self, port: u16) -> String;

    /// Returns the addresses that it offers besides the clients' plain port.
    fn secure(&self) -> Result<Vec<Secure>, Fault> {
        Ok(Vec::new())
    }

    /// Returns the folder of the data, if it is on disk at all; always the same for the same home.
    fn data(&self, home: &Home) -> Result<PathBuf, Fault> {
        Ok(home.dir.join("data"))
    }

    /// Finds the programs; installs them if they are missing.
    fn install(&self, home: &Home, phase: &dyn Fn(&str)) -> Result<Installed, Fault>;

    /// Writes configuration, creates the data folder on first use, and returns the command of the
    /// server in the foreground.
    fn prepare(&self, home: &Home, installed: &Installed) -> Result<Program, Fault>;

    /// Makes one exchange in the service's own protocol; an error says why it is not ready.
    fn probe(&self, port: u16) -> Result<(), String>;

    /// Returns the signal for the server process.
    fn signal(&self, stop: Stop) -> Signal {
        match stop {
            Stop::Gracefully => Signal::Term,
            Stop::Immediately => Signal::Kill,
        }
    }

    /// Removes processes that the server leaves behind.
    fn after_stop(&self, _home: &Home) -> Result<(), Fault> {
        Ok(())
    }
}
