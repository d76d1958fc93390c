//! Producers: their output, and the contents of the database afterwards.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use brokers::memory::Broker;
use engine::{EngineOptions, Pipeline};
use message::{MaxInFlightPerKey, Message, Source, Topic};
use outbox_log::{LogOptions, RelayName};
use sqlx::Postgres;
use tests::{Database, Failure, Outcome, Stage, eventually};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use crate::client::send;
use crate::program::{self, Running};

tests::cases! { "{case}/{on}":
    postgres { order_service }
    postgres, if program::psql { plain_sql }
    sqlite { embedded_relay, embedded_page }
}

/// The output of the order service in an empty database.
pub(crate) const PLACED: [&str; 4] = [
    "order 1: placed, message enqueued",
    "order 2: placed, message enqueued",
    "order 3: over the customer's limit, nothing enqueued",
    "2 orders, 2 messages",
];

/// Goal: an order and its message commit together, or neither does. Oracle: the text, and the rows.
async fn order_service(stage: Stage) -> Outcome {
    let database = Database::<Postgres>::empty(&stage).await?;
    let printed =
        program::example("order_service", &[("DATABASE_URL", &database.url), ("TOPIC", "orders")]).await?;
    assert_eq!(printed, PLACED);
    let orders = database.texts("SELECT id::text FROM orders ORDER BY id").await?;
    assert_eq!(orders, ["1", "2"]);
    let messages = database.texts(
        "SELECT topic || ' ' || key || ' ' || convert_from(payload, 'UTF8') FROM outbox_message ORDER BY id",
    );
    assert_eq!(
        messages.await?,
        [r#"orders order-1 {"order":1,"cents":1250}"#, r#"orders order-2 {"order":2,"cents":990}"#]
    );
    Ok(())
}

/// Goal: producer, relay and broker work in one process. Oracle: the text.
async fn embedded_relay() -> Outcome {
    let printed = program::example("embedded_relay", &[]).await?;
    let expected = [
        "order 1: placed",
        "order 2: placed",
        "order 3: placed",
        "published: order.placed of order 1, 1000 cents",
        "published: order.placed of order 2, 2000 cents",
        "published: order.placed of order 3, 3000 cents",
    ];
    assert_eq!(printed, expected);
    Ok(())
}

/// Goal: a service serves the page behind its own login, and ends while the page is followed.
/// Oracle: the answers, and the exit code.
async fn embedded_page(stage: Stage) -> Outcome {
    let service = Running::serve(&stage, "embedded_page", &[]).await?;
    let get = |path: &str, proof: &str| {
        let request = Request::get(path).header("host", &service.address).header("authorization", proof);
        request.body(Body::empty())
    };
    let ask = async |path: &str, proof: &str| send(&service.address, get(path, proof)?).await;
    assert_eq!(ask("/", "").await?.status, StatusCode::OK);
    assert_eq!(ask("/ops/outbox", "Basic bm9ib2R5Og==").await?.status, StatusCode::UNAUTHORIZED);
    const EVE: &str = "Basic ZXZlOmV2ZQ==";
    eventually("the refused message is shown", || async {
        let dead = ask("/ops/outbox/dead", EVE).await?;
        assert_eq!(dead.status, StatusCode::OK);
        let text = String::from_utf8_lossy(&dead.body).into_owned();
        assert!(text.contains("href=\"/ops/outbox/audit\"") && text.contains("eve"), "{text}");
        Ok(text.contains("order-1").then_some(()))
    })
    .await?;
    eventually("its consumer is shown", || async {
        let consumers = ask("/ops/outbox/consumers", EVE).await?;
        let text = String::from_utf8_lossy(&consumers.body).into_owned();
        Ok((text.contains("In this process") && text.contains(">reads<")).then_some(()))
    })
    .await?;
    let mut followed = TcpStream::connect(&service.address).await?;
    let request = format!(
        "GET /ops/outbox/events HTTP/1.1\r\nHost: {}\r\nAuthorization: {EVE}\r\n\r\n",
        service.address
    );
    followed.write_all(request.as_bytes()).await?;
    let mut head = [0; 12];
    followed.read_exact(&mut head).await?;
    assert_eq!(&head, b"HTTP/1.1 200");
    assert!(service.terminate().await?.success());
    Ok(())
}

/// Goal: a producer in another language enqueues in its own transaction, with the function and with
/// a plain INSERT. Oracle: the text, and the messages that a relay publishes.
async fn plain_sql(stage: Stage) -> Outcome {
    let database = Database::<Postgres>::migrated(&stage).await?;
    let script = std::path::absolute("../examples/plain-sql/place_order.sql")?;
    let mut psql = Command::new("psql");
    psql.args(["--no-psqlrc", "--quiet", "--set", "topic=orders", "--file"]).arg(script).arg(&database.url);
    let printed = program::lines(psql).await?;
    assert_eq!(printed, ["order 101: message of version 7", "order 103: taken back", "2 orders"]);

    let published = publish(&database.url, 2).await?;
    let told: Vec<String> = published.iter().map(told).collect::<Result<_, _>>()?;
    let expected = [
        "order-101 order.placed tenant=acme order=101 cents=1250",
        "order-102 order.placed tenant= order=102 cents=990",
    ];
    assert_eq!(told, expected);
    Ok(())
}

fn told(message: &Message) -> Result<String, Failure> {
    let key = message.key.as_ref().ok_or("no key")?;
    let tenant = message.headers.get("tenant").unwrap_or_default();
    // The payload is parsed instead of compared as text, because `jsonb` reorders the members of an
    // object.
    let order: serde_json::Value = serde_json::from_slice(&message.payload)?;
    Ok(format!("{key} {} tenant={tenant} order={} cents={}", message.kind, order["order"], order["cents"]))
}

/// Runs a relay from this database to an in-memory broker until it has `count` messages.
async fn publish(url: &str, count: usize) -> Result<Vec<Message>, Failure> {
    let broker = Broker::new();
    let store = outbox_log::open(url, Source::new("/orders")?, LogOptions::default())?;
    let connector = Arc::new(broker.connector(MaxInFlightPerKey::Pipelined));
    let stop = CancellationToken::new();
    let pipeline = Pipeline::new(RelayName::new("orders")?, store, connector, EngineOptions::default());
    let relay = tokio::spawn(pipeline.run(stop.clone()));
    let topic = Topic::new("orders")?;
    broker.stored(&topic, count).await;
    stop.cancel();
    relay.await?;
    Ok(broker.log(&topic))
}
