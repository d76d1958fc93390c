//! The shop: takes orders over HTTP and runs a saga for each. It has its own relay for requests to
//! shipping, and a consumer for the replies. `docs/sagas.md` describes the whole with its services.
//!
//! `DATABASE_URL=postgres://… RABBITMQ_URL=amqp://localhost PROVIDER=localhost:8090 cargo run -p examples --bin checkout`

use std::future::IntoFuture as _;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::put;
use axum::{Json, Router};
use examples::broken::Broken;
use examples::checkout::{CHECKOUT, PlaceOrder, Services, TABLES, checkout, queue};
use examples::database::prepared;
use examples::provider::Provider;
use examples::setting::{Failure, optional, required};
use outbox_toolkit::inbox::Backoff;
use outbox_toolkit::migrations::Line;
use outbox_toolkit::prelude::*;
use outbox_toolkit::rabbitmq::{Admin, Config, Subscriber};
use outbox_toolkit::saga::{Run, SagaId, StartError, WorkerOptions};
use serde::Deserialize;
use sqlx::PgPool;
use tokio::net::TcpListener;

#[derive(Clone)]
struct Shop {
    pool: PgPool,
    outbox: Outbox<Postgres>,
    sagas: Sagas<Postgres>,
}

/// The body of an order.
#[derive(Deserialize)]
struct Goods {
    item: String,
    cents: i64,
    grams: i64,
}

/// Places an order, which commits together with its saga. The client chooses the number, and sends
/// the order again when it gets no answer.
async fn place_order(
    State(shop): State<Shop>,
    Path(order): Path<i64>,
    Json(Goods { item, cents, grams }): Json<Goods>,
) -> Result<(StatusCode, String), Broken> {
    if cents <= 0 {
        return Ok((StatusCode::BAD_REQUEST, format!("{cents} cents are not a price\n")));
    }
    let mut tx = shop.outbox.begin(&shop.pool).await?;
    let new = sqlx::query("INSERT INTO orders (id, cents) VALUES ($1, $2) ON CONFLICT DO NOTHING");
    let is_new = new.bind(order).bind(cents).execute(&mut *tx).await?.rows_affected() > 0;
    let input = PlaceOrder { order, item, cents, grams };
    Ok(match shop.sagas.start(&mut tx, CHECKOUT, &order.to_string(), &input).await {
        // A saga is forgotten after a while, an order is not. Here nothing is committed.
        Ok(Started::Started) if !is_new => (StatusCode::OK, format!("order {order}: placed before\n")),
        Ok(Started::Started) => {
            tx.commit().await?;
            shop.sagas.wake();
            (StatusCode::CREATED, format!("order {order}: placed\n"))
        }
        Ok(Started::AlreadyThere(_)) => (StatusCode::OK, format!("order {order}: placed before\n")),
        Err(StartError::KeyReused { .. }) => {
            (StatusCode::CONFLICT, format!("order {order} is another one\n"))
        }
        Err(error) => return Err(error.into()),
    })
}

async fn show_order(State(shop): State<Shop>, Path(order): Path<i64>) -> Result<String, Broken> {
    let row = sqlx::query_as("SELECT state, parcel FROM orders WHERE id = $1");
    let found: Option<(String, Option<i64>)> = row.bind(order).fetch_optional(&shop.pool).await?;
    let saga = shop.sagas.show(&SagaId::new(CHECKOUT, order.to_string())?).await?;
    let reason = saga.and_then(|(saga, _)| saga.outline.reason);
    Ok(match (found, reason) {
        (Some((state, Some(parcel))), _) => format!("order {order}: {state}, parcel {parcel}\n"),
        (Some((state, None)), Some(reason)) => format!("order {order}: {state}, {reason}\n"),
        (Some((state, None)), None) => format!("order {order}: {state}\n"),
        (None, _) => format!("order {order}: unknown\n"),
    })
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    #[cfg(feature = "crash-points")]
    message::crash_points::arm_from_environment()?;
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(tracing_level()?).init();
    let pool = prepared(&[Line::Outbox, Line::Inbox, Line::Saga], TABLES).await?;
    let rabbitmq = Config::new(required("RABBITMQ_URL")?);
    let (ship, replies) = (optional("SHIP", "ship"), optional("SHIPPED", "shipped"));
    // Normally the deployment does this.
    let admin = Admin::connect(&rabbitmq).await?;
    for name in [&ship, &replies] {
        admin.declare_queue(name, queue()).await?;
    }
    admin.close().await;

    // How long other processes wait for a dead process.
    let lease = Duration::from_secs(optional("LEASE_SECONDS", "15").parse()?);
    let mut options = WorkerOptions::default();
    options.lease = lease;
    // An undo must succeed in the end, so it gets many attempts.
    options.attempts_max = 1_000;
    options.backoff = Backoff { first: Duration::from_millis(200), max: Duration::from_secs(10) };
    let services = Services {
        bank: Provider { address: optional("PROVIDER", "127.0.0.1:8090") },
        ship,
        patience: Duration::from_secs(optional("SHIP_WITHIN_SECONDS", "172800").parse()?),
    };
    let outbox = Outbox::<Postgres>::new();
    let sagas = Sagas::builder(pool.clone(), outbox.clone())
        .options(options)
        .saga(CHECKOUT, 1, async move |saga: &mut Run, order: PlaceOrder| {
            checkout(saga, order, &services).await
        })
        .open()
        .await?;
    let relay = Relay::builder(&pool)
        .name("shop")
        .rabbitmq(&rabbitmq)?
        .woken_by(&outbox)
        .settings(move |settings| settings.lease_ttl = lease)
        .build()?;
    let replies = Consumer::builder(Inbox::open(pool.clone(), InboxOptions::default()).await?, "checkout")
        .handler(sagas.replies())
        .subscribe(Subscriber::new(&rabbitmq, [replies])?);

    let listener = TcpListener::bind(optional("LISTEN", "127.0.0.1:8080")).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let app = Router::new().route("/orders/{order}", put(place_order).get(show_order)).with_state(Shop {
        pool,
        outbox,
        sagas: sagas.clone(),
    });
    let serving = axum::serve(listener, app).with_graceful_shutdown(shutdown_signal());
    let (served, replied, (), ()) = tokio::join!(
        serving.into_future(),
        replies.run(shutdown_signal()),
        sagas.run(shutdown_signal()),
        relay.run(shutdown_signal()),
    );
    served?;
    Ok(replied?)
}

fn tracing_level() -> Result<tracing_subscriber::filter::LevelFilter, Failure> {
    Ok(optional("LOG", "warn").parse()?)
}
