//! A backup takes the place of the producers' database while everything goes on: what was committed since is undone,
//! rows, cursor, lease and all, and some of it is at the broker.

use std::collections::HashSet;
use std::hash::Hash;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use async_trait::async_trait;
use migrations::{Identifier, Template};
use rand::rngs::StdRng;
use sqlx::postgres::PgConnection;
use sqlx::{Decode, Postgres, Type};
use tokio::process::Command;
use tokio::time::{Instant, sleep};
use url::Url;

use super::session;
use crate::Failure;
use crate::clock;
use crate::faults::{Fault, Struck, millis, seconds};
use crate::journal::{Journal, WENT_BACK, WentBack};
use crate::stage::Stage;

/// `pg_dump` at one moment, `pg_restore` at a later one: into a database beside the other one, which then gives its name
/// away. Inboxes and effects are in a database of their own, and stay.
///
/// Nobody can connect from the moment at which the difference is written down to that at which the backup has the name.
/// So everything that was committed and is not in the backup is in the list.
#[derive(Debug, Default)]
pub struct Restore {
    dump: Option<PathBuf>,
}

/// Where a server's administration is done while another database is renamed.
const MAINTENANCE: &str = "postgres";
/// For the locks that a dump takes, while somebody holds tables.
const LOCK_WAIT: &str = "--lock-wait-timeout=20s";
/// For sessions to end, and how often they are told.
const END: Duration = seconds(10);
const END_AGAIN: Duration = millis(50);

#[async_trait]
impl Fault for Restore {
    fn name(&self) -> &'static str {
        "restore"
    }

    fn weight(&self) -> u32 {
        5
    }

    fn by_default(&self) -> bool {
        false
    }

    fn lasts(&self) -> RangeInclusive<Duration> {
        seconds(2)..=seconds(20)
    }

    async fn strike(&mut self, stage: &Stage, _rng: &mut StdRng) -> Result<Struck, Failure> {
        let dump = stage.folder.join("producers.dump");
        let mut command = Command::new("pg_dump");
        command.args(["--format=custom", LOCK_WAIT, "--file"]).arg(&dump);
        run(command.arg("--dbname").arg(&stage.database.producers)).await?;
        let bytes = std::fs::metadata(&dump)?.len();
        self.dump = Some(dump);
        Ok(Struck::new("producers' database", format!("goes back to a dump of {bytes} bytes")))
    }

    async fn heal(&mut self, stage: &Stage) -> Result<(), Failure> {
        let Some(dump) = &self.dump else { return Ok(()) };
        let mut place = Place::open(&stage.database.producers).await?;
        // Otherwise an earlier try has come that far.
        if place.has_present().await? {
            place.restore(dump).await?;
            let lost = place.lock_out_and_compare().await?;
            Journal::open(&stage.folder.join(WENT_BACK))?.write(&[lost])?;
            place.run("DROP DATABASE {present} WITH (FORCE)").await?;
        }
        place.run("ALTER DATABASE {backup} RENAME TO {present}").await?;
        self.dump = None;
        session::end(place.admin).await;
        Ok(())
    }
}

/// The database, the one beside it that a backup is restored into, and a session in neither.
struct Place {
    admin: PgConnection,
    present_url: String,
    backup_url: String,
    present: Identifier,
    backup: Identifier,
}

impl Place {
    async fn open(present_url: &str) -> Result<Self, Failure> {
        let url = Url::parse(present_url)?;
        let present = url.path().trim_start_matches('/').to_owned();
        let backup = format!("{present}_backup");
        let at = |name: &str| {
            let mut url = url.clone();
            url.set_path(name);
            url.to_string()
        };
        let mut admin = session::connect(&at(MAINTENANCE)).await?;
        // Databases are made and removed with a checkpoint.
        session::run(&mut admin, "SET statement_timeout = '60s'".to_owned()).await?;
        let (present_url, backup_url) = (present_url.to_owned(), at(&backup));
        let (present, backup) = (Identifier::new(present)?, Identifier::new(backup)?);
        Ok(Self { admin, present_url, backup_url, present, backup })
    }

    async fn run(&mut self, sql: &'static str) -> Result<(), Failure> {
        let template =
            Template::new(sql).identifier("present", &self.present).identifier("backup", &self.backup);
        sqlx::query(&template.render()).execute(&mut self.admin).await?;
        Ok(())
    }

    async fn has_present(&mut self) -> Result<bool, Failure> {
        let sql = "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)";
        Ok(sqlx::query_scalar(sql).bind(self.present.as_str()).fetch_one(&mut self.admin).await?)
    }

    /// The backup, beside the database that is still in use.
    async fn restore(&mut self, dump: &Path) -> Result<(), Failure> {
        self.refuse_prepared().await?;
        self.run("DROP DATABASE IF EXISTS {backup} WITH (FORCE)").await?;
        self.run("CREATE DATABASE {backup}").await?;
        let mut command = Command::new("pg_restore");
        command.args(["--exit-on-error", "--dbname"]).arg(&self.backup_url);
        run(command.arg(dump)).await
    }

    /// Ends everybody's sessions, lets nobody in any more, and tells what is not in the backup.
    async fn lock_out_and_compare(&mut self) -> Result<WentBack, Failure> {
        // An earlier try may have left it locked.
        self.run("ALTER DATABASE {present} ALLOW_CONNECTIONS true").await?;
        let mut present = session::connect(&self.present_url).await?;
        self.run("ALTER DATABASE {present} ALLOW_CONNECTIONS false").await?;
        let own: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut present).await?;
        self.end_sessions_but(own).await?;
        if let Err(error) = self.refuse_prepared().await {
            self.run("ALTER DATABASE {present} ALLOW_CONNECTIONS true").await?;
            return Err(error);
        }
        let mut backup = session::connect(&self.backup_url).await?;
        let lost = WentBack {
            at: clock::now(),
            messages: missing(MESSAGES, &mut present, &mut backup).await?,
            rows: missing(ROWS, &mut present, &mut backup).await?,
        };
        session::end(present).await;
        session::run(&mut backup, "ANALYZE".to_owned()).await?;
        session::end(backup).await;
        Ok(lost)
    }

    async fn end_sessions_but(&mut self, own: i32) -> Result<(), Failure> {
        let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = $1 AND pid <> $2 \
                   AND backend_type = 'client backend'";
        let deadline = Instant::now() + END;
        loop {
            let ending: i64 = sqlx::query_scalar(sql)
                .bind(self.present.as_str())
                .bind(own)
                .fetch_one(&mut self.admin)
                .await?;
            if ending == 0 {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(format!("{ending} sessions did not end within {END:?}").into());
            }
            sleep(END_AGAIN).await;
        }
    }

    /// Whoever decides about a prepared transaction must not find the other database.
    async fn refuse_prepared(&mut self) -> Result<(), Failure> {
        let sql = "SELECT count(*) FROM pg_prepared_xacts WHERE database = $1";
        let prepared: i64 =
            sqlx::query_scalar(sql).bind(self.present.as_str()).fetch_one(&mut self.admin).await?;
        if prepared > 0 {
            return Err(format!("{prepared} prepared transactions are to be decided first").into());
        }
        Ok(())
    }
}

const MESSAGES: &str = "SELECT message_id FROM outbox_message";
const ROWS: &str = "SELECT row FROM business";

/// What one database answers and the other one does not.
async fn missing<T>(
    sql: &'static str,
    present: &mut PgConnection,
    backup: &mut PgConnection,
) -> Result<Vec<T>, Failure>
where
    T: Eq + Hash + Send + Unpin + Type<Postgres> + for<'r> Decode<'r, Postgres>,
{
    let there: HashSet<T> = sqlx::query_scalar(sql).fetch_all(backup).await?.into_iter().collect();
    let all: Vec<T> = sqlx::query_scalar(sql).fetch_all(present).await?;
    Ok(all.into_iter().filter(|one| !there.contains(one)).collect())
}

/// Runs a program to its end.
async fn run(command: &mut Command) -> Result<(), Failure> {
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output().await?;
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let program = command.as_std().get_program().display().to_string();
    Err(format!("{program} failed ({}): {}", output.status, errors.trim()).into())
}
