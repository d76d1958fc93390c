//! The path from the order service over a relay and a broker to the billing service.

use inbox::{Admission, ConsumerName, Inbox, InboxOptions, Tenant};
use libtest_mimic::Trial;
use message::{EventType, Message, MessageId, Topic};
use migrations::{Line, Migrator};
use sqlx::{Connection as _, PgConnection, Postgres};
use tests::{Backend, Cluster, Database, Failure, Outcome, Stage, trial};
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
    postgres + xtask, if program::psql { what_is_billed_survives_a_crash = crashed }
    also { PROGRAMS.map(|(backend, name, variable)| of(backend, name, variable)) }
}

/// Returns the trial of a program.
fn of(backend: Backend, program: &'static str, variable: &'static str) -> Trial {
    trial(format!("{program}/postgres/{backend}"), &[Backend::Postgres, backend], move |stage| {
        bills(stage, backend, program, variable)
    })
}

/// Runs the consumer with a message of `orders`. Returns what it prints.
async fn billed(url: &str, id: &str, payload: &str) -> Result<Vec<String>, Failure> {
    let script = std::path::absolute("../examples/plain-sql/bill_order.sql")?;
    let mut psql = Command::new("psql");
    for (name, value) in [
        ("id", id),
        ("kind", "order.placed"),
        ("content_type", "application/octet-stream"),
        ("payload", payload),
    ] {
        psql.arg("--set").arg(format!("{name}={value}"));
    }
    psql.args(["--no-psqlrc", "--quiet", "--file"]).arg(script).arg(url);
    program::lines(psql).await
}

/// Goal: a message that the consumer acknowledges is not undone by a crash, on a server whose
/// commits do not wait for the disk. Oracle: the rows after a crash, and a row that does not wait.
async fn crashed(stage: Stage) -> Outcome {
    let server = Cluster::start(&stage, &[]).await?;
    for setting in ["synchronous_commit = off", "wal_writer_delay = '10s'"] {
        server.execute(&format!("ALTER SYSTEM SET {setting}")).await?;
    }
    server.execute("SELECT pg_reload_conf()").await?;
    let mut connection = PgConnection::connect(&server.url()).await?;
    Migrator::<Postgres>::new(Line::Inbox).up(&mut connection).await?;
    connection.close().await?;
    server.execute("SELECT inbox_maintain((now() AT TIME ZONE 'UTC')::date)").await?;
    server.execute("CREATE TABLE invoice (order_id bigint NOT NULL, cents bigint NOT NULL)").await?;
    server.execute("CREATE TABLE unprotected (id text); CHECKPOINT").await?;
    let id = MessageId::new().to_string();
    assert_eq!(billed(&server.url(), &id, r#"{"order": 101, "cents": 1250}"#).await?, ["order 101: billed"]);
    server.execute("INSERT INTO unprotected VALUES ('plain')").await?;
    server.crash().await?;
    server.resume().await?;
    for (table, rows) in [("inbox_message", "1"), ("invoice", "1"), ("unprotected", "0")] {
        assert_eq!(server.text(&format!("SELECT count(*)::text FROM {table}")).await?, rows, "{table}");
    }
    Ok(())
}

/// Goal: a consumer in another language applies a message once with SQL alone, and a Rust consumer
/// then treats that message as applied. Oracle: the text; the guard.
async fn plain_sql(stage: Stage) -> Outcome {
    let database = Database::<Postgres>::migrated(&stage).await?;
    let inbox = Inbox::open(database.consumer.clone(), InboxOptions::default()).await?;
    let payload = r#"{"order": 101, "cents": 1250}"#;
    let message = Message::new(Topic::new("orders")?, EventType::new("order.placed")?, payload);
    let told = [
        (payload, "order 101: billed"),
        (payload, "nothing done: a duplicate"),
        (r#"{"order": 101, "cents": 9}"#, "refused: key_reused"),
    ];
    for (payload, expected) in told {
        assert_eq!(billed(&database.url, &message.id.to_string(), payload).await?, [expected]);
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
