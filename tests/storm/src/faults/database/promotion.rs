//! A lagging standby replaces the primary. Everything that the standby had not received is undone:
//! rows, cursor, lease. Some of it is already at the broker.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use async_trait::async_trait;
use rand::rngs::StdRng;
use sqlx::postgres::PgConnection;
use sqlx::{Decode, Postgres, Type};
use tokio::process::Command;
use tokio::time::sleep;
use url::Url;

use super::fence::{Fence, beside, lost};
use super::program::run;
use super::session;
use crate::Failure;
use crate::faults::{Fault, FaultKind, Injected, millis, seconds};
use crate::journal::{Journal, WENT_BACK};
use crate::stage::{Peer, Role, Service, Stage, Wire};

/// A fault that starts a physical replica of the server, stops its replication, and finally
/// promotes it (`pg_promote`). From then on producers, relays and the storm itself reach the
/// producers' database on the replica. Consumers and their database stay on the old server. This
/// happens once in a storm, because the new primary has no standby.
#[derive(Debug, Default)]
pub struct Promotion {
    standby: Option<Standby>,
    promoted: bool,
}

#[derive(Debug)]
struct Standby {
    address: String,
    /// The URL of the producers' database on the standby.
    url: String,
}

/// A query for whether the standby still receives, or has yet to apply received records.
const FOLLOWS: &str = "SELECT EXISTS (SELECT FROM pg_stat_wal_receiver) \
     OR coalesce(pg_last_wal_replay_lsn() < pg_last_wal_receive_lsn(), false)";
const LOOK: Duration = millis(100);
const PRODUCERS: Wire = Wire { role: Role::Producer, peer: Peer::Database };
const RELAYS: Wire = Wire { role: Role::Relay, peer: Peer::Database };

#[async_trait]
impl Fault<Stage> for Promotion {
    fn kind(&self) -> FaultKind {
        FaultKind::new("promotion").by_default(false).lasts(seconds(2)..=seconds(20))
    }

    async fn inject(&mut self, stage: &Stage, _rng: &mut StdRng) -> Result<Injected, Failure> {
        if self.promoted {
            return Err("the standby is the primary already".into());
        }
        let standby = Standby::start(stage).await?;
        standby.follow_nobody().await?;
        let address = standby.address.clone();
        self.standby = Some(standby);
        Ok(Injected::new("producers' database", format!("goes back to a standby at {address}")))
    }

    async fn heal(&mut self, stage: &Stage) -> Result<(), Failure> {
        let Some(standby) = self.standby.as_ref().filter(|_| !self.promoted) else { return Ok(()) };
        let way = |wire| stage.wires.proxies.get(wire).ok_or_else(|| format!("there is no wire {wire}"));
        let own = stage.wires.own.as_ref().ok_or("the storm has no way of its own")?;
        let ways = [own, way(&PRODUCERS)?, way(&RELAYS)?];
        let primary = ways[0].upstream();
        // A fault that redirects one of these proxies would later restore its route to the old
        // primary.
        if ways.iter().any(|way| way.upstream() != primary) {
            return Err("a proxy does not lead to the primary".into());
        }
        let mut fence = Fence::around(&stage.database.producers).await?;
        let mut present = fence.close().await?;
        let mut other = session::connect(&standby.url).await?;
        while ask::<bool>(&mut other, "SELECT pg_is_in_recovery()").await? {
            session::run(&mut other, "SELECT pg_promote(false)".to_owned()).await?;
            sleep(LOOK).await;
        }
        let lost = lost(&mut present, &mut other).await?;
        Journal::open(&stage.folder.join(WENT_BACK))?.write(&[lost])?;
        for way in ways {
            way.redirect(standby.address.as_str());
            way.cut();
        }
        self.promoted = true;
        for session in [present, other, fence.admin] {
            session::end(session).await;
        }
        Ok(())
    }
}

impl Standby {
    /// Starts a standby on a copy of the primary's files.
    async fn start(stage: &Stage) -> Result<Self, Failure> {
        let primary = &stage.database.producers;
        let mut session = session::connect(primary).await?;
        let model: String = ask(&mut session, "SELECT current_setting('data_directory')").await?;
        session::end(session).await;
        // The folder must be reachable for the server's user, who may differ from the storm's.
        let folder = std::env::temp_dir().join(format!("storm-standby-{:08x}", rand::random::<u32>()));
        let data = folder.join("postgres/data");
        std::fs::create_dir_all(folder.join("postgres"))?;
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755))?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        // The server is registered from now on, so that it is removed with the storm in any case.
        let services = stage.services.another_postgres(&folder, port);
        let mut backup = Command::new("pg_basebackup");
        backup.args(["--checkpoint=fast", "--wal-method=stream", "--no-sync", "--write-recovery-conf"]);
        run(backup.arg("--dbname").arg(beside(primary, "postgres")?).arg("--pgdata").arg(&data)).await?;
        let reference = format!("--reference={model}");
        run(Command::new("chown").args(["--recursive", &reference]).arg(&data)).await?;
        services.start(Service::Postgres).await?;
        let mut url = Url::parse(primary)?;
        url.set_port(Some(port)).map_err(|()| "a URL that cannot have a port")?;
        Ok(Self { address: format!("127.0.0.1:{port}"), url: url.to_string() })
    }

    /// Stops the replication. From here on the standby lags.
    async fn follow_nobody(&self) -> Result<(), Failure> {
        let mut session = session::connect(&self.url).await?;
        session::run(&mut session, "ALTER SYSTEM SET primary_conninfo = ''".to_owned()).await?;
        session::run(&mut session, "SELECT pg_reload_conf()".to_owned()).await?;
        while ask::<bool>(&mut session, FOLLOWS).await? {
            sleep(LOOK).await;
        }
        let prepared: i64 = ask(&mut session, "SELECT count(*) FROM pg_prepared_xacts").await?;
        session::end(session).await;
        if prepared > 0 {
            return Err("the standby has a prepared transaction, which would stay undecided there".into());
        }
        Ok(())
    }
}

/// Returns a single value.
async fn ask<T>(session: &mut PgConnection, sql: &'static str) -> Result<T, Failure>
where
    T: Send + Unpin + Type<Postgres> + for<'r> Decode<'r, Postgres>,
{
    Ok(sqlx::query_scalar(sql).fetch_one(session).await?)
}
