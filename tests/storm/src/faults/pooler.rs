//! A pooler between relays and the database (`PgBouncer`, pool mode `session`). Clients take over
//! sessions of others. The pooler outlives the sessions of the server, and can end by itself.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rand::Rng as _;
use rand::rngs::StdRng;
use tokio::task::JoinSet;
use url::Url;

use super::{Fault, FaultKind, Injected, millis, seconds};
use crate::Failure;
use crate::stage::{Peer, Role, Service, Services, Stage, Wire};

/// Variable with the URL at which the pooler listens once it is started.
pub const ADDRESS: &str = "OUTBOX_PGBOUNCER_URL";

/// A fault that redirects relays through a pooler for a while. One kind of it keeps the pooler up,
/// the other restarts the pooler again and again.
#[derive(Debug)]
pub struct Pooler {
    address: String,
    restarts: bool,
    /// The previous upstream of the wire.
    before: Option<Arc<str>>,
    restarting: JoinSet<()>,
}

const RELAYS: Wire = Wire { role: Role::Relay, peer: Peer::Database };

impl Pooler {
    /// Creates one fault of each kind, at the address that the environment names.
    ///
    /// # Errors
    /// The environment names no usable address. The text names the remedy.
    pub fn from_environment() -> Result<Vec<Self>, String> {
        let url = std::env::var(ADDRESS)
            .map_err(|_| format!("{ADDRESS} is not set: run this through `cargo xtask storm`"))?;
        let url = Url::parse(&url).map_err(|error| format!("{ADDRESS}={url}: {error}"))?;
        let (host, port) =
            url.host_str().zip(url.port()).ok_or_else(|| format!("{ADDRESS} names no host and port"))?;
        let address = format!("{host}:{port}");
        let new =
            |restarts| Self { address: address.clone(), restarts, before: None, restarting: JoinSet::new() };
        Ok(vec![new(false), new(true)])
    }
}

#[async_trait]
impl Fault<Stage> for Pooler {
    fn kind(&self) -> FaultKind {
        let name = if self.restarts { "pooler-restarts" } else { "pooler" };
        FaultKind::new(name).by_default(!self.restarts).lasts(seconds(5)..=seconds(30))
    }

    async fn inject(&mut self, stage: &Stage, rng: &mut StdRng) -> Result<Injected, Failure> {
        let proxy = stage.wires.proxies.get(&RELAYS).ok_or("relays have no wire to the database")?;
        stage.services.start(Service::Pgbouncer).await?;
        // The other kind of this fault may already be active.
        let before = proxy.upstream();
        if *before == *self.address {
            return Err("relays go through the pooler already".into());
        }
        self.before = Some(before);
        proxy.redirect(&self.address);
        proxy.cut();
        if self.restarts {
            let pause = rng.random_range(millis(1_000)..=millis(5_000));
            self.restarting.spawn(restart(stage.services.clone(), pause, rng.random()));
        }
        Ok(Injected::new(RELAYS.to_string(), if self.restarts { "started again and again" } else { "" }))
    }

    async fn heal(&mut self, stage: &Stage) -> Result<(), Failure> {
        self.restarting.shutdown().await;
        let Some(before) = &self.before else { return Ok(()) };
        if let Some(proxy) = stage.wires.proxies.get(&RELAYS) {
            proxy.redirect(before.to_string());
            proxy.cut();
        }
        self.before = None;
        Ok(())
    }
}

/// Restarts the pooler again and again, until this is aborted.
async fn restart(services: Services, pause: Duration, immediately: bool) {
    loop {
        tokio::time::sleep(pause).await;
        // If the pooler does not start, the next `inject` fails, and the report shows this.
        let _ = services.stop(Service::Pgbouncer, immediately).await;
        let _ = services.start(Service::Pgbouncer).await;
    }
}
