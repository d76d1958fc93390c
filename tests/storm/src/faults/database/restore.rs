//! A backup replaces the producers' database while all processes continue. Everything committed
//! since the backup is undone: rows, cursor, lease. Some of it is already at the broker.

use std::path::{Path, PathBuf};

use async_trait::async_trait;
use migrations::{Identifier, Template};
use rand::rngs::StdRng;
use tokio::process::Command;

use super::fence::{Fence, beside, lost};
use super::program::run;
use super::session;
use crate::Failure;
use crate::faults::{Fault, FaultKind, Injected, seconds};
use crate::journal::{Journal, WENT_BACK};
use crate::stage::Stage;

/// A fault that runs `pg_dump` and later `pg_restore`. The backup is restored into a new database
/// beside the current one, and then takes its name. Inboxes and effects are in another database,
/// which stays.
///
/// No client can connect from the time when the difference is recorded until the backup has the
/// name. So the list contains everything that was committed and is not in the backup.
#[derive(Debug, Default)]
pub struct Restore {
    dump: Option<PathBuf>,
}

/// Timeout for the locks that a dump takes while another fault holds tables.
const LOCK_WAIT: &str = "--lock-wait-timeout=20s";

#[async_trait]
impl Fault<Stage> for Restore {
    fn kind(&self) -> FaultKind {
        FaultKind::new("restore").weight(5).lasts(seconds(2)..=seconds(20))
    }

    async fn inject(&mut self, stage: &Stage, _rng: &mut StdRng) -> Result<Injected, Failure> {
        let dump = stage.folder.join("producers.dump");
        let mut command = Command::new("pg_dump");
        command.args(["--format=custom", LOCK_WAIT, "--file"]).arg(&dump);
        run(command.arg("--dbname").arg(&stage.database.producers)).await?;
        let bytes = std::fs::metadata(&dump)?.len();
        self.dump = Some(dump);
        Ok(Injected::new("producers' database", format!("goes back to a dump of {bytes} bytes")))
    }

    async fn heal(&mut self, stage: &Stage) -> Result<(), Failure> {
        let Some(dump) = &self.dump else { return Ok(()) };
        let mut swap = Swap::open(&stage.database.producers).await?;
        // If the current database is missing, an earlier attempt has already renamed it.
        if swap.has_present().await? {
            swap.restore(dump).await?;
            if !stage.database.never_analysed {
                swap.analyse().await?;
            }
            let mut present = swap.fence.close().await?;
            let mut backup = session::connect(&swap.backup_url).await?;
            let lost = lost(&mut present, &mut backup).await?;
            Journal::open(&stage.folder.join(WENT_BACK))?.write(&[lost])?;
            session::end(present).await;
            session::end(backup).await;
            // The database is not dropped at once, because a crash in the middle of that would
            // leave a half-dropped database.
            swap.run("ALTER DATABASE {present} RENAME TO {former}").await?;
        }
        swap.run("ALTER DATABASE {backup} RENAME TO {present}").await?;
        self.dump = None;
        swap.run("DROP DATABASE {former} WITH (FORCE)").await?;
        session::end(swap.fence.admin).await;
        Ok(())
    }
}

/// The current database, the database into which a backup is restored, and the name that the
/// current database gets when it is replaced.
struct Swap {
    fence: Fence,
    backup: Identifier,
    former: Identifier,
    backup_url: String,
}

impl Swap {
    async fn open(present: &str) -> Result<Self, Failure> {
        let fence = Fence::around(present).await?;
        let beside_it = |word| Identifier::new(format!("{}_{word}", fence.name.as_str()));
        let (backup, former) = (beside_it("backup")?, beside_it("former")?);
        let backup_url = beside(present, backup.as_str())?;
        Ok(Self { fence, backup, former, backup_url })
    }

    async fn run(&mut self, sql: &'static str) -> Result<(), Failure> {
        let template = Template::new(sql).identifier("present", &self.fence.name);
        let template = template.identifier("backup", &self.backup).identifier("former", &self.former);
        let statement = template.render();
        sqlx::query(&statement).execute(&mut self.fence.admin).await?;
        Ok(())
    }

    async fn has_present(&mut self) -> Result<bool, Failure> {
        let sql = "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)";
        let Fence { admin, name, .. } = &mut self.fence;
        Ok(sqlx::query_scalar(sql).bind(name.as_str()).fetch_one(admin).await?)
    }

    /// Restores the backup beside the database that is still in use.
    async fn restore(&mut self, dump: &Path) -> Result<(), Failure> {
        self.fence.refuse_prepared().await?;
        // Earlier attempts may have left these databases.
        self.run("DROP DATABASE IF EXISTS {backup} WITH (FORCE)").await?;
        self.run("DROP DATABASE IF EXISTS {former} WITH (FORCE)").await?;
        self.run("CREATE DATABASE {backup}").await?;
        let mut command = Command::new("pg_restore");
        command.args(["--exit-on-error", "--dbname"]).arg(&self.backup_url);
        run(command.arg(dump)).await
    }

    /// Analyses the restored backup, as an operator does.
    async fn analyse(&self) -> Result<(), Failure> {
        let mut backup = session::connect(&self.backup_url).await?;
        session::run(&mut backup, "ANALYZE".to_owned()).await?;
        session::end(backup).await;
        Ok(())
    }
}
