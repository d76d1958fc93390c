//! Charges the orders of a RabbitMQ queue at a payment provider.
//!
//! `DATABASE_URL=postgres://… RABBITMQ_URL=amqp://localhost TOPIC=orders PROVIDER=localhost:8090 cargo run -p examples --bin payments_rabbitmq`

use std::sync::Arc;

use brokers::rabbitmq::{Config, Subscriber};
use examples::setting::{Failure, optional, required};

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let config: Config = serde_json::from_value(serde_json::json!({ "url": required("RABBITMQ_URL")? }))?;
    let subscriber = Arc::new(Subscriber::new(&config, [optional("TOPIC", "orders")])?);
    examples::payments::run(move || {
        let subscriber = Arc::clone(&subscriber);
        async move { subscriber.subscribe().await }
    })
    .await
}
