//! Orders that the order service placed, and a relay that publishes them.

use engine::{EngineOptions, Pipeline};
use message::Source;
use outbox_log::{LogOptions, RelayName};
use sqlx::Postgres;
use tests::{Backend, Database, Failure, Stage, brokers};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::producing::PLACED;
use crate::program;

/// Everything that a consumer of the orders needs.
pub(crate) struct Placed {
    pub(crate) database: Database<Postgres>,
    pub(crate) topic: String,
    relay: JoinHandle<()>,
    stop: CancellationToken,
}

impl Placed {
    /// Runs the order service, and starts to relay its messages.
    pub(crate) async fn relayed(stage: &Stage, backend: Backend) -> Result<Self, Failure> {
        let broker = brokers::open(stage, backend).await?;
        let topic = broker.topic_name("orders");
        broker.create_topic(&topic).await?;
        let database = Database::<Postgres>::empty(stage).await?;
        let printed =
            program::example("order_service", &[("DATABASE_URL", &database.url), ("TOPIC", &topic)]).await?;
        assert_eq!(printed, PLACED);

        let store = outbox_log::open(&database.url, Source::new("/orders")?, LogOptions::default())?;
        let name = RelayName::new("orders")?;
        let pipeline = Pipeline::new(name, store, broker.connector()?, EngineOptions::default());
        let stop = CancellationToken::new();
        let relay = tokio::spawn(pipeline.run(stop.clone()));
        Ok(Self { database, topic, relay, stop })
    }

    /// Stops the relay. Published messages stay.
    pub(crate) async fn stop(self) -> Result<Database<Postgres>, Failure> {
        self.stop.cancel();
        self.relay.await?;
        Ok(self.database)
    }
}
