//! From the order service over a relay and a broker to the billing service.

use libtest_mimic::Trial;
use tests::{Backend, Outcome, Stage, trial};

use crate::placed::Placed;
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
    let orders = Placed::relayed(&stage, backend).await?;

    let (address, group) = (backend.address()?, stage.unique("billing"));
    let settings = [
        ("DATABASE_URL", orders.database.url.as_str()),
        (variable, &address),
        ("TOPIC", &orders.topic),
        ("GROUP", &group),
        ("INVOICES", "2"),
    ];
    let printed = program::example(program, &settings).await?;
    let database = orders.stop().await?;
    assert_eq!(printed, INVOICED);
    let invoices = database.texts("SELECT order_id || ' ' || cents FROM invoice ORDER BY order_id").await?;
    assert_eq!(invoices, ["1 1250", "2 990"]);
    Ok(())
}
