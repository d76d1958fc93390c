//! The path from the order service over a relay and a broker to the billing service.

use inbox::{Admission, ConsumerName, Inbox, InboxOptions, Tenant};
use libtest_mimic::Trial;
use message::{EventType, Message, Topic};
use sqlx::Postgres;
use tests::{Backend, Database, Outcome, Stage, trial};
use tokio::process::Command;

use crate::placed::Placed;
use crate::program;

/// Each broker, its program, and the variable that gives the program the broker's address.
const PROGRAMS: [(Backend, &str, &str); 4] = [
    (Backend::Kafka, "billing_kafka", "KAFKA_BROKERS"),
    (Backend::Rabbitmq, "billing_rabbitmq", "RABBITMQ_URL"),
    (Backend::Sqs, "billing_sqs", "SQS_ENDPOINT"),
    (Backend::SqsFifo, "billing_sqs", "SQS_ENDPOINT"),
];

const INVOICED: [&str; 3] =
    ["order 1: invoice over 12.50 EUR", "order 2: invoice over 9.90 EUR", "2 invoices"];

tests::cases! { "plain_sql/{on}/{case}":
    postgres, if program::psql { bills_once = plain_sql }
    also { PROGRAMS.map(|(backend, name, variable)| of(backend, name, variable)) }
}

/// Returns the trial of a program.
fn of(backend: Backend, program: &'static str, variable: &'static str) -> Trial {
    trial(format!("{program}/postgres/{backend}"), &[Backend::Postgres, backend], move |stage| {
        bills(stage, backend, program, variable)
    })
}

/// Goal: a consumer in another language applies a message once with a plain INSERT, and a Rust
/// consumer then treats that message as applied. Oracle: the text; the guard.
async fn plain_sql(stage: Stage) -> Outcome {
    let database = Database::<Postgres>::migrated(&stage).await?;
    let inbox = Inbox::open(database.consumer.clone(), InboxOptions::default()).await?;
    let payload = r#"{"order": 101, "cents": 1250}"#;
    let message = Message::new(Topic::new("orders")?, EventType::new("order.placed")?, payload);
    let told = [
        (payload, "order 101: billed"),
        (payload, "nothing done: a duplicate"),
        (r#"{"order": 101, "cents": 9}"#, "refused: another message has this id"),
    ];
    for (payload, expected) in told {
        let script = std::path::absolute("../examples/plain-sql/bill_order.sql")?;
        let mut psql = Command::new("psql");
        let (id, content_type) = (message.id.to_string(), message.content_type.as_str());
        for (name, value) in
            [("id", &*id), ("kind", "order.placed"), ("content_type", content_type), ("payload", payload)]
        {
            psql.arg("--set").arg(format!("{name}={value}"));
        }
        psql.args(["--no-psqlrc", "--quiet", "--file"]).arg(script).arg(&database.url);
        assert_eq!(program::lines(psql).await?, [expected]);
    }
    let mut tx = inbox.begin().await?;
    let admission = tx.admit(&ConsumerName::new("billing")?, &Tenant::none(), &message).await?;
    assert!(matches!(admission, Admission::Duplicate(_)), "{admission:?}");
    tx.rollback().await?;
    assert_eq!(database.texts("SELECT order_id || ' ' || cents FROM invoice").await?, ["101 1250"]);
    Ok(())
}

/// Goal: exactly the committed orders are billed, once each; the third order was rolled back.
/// Oracle: the output of the two services; the invoices.
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
