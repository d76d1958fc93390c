//! A command whose connection goes silent while it holds the lock.

use std::time::Duration;

use proxy::{Conditions, Flow, Pass, Proxy};
use serde_json::json;
use sqlx::Postgres;
use tests::relay_process::Config;
use tests::{Database, Failure, Outcome, Stage};
use tokio::task::JoinHandle;

use super::{RELAY, adopt, adopted, at_least};
use crate::commands::Ran;

const BROKER: &str = "[pipeline.kafka]\nbootstrap_servers = [\"127.0.0.1:1\"]\n";
const TABLE: &str =
    "CREATE TABLE old (id bigserial PRIMARY KEY, topic text, body jsonb, sent_at timestamptz)";
const SECTION: &str = "[pipeline.adopt]\ntable = \"old\"\npending = \"sent_at\"\n\
                       columns = { topic = \"topic\", key = \"\", kind = \"\", payload = \"body\" }\n";
/// Another mapping, with which `over` replaces the triggers.
const OTHER: &str = "id_header = \"old-id\"\n";
const INSERT: &str = "INSERT INTO old (topic, body) VALUES ('orders', '1')";

/// Time after which a producer must have been let through: three times the server's limit.
const HELD_MAX: Duration = Duration::from_secs(30);

/// Starts a command, and makes its network lose every byte while it holds the lock of the table.
/// `DROP TRIGGER` waits for the reader, so the command is under its lock then.
async fn lose(
    database: &Database<Postgres>,
    config: &Config,
    verb: &'static str,
) -> Result<(Proxy, JoinHandle<Result<Ran, Failure>>), Failure> {
    let (server, _) = database.url.rsplit_once('@').and_then(|it| it.1.split_once('/')).ok_or("no server")?;
    let wire = Proxy::start(0, server).await?;
    let url = database.url.replace(server, &wire.address().to_string());
    let mut reader = database.admin.begin().await?;
    sqlx::query("SELECT count(*) FROM old").execute(&mut *reader).await?;
    let config = config.clone();
    let running = tokio::spawn(async move { adopt(&config, &url, verb, &["--lock-timeout", "10s"]).await });
    let waiting = "SELECT count(*) FROM pg_locks WHERE relation = 'old'::regclass
        AND mode = 'AccessExclusiveLock' AND NOT granted";
    at_least(database, waiting, 1).await?;
    let lost = Flow { pass: Pass::Lose, ..Flow::default() };
    wire.set(Conditions { requests: lost, answers: lost, ..Conditions::default() });
    reader.rollback().await?;
    Ok((wire, running))
}

/// Goal: a command whose network disappears under its lock holds producers back for seconds, and
/// ends on its own. Oracle: a producer's insert within three times the server's limit; exit code 3
/// with the remedy; the adoption is what it was, and no message is missing.
pub(super) async fn connections(stage: Stage) -> Outcome {
    let database = Database::<Postgres>::migrated(&stage).await?;
    database.execute(TABLE).await?;
    let config = Config::with_section(&stage, RELAY, &database.url, BROKER, SECTION)?;
    let other = Config::with_section(&stage, RELAY, &database.url, BROKER, &format!("{SECTION}{OTHER}"))?;
    adopt(&config, &database.url, "over", &[]).await?.done()?;
    let mut lost = Vec::new();
    for (config, verb) in [(&other, "over"), (&config, "back")] {
        lost.push(lose(&database, config, verb).await?);
        let insert = tokio::time::timeout(HELD_MAX, database.execute(INSERT)).await;
        insert.map_err(|_| format!("`{verb}` still holds the producer back"))??;
    }
    for (_wire, running) in lost {
        running.await??.refused(3, &["did not answer within", "nothing has changed", "try again"])?;
    }
    let status = adopted(&config, &database.url, "status", 0).await?;
    assert_eq!(status["state"], json!("adopted"), "{status}");
    assert_eq!(database.integer("SELECT count(*) FROM outbox_message").await?, 2);
    Ok(())
}
