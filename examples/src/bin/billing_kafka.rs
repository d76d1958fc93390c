//! Bills orders from Kafka.
//!
//! `DATABASE_URL=postgres://… KAFKA_BROKERS=localhost:9092 TOPIC=orders cargo run -p examples --bin billing_kafka`

use std::sync::Arc;

use brokers::kafka::{Config, GroupConfig, Subscriber};
use examples::setting::{Failure, optional, required};

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let servers: Vec<String> = required("KAFKA_BROKERS")?.split(',').map(str::to_owned).collect();
    let config: Config = serde_json::from_value(serde_json::json!({ "bootstrap_servers": servers }))?;
    let group: GroupConfig = serde_json::from_value(serde_json::json!({
        "group": optional("GROUP", "billing"), "topics": [optional("TOPIC", "orders")],
    }))?;
    let subscriber = Arc::new(Subscriber::new(config, group)?);
    examples::billing::run(move || {
        let subscriber = Arc::clone(&subscriber);
        async move { subscriber.subscribe().await }
    })
    .await
}
