//! From the order service over a relay and a broker to the billing service.

use libtest_mimic::Trial;
use message::Source;
use outbox::log::{LogOptions, RelayName};
use relay::engine::{Pipeline, Settings};
use sqlx::Postgres;
use tests::{Backend, Database, Outcome, Stage, brokers, trial};
use tokio_util::sync::CancellationToken;

use crate::producing::PLACED;
use crate::program;

/// Each broker, its program, and the variable that tells the program where the broker is.
const PROGRAMS: [(Backend, &str, &str); 4] = [
    (Backend::Kafka, "billing_kafka", "KAFKA_BROKERS"),
    (Backend::Rabbitmq, "billing_rabbitmq", "RABBITMQ_URL"),
    (Backend::Sqs, "billing_sqs", "SQS_ENDPOINT"),
    (Backend::SqsFifo, "billing_sqs", "SQS_ENDPOINT"),
];

const INVOICED: [&str; 3] =
    ["order 1: invoice over 12.50 EUR", "order 2: invoice over 9.90 EUR", "2 invoices"];

pub(crate) fn trials() -> Vec<Trial> {
    let on = |(backend, program, variable): (Backend, &'static str, &'static str)| {
        trial(format!("{program}/postgres/{backend}"), &[Backend::Postgres, backend], move |stage| {
            bills(stage, backend, program, variable)
        })
    };
    PROGRAMS.map(on).into()
}

/// Goal: every committed order is billed once, and no other one: the third was taken back.
/// Oracle: what the two services print; the invoices.
async fn bills(stage: Stage, backend: Backend, program: &'static str, variable: &'static str) -> Outcome {
    let broker = brokers::open(backend).await?;
    let topic = broker.topic_name(&stage, "orders");
    broker.create_topic(&stage, &topic).await?;
    let database = Database::<Postgres>::empty(&stage).await?;
    let printed =
        program::example("order_service", &[("DATABASE_URL", &database.url), ("TOPIC", &topic)]).await?;
    assert_eq!(printed, PLACED);

    let store = outbox::log::open(&database.url, Source::new("/orders")?, LogOptions::default())?;
    let pipeline = Pipeline::new(RelayName::new("orders")?, store, broker.connector()?, Settings::default());
    let stop = CancellationToken::new();
    let relay = tokio::spawn(pipeline.run(stop.clone()));

    let (address, group) = (backend.address()?, stage.unique("billing"));
    let settings = [
        ("DATABASE_URL", database.url.as_str()),
        (variable, &address),
        ("TOPIC", &topic),
        ("GROUP", &group),
        ("INVOICES", "2"),
    ];
    let printed = program::example(program, &settings).await?;
    stop.cancel();
    relay.await?;
    assert_eq!(printed, INVOICED);
    let invoices = database.texts("SELECT order_id || ' ' || cents FROM invoice ORDER BY order_id").await?;
    assert_eq!(invoices, ["1 1250", "2 990"]);
    Ok(())
}
