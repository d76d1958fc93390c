//! Bills orders from a RabbitMQ queue.
//!
//! `DATABASE_URL=postgres://… RABBITMQ_URL=amqp://localhost TOPIC=orders cargo run -p examples --bin billing_rabbitmq`

use std::sync::Arc;

use brokers::rabbitmq::{Config, Subscriber};
use examples::setting::{Failure, optional, required};

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let config: Config = serde_json::from_value(serde_json::json!({ "url": required("RABBITMQ_URL")? }))?;
    let subscriber = Arc::new(Subscriber::new(&config, [optional("TOPIC", "orders")])?);
    examples::billing::run(move || {
        let subscriber = Arc::clone(&subscriber);
        async move { subscriber.subscribe().await }
    })
    .await
}
