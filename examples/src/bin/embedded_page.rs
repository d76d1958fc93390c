//! A web service with a relay and a consumer inside it, and the page for operators behind the
//! service's own login: SQLite, and a broker in memory that refuses the first message.
//!
//! `LISTEN=127.0.0.1:8080 cargo run -p examples --bin embedded_page`, then open
//! `http://127.0.0.1:8080/ops/outbox`: `ann` with the password `ann` may decide, `eve` with `eve`
//! may look.

use axum::Router;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use examples::order::OrderPlaced;
use examples::setting::{Failure, optional};
use outbox_toolkit::memory::Broker;
use outbox_toolkit::message::{Fault, FaultScope, MaxInFlightPerKey, SizeLimit};
use outbox_toolkit::outbox_log::LogOptions;
use outbox_toolkit::prelude::*;
use outbox_toolkit::{Operator, OperatorRole, PageOptions};
use tokio::net::TcpListener;

/// The user, whom the login leaves in the extensions of a request.
#[derive(Clone)]
struct User {
    name: &'static str,
    is_admin: bool,
}

/// Stands in for the login of the service, which knows its users from sessions or a directory.
async fn login(mut request: Request, next: Next) -> Response {
    let proof = request.headers().get(header::AUTHORIZATION).and_then(|proof| proof.to_str().ok());
    let user = match proof {
        Some("Basic YW5uOmFubg==") => User { name: "ann", is_admin: true },
        Some("Basic ZXZlOmV2ZQ==") => User { name: "eve", is_admin: false },
        _ => {
            let ask = [(header::WWW_AUTHENTICATE, "Basic realm=\"shop\"")];
            return (StatusCode::UNAUTHORIZED, ask).into_response();
        }
    };
    request.extensions_mut().insert(user);
    next.run(request).await
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let folder = std::env::temp_dir().join(format!("embedded-page-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let url = format!("sqlite://{}?mode=rwc", folder.join("orders.db").display());
    let pool = outbox_toolkit::pool::<Sqlite>(&url).await?;
    migrate(&pool).await?;

    let outbox = Outbox::<Sqlite>::new();
    let broker = Broker::new();
    broker.faults().refuse_next(1, Fault::Message, FaultScope::Message);
    let relay = Relay::builder(&pool)
        .name("orders")
        .connector(broker.connector(MaxInFlightPerKey::Pipelined), SizeLimit::PORTABLE)
        .settings(|settings| settings.attempts_max = 1)
        .woken_by(&outbox)
        .build()?;

    let consumer = Consumer::builder(Inbox::open(pool.clone(), InboxOptions::default()).await?, "billing")
        .on(async |_: &mut Tx<Sqlite>, placed: OrderPlaced| {
            println!("billing order {}", placed.order);
            Ok::<_, HandlerError>(())
        })
        .subscribe(broker.subscriber("billing", [Topic::new(OrderPlaced::TOPIC)?]))
        .build()?;

    let options = PageOptions::new("/ops/outbox", |request| {
        let user = request.extensions.get::<User>()?;
        let role = if user.is_admin { OperatorRole::Operator } else { OperatorRole::Viewer };
        Some(Operator::new(user.name, role))
    });
    let options = options.inbox("billing", &pool, LogOptions::default()).consumer(consumer.status());
    let page = relay.page(options)?;
    let app = Router::new()
        .nest_service(page.prefix(), page.clone())
        .layer(from_fn(login))
        .route("/", get(async || "orders\n"));

    let mut tx = outbox.begin(&pool).await?;
    tx.enqueue(&OrderPlaced { order: 1, cents: 1_000 }).await?;
    tx.commit().await?;

    let listener = TcpListener::bind(optional("LISTEN", "127.0.0.1:8080")).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let relay = tokio::spawn(relay.run(shutdown_signal()));
    let consumer = tokio::spawn(consumer.run(shutdown_signal()));
    axum::serve(listener, app).with_graceful_shutdown(shutdown_signal()).await?;
    relay.await?;
    consumer.await??;

    pool.close().await;
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}
