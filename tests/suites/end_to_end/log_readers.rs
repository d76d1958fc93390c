//! The log of a relay when nothing reads it, or when it cannot be written.

use std::fs::File;
use std::io::Write as _;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sqlx::Sqlite;
use tests::eventually::when;
use tests::relay_process::Config;
use tests::{Database, Outcome, RelayProcess, Stage, eventually};

tests::cases! { "{case}/{on}":
    sqlite {
        a_log_whose_reader_is_gone_ends_no_relay = reader_gone,
        a_log_on_a_full_disk_ends_no_relay = disk_full,
        a_start_that_fails_ends_while_the_reader_of_its_log_hangs = reader_hangs,
    }
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

/// Goal: a relay that cannot start does not wait for the reader of its log, so that its supervisor
/// learns of it. Oracle: the exit code, while the pipe is full and nothing reads it.
async fn reader_hangs(stage: Stage) -> Outcome {
    let (reader, mut writer) = std::io::pipe()?;
    let log = writer.try_clone()?;
    let written = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&written);
    // Waits in its last write until the reader is dropped.
    let filling = std::thread::spawn(move || {
        while writer.write_all(b"x").is_ok() {
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    let mut before = 0;
    while before == 0 || before != written.load(Ordering::Relaxed) {
        before = written.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    // Its tables belong to a different build, which waiting does not change.
    let database = Database::<Sqlite>::migrated(&stage).await?;
    database.execute("UPDATE outbox_toolkit_migration SET checksum = 'x' WHERE line = 'outbox'").await?;
    let broker = "[pipeline.kafka]\nbootstrap_servers = [\"127.0.0.1:1\"]\n";
    let config = Config::with_section(&stage, "orders", &database.url, broker, "")?;
    let mut relay = RelayProcess::start_logging_to(&stage, &config, log.into())?;
    let ended = relay.ended().await;
    drop(reader);
    filling.join().map_err(|_| "the thread that fills the pipe has failed")?;
    assert_eq!(ended?.code(), Some(2));
    Ok(())
}
