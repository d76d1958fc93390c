//! The log of a relay when nothing reads it, or when it cannot be written.

use std::fs::File;
use std::process::Stdio;

use libtest_mimic::Trial;
use sqlx::Sqlite;
use tests::eventually::when;
use tests::relay_process::Config;
use tests::{Database, Outcome, RelayProcess, Stage, eventually, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_log_whose_reader_is_gone_ends_no_relay/sqlite", &[], reader_gone),
        trial("a_log_on_a_full_disk_ends_no_relay/sqlite", &[], disk_full),
    ]
}

async fn reader_gone(stage: Stage) -> Outcome {
    let (reader, writer) = std::io::pipe()?;
    drop(reader);
    leads_and_stops(&stage, writer.into()).await
}

async fn disk_full(stage: Stage) -> Outcome {
    let full = File::options().write(true).open("/dev/full")?;
    leads_and_stops(&stage, full.into()).await
}

/// Goal: a relay works whether or not its log can be written. Oracle: it takes the lease, which it
/// logs, keeps it, and stops with success.
async fn leads_and_stops(stage: &Stage, log: Stdio) -> Outcome {
    let database = Database::<Sqlite>::migrated(stage).await?;
    let broker = "[pipeline.kafka]\nbootstrap_servers = [\"127.0.0.1:1\"]\n";
    let config = Config::with_section(stage, "orders", &database.url, broker, "")?;
    let relay = RelayProcess::start_logging_to(stage, &config, log)?;
    let leads = "SELECT count(*) FROM outbox_relay WHERE holder IS NOT NULL";
    eventually("the relay leads", || async { Ok(when(database.integer(leads).await? == 1)) }).await?;
    // The lease was renewed after many lines.
    let end = database.integer("SELECT lease_until FROM outbox_relay").await?;
    let renewed = "SELECT max(lease_until) FROM outbox_relay WHERE epoch = 1";
    eventually("the lease is renewed", || async { Ok(when(database.integer(renewed).await? > end)) }).await?;
    relay.stop().await
}
