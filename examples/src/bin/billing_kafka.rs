//! Bills orders from Kafka.
//!
//! `DATABASE_URL=postgres://… KAFKA_BROKERS=localhost:9092 TOPIC=orders cargo run -p examples --bin billing_kafka`

use brokers::kafka::{Config, GroupConfig, Subscriber};
use examples::setting::{Failure, optional, required};

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let servers: Vec<String> = required("KAFKA_BROKERS")?.split(',').map(str::to_owned).collect();
    let group = GroupConfig::new(optional("GROUP", "billing"), [optional("TOPIC", "orders")]);
    let subscriber = Subscriber::new(Config::new(servers), group)?;
    examples::billing::run(subscriber).await
}
