//! A gRPC service whose clients may repeat their calls. An order, its message, its idempotency key
//! and the outcome of the call commit together.
//!
//! `DATABASE_URL=postgres://… LISTEN=127.0.0.1:8080 cargo run -p examples --bin orders_grpc`, then
//!
//! ```console
//! $ grpcurl -plaintext -import-path examples/proto -proto orders.proto -d '{"cents": 1250}' \
//!     -H 'authorization: Bearer tenant-1' -H 'idempotency-key: 8e03978e' 127.0.0.1:8080 shop.Orders/Place
//! ```

use axum::{Router, middleware};
use examples::database::prepared;
use examples::grpc::once::{Call, Once, end};
use examples::grpc::orders_server::{Orders, OrdersServer};
use examples::grpc::{PlaceOrder, Placed, received};
use examples::order::OrderPlaced;
use examples::setting::{Failure, optional};
use idempotency::{ClaimOptions, IdempotencyKeys, KeyOptions, Tenant};
use migrations::Line;
use outbox::{Outbox, OutboxTransaction};
use sqlx::Postgres;
use tokio::net::TcpListener;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

const TABLE: &str = "CREATE TABLE IF NOT EXISTS orders (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, cents bigint NOT NULL)";

struct Shop {
    once: Once,
}

#[tonic::async_trait]
impl Orders for Shop {
    async fn place(&self, request: Request<PlaceOrder>) -> Result<Response<Placed>, Status> {
        let mut tx = match self.once.begin("shop.Orders/Place", &request).await? {
            Call::New(tx) => tx,
            Call::Repeated(outcome) => return outcome,
        };
        let outcome = place(&mut tx, request.into_inner()).await;
        end(tx, outcome).await
    }
}

/// Places an order. Everything written through `tx` commits together with the key and the outcome.
async fn place(tx: &mut OutboxTransaction<Postgres>, order: PlaceOrder) -> Result<Placed, Status> {
    let cents = order.cents;
    let insert = "INSERT INTO orders (cents) VALUES ($1) RETURNING id";
    let order: i64 = sqlx::query_scalar(insert).bind(cents).fetch_one(&mut **tx).await.map_err(internal)?;
    tx.enqueue(&OrderPlaced { order, cents }).await.map_err(internal)?;
    if cents > 100_000 {
        // Stored as well: the same call gets the same refusal. What it wrote is rolled back.
        return Err(Status::failed_precondition("over the customer's limit"));
    }
    Ok(Placed { order, cents })
}

/// Not stored: the next attempt runs the call again.
fn internal(error: impl Into<Failure>) -> Status {
    eprintln!("error: {:#}", error.into());
    Status::internal("the order was not placed")
}

/// Returns the tenant of a call. A real service takes it from the request's extensions, where
/// authentication puts it.
fn tenant(metadata: &MetadataMap) -> Option<Tenant> {
    let token = metadata.get("authorization")?.to_str().ok()?.strip_prefix("Bearer ")?;
    Tenant::new(token).ok()
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    #[cfg(feature = "crash-points")]
    message::crash_points::arm_from_environment()?;
    let pool = prepared(&[Line::Outbox, Line::Idempotency], TABLE).await?;
    let keys = IdempotencyKeys::open(pool, KeyOptions::default()).await?.with_outbox(Outbox::new());
    let shop = Shop { once: Once::new(keys, ClaimOptions::default(), tenant) };
    // Any server for tower services will do: this one of axum, or `tonic::transport::Server`.
    let app = Router::new().route_service("/shop.Orders/{*method}", OrdersServer::new(shop));
    let app = app.layer(middleware::from_fn(received::keep));
    let listener = TcpListener::bind(optional("LISTEN", "127.0.0.1:8080")).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}
