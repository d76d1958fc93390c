//! Bills orders from a RabbitMQ queue.
//!
//! `DATABASE_URL=postgres://… RABBITMQ_URL=amqp://localhost TOPIC=orders cargo run -p examples --bin billing_rabbitmq`

use brokers::rabbitmq::{Config, Subscriber};
use examples::setting::{Failure, optional, required};

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let config = Config::new(required("RABBITMQ_URL")?);
    let subscriber = Subscriber::new(&config, [optional("TOPIC", "orders")])?;
    examples::billing::run(subscriber).await
}
