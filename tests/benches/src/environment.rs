//! The environment of a measurement, without which its figures mean nothing.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Instant;

use serde::Serialize;
use sqlx::{Connection, PgConnection};

use crate::Failure;
use crate::report::Spread;
use crate::rig::variable;

/// Versions of brokers, from the program that started them: brokers do not report them to clients.
const VERSIONS: &str = "OUTBOX_SERVICE_VERSIONS";
/// The folder in which the services keep their data.
const DATA: &str = "OUTBOX_SERVICES_DIR";

/// The machine and what runs on it.
#[derive(Debug, Serialize)]
pub(crate) struct Environment {
    processor: String,
    cores: usize,
    memory_mib: u64,
    /// Reported by the database itself.
    postgres: String,
    synchronous_commit: String,
    services: Option<String>,
    /// Microseconds to write 8 KiB to the disk of the services and sync them.
    fsync_us: Spread,
    optimised: bool,
}

impl Environment {
    pub(crate) async fn look() -> Result<Self, Failure> {
        let mut connection = PgConnection::connect(&variable("OUTBOX_POSTGRES_URL")?).await?;
        let (postgres, synchronous_commit) =
            sqlx::query_as("SELECT split_part(version(), ' ', 2), current_setting('synchronous_commit')")
                .fetch_one(&mut connection)
                .await?;
        Ok(Self {
            processor: first_field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".to_owned()),
            cores: std::thread::available_parallelism()?.get(),
            memory_mib: first_field("/proc/meminfo", "MemTotal")
                .and_then(|text| text.split(' ').next()?.parse::<u64>().ok())
                .unwrap_or(0)
                / 1_024,
            postgres,
            synchronous_commit,
            services: std::env::var(VERSIONS).ok().filter(|versions| !versions.is_empty()),
            fsync_us: tokio::task::spawn_blocking(fsync).await??,
            optimised: !cfg!(debug_assertions),
        })
    }
}

impl std::fmt::Display for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { processor, cores, memory_mib, postgres, synchronous_commit, fsync_us, .. } = self;
        write!(f, "{processor}, {cores} cores, {memory_mib} MiB; PostgreSQL {postgres}")?;
        if let Some(services) = &self.services {
            write!(f, ", {services}")?;
        }
        write!(
            f,
            "; synchronous_commit {synchronous_commit}, fsync of 8 KiB {:.0} µs ({:.0}–{:.0}); all services on this machine",
            fsync_us.median, fsync_us.min, fsync_us.max
        )?;
        if self.optimised { Ok(()) } else { f.write_str("; unoptimised build") }
    }
}

/// Returns the value of a line `name : value` in a file of the kernel.
fn first_field(file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

pub(crate) fn fsync() -> Result<Spread, std::io::Error> {
    const TIMES: usize = 200;
    let folder = std::env::var_os(DATA).map_or_else(std::env::temp_dir, PathBuf::from);
    let path = folder.join(format!("fsync-{}", std::process::id()));
    let mut file = fs::File::create(&path)?;
    let mut took = Vec::with_capacity(TIMES);
    for _ in 0..TIMES {
        let begun = Instant::now();
        file.write_all(&[7; 8_192])?;
        file.sync_data()?;
        took.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    fs::remove_file(path)?;
    Ok(Spread::of(&took))
}
