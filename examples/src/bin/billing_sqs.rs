//! Bills orders from an SQS queue.
//!
//! `DATABASE_URL=postgres://… SQS_ENDPOINT=http://localhost:9324 TOPIC=orders cargo run -p examples --bin billing_sqs`

use brokers::sqs::{Config, Subscriber};
use examples::setting::{Failure, optional, required};

#[tokio::main]
async fn main() -> Result<(), Failure> {
    // For AWS, omit endpoint and keys: region and credentials come from the environment.
    let config: Config = serde_json::from_value(serde_json::json!({
        "endpoint_url": required("SQS_ENDPOINT")?,
        "region": optional("AWS_REGION", "elasticmq"),
        "access_key_id": optional("AWS_ACCESS_KEY_ID", "none"),
        "secret_access_key": optional("AWS_SECRET_ACCESS_KEY", "none"),
    }))?;
    let subscriber = Subscriber::new(&config, optional("TOPIC", "orders"))?;
    examples::billing::run(subscriber).await
}
