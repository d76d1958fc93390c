//! Charges the orders of a RabbitMQ queue at a payment provider.
//!
//! `DATABASE_URL=postgres://… RABBITMQ_URL=amqp://localhost TOPIC=orders PROVIDER=localhost:8090 cargo run -p examples --bin payments_rabbitmq`

use brokers::rabbitmq::{Config, Subscriber};
use examples::setting::{Failure, optional, required};

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let config = Config::new(required("RABBITMQ_URL")?);
    let subscriber = Subscriber::new(&config, [optional("TOPIC", "orders")])?;
    examples::payments::run(subscriber).await
}
