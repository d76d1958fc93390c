//! A gRPC service whose calls are repeated: a real process, PostgreSQL, and a client of tonic.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt as _;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::future::join_all;
use hyper::body::Incoming;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::http::uri::PathAndQuery;
use hyper_util::rt::{TokioExecutor, TokioIo};
use idempotency::crash_points::{AFTER_CLAIM, AFTER_COMPLETE, AFTER_OUTCOME};
use sqlx::{Connection as _, PgConnection, Postgres};
use tests::eventually::when;
use tests::{Database, Failure, Outcome, Stage, eventually};
use tokio::net::TcpStream;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;
use tower_service::Service;

use crate::program::Running;

/// The limit above which the service refuses an order.
const LIMIT_CENTS: i64 = 100_000;

tests::cases! { "orders_grpc/postgres/{case}":
    postgres {
        a_kill_at_any_point_has_no_second_effect = killed,
        a_repeated_call_gets_the_stored_outcome = sent_again,
        of_fifty_calls_at_once_one_runs = at_once,
        a_refusal_is_stored_and_a_failure_is_not = failed,
        a_call_that_is_cancelled_leaves_nothing = cancelled,
        what_has_no_key_or_another_request_is_refused = refused,
    }
}

// The messages of examples/proto/orders.proto, with a field that the service does not know.

#[derive(Clone, PartialEq, Eq, prost::Message)]
struct PlaceOrder {
    #[prost(int64, tag = "1")]
    cents: i64,
    #[prost(string, tag = "15")]
    note: String,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
struct Placed {
    #[prost(int64, tag = "1")]
    order: i64,
    #[prost(int64, tag = "2")]
    cents: i64,
}

/// An HTTP/2 connection to the service.
struct Channel(SendRequest<Body>);

impl Service<hyper::Request<Body>> for Channel {
    type Response = hyper::Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: hyper::Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

/// A call to place an order.
#[derive(Debug, Clone, Copy)]
struct Ask<'a> {
    tenant: &'a str,
    key: &'a str,
    cents: i64,
    note: &'a str,
}

const ORDER: Ask<'static> = Ask { tenant: "tenant-1", key: "8e03978e", cents: 1_250, note: "" };

impl Ask<'_> {
    fn request(&self) -> Result<Request<PlaceOrder>, Failure> {
        let mut request = Request::new(PlaceOrder { cents: self.cents, note: self.note.to_owned() });
        request.metadata_mut().insert("authorization", format!("Bearer {}", self.tenant).parse()?);
        request.metadata_mut().insert("idempotency-key", self.key.parse()?);
        Ok(request)
    }

    async fn send(&self, address: &str) -> Result<Result<Response<Placed>, Status>, Failure> {
        send(address, self.request()?).await
    }
}

/// Sends one call over a separate connection. The outer error is the connection's.
async fn send(
    address: &str,
    request: Request<PlaceOrder>,
) -> Result<Result<Response<Placed>, Status>, Failure> {
    let stream = TokioIo::new(TcpStream::connect(address).await?);
    let (sender, connection) = handshake(TokioExecutor::new(), stream).await?;
    let connection = tokio::spawn(connection);
    let mut client = Grpc::with_origin(Channel(sender), format!("http://{address}").parse()?);
    client.ready().await?;
    let path = PathAndQuery::from_static("/shop.Orders/Place");
    let answer = client.unary(request, path, ProstCodec::default()).await;
    connection.abort();
    Ok(answer)
}

/// Returns the value of a metadata entry, or an empty string.
fn metadata<'a>(all: &'a MetadataMap, name: &str) -> &'a str {
    all.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

fn is_replayed(all: &MetadataMap) -> bool {
    metadata(all, "idempotency-replayed") == "true"
}

/// A database, and services that use it.
struct Shop {
    stage: Stage,
    database: Database<Postgres>,
}

impl Shop {
    async fn open(stage: Stage) -> Result<Self, Failure> {
        let database = Database::<Postgres>::empty(&stage).await?;
        Ok(Self { stage, database })
    }

    /// Starts a service in its own process. With a crash point, the process ends there.
    async fn serve(&self, crash_point: Option<&str>) -> Result<Running, Failure> {
        let mut settings = vec![("DATABASE_URL", self.database.url.as_str())];
        settings.extend(crash_point.map(|point| ("OUTBOX_CRASH_POINTS", point)));
        Running::serve(&self.stage, "orders_grpc", &settings).await
    }

    /// Returns the numbers of orders and of messages.
    async fn counts(&self) -> Result<[i64; 2], Failure> {
        let orders = self.database.integer("SELECT count(*) FROM orders").await?;
        Ok([orders, self.database.integer("SELECT count(*) FROM outbox_message").await?])
    }

    /// Repeats a call while its key is in flight.
    async fn retried(&self, address: &str, ask: Ask<'_>) -> Result<Response<Placed>, Failure> {
        eventually("the key is free", || async {
            match ask.send(address).await? {
                Ok(answer) => Ok(Some(answer)),
                Err(status)
                    if metadata(status.metadata(), "idempotency-code") == "idempotency_key_in_flight" =>
                {
                    Ok(None)
                }
                Err(status) => Err(status.into()),
            }
        })
        .await
    }
}

/// Goal: a service that ends anywhere between claim and answer leaves no second effect. Oracle:
/// orders, messages; the answers to the retries.
async fn killed(stage: Stage) -> Outcome {
    let shop = Shop::open(stage).await?;
    let healthy = shop.serve(None).await?;
    for (cents, point) in (1..).zip([AFTER_CLAIM, AFTER_OUTCOME, AFTER_COMPLETE]) {
        let ask = Ask { key: point, cents, ..ORDER };
        let doomed = shop.serve(Some(point)).await?;
        let lost = ask.send(&doomed.address).await;
        assert!(!matches!(lost, Ok(Ok(_))), "{point}: {lost:?}");
        assert_eq!(doomed.ended().await?.signal(), Some(6), "{point}: ended at its crash point");

        let answer = shop.retried(&healthy.address, ask).await?;
        assert_eq!(is_replayed(answer.metadata()), point == AFTER_COMPLETE, "{point}: {answer:?}");
        let again = ask.send(&healthy.address).await??;
        assert!(is_replayed(again.metadata()) && again.get_ref() == answer.get_ref(), "{point}: {again:?}");
        assert_eq!(shop.counts().await?, [cents, cents], "{point}: orders, messages");
    }
    healthy.kill().await
}

/// Goal: a repeated call gets what the first one got, also from another process, and marked as
/// repeated; another tenant's call with the same key is another call. Oracle: answers, orders.
async fn sent_again(stage: Stage) -> Outcome {
    let shop = Shop::open(stage).await?;
    let service = shop.serve(None).await?;
    let first = ORDER.send(&service.address).await??;
    assert!(!is_replayed(first.metadata()), "{first:?}");
    assert_eq!(*first.get_ref(), Placed { order: 1, cents: 1_250 });
    service.kill().await?;

    let service = shop.serve(None).await?;
    let again = ORDER.send(&service.address).await??;
    assert!(is_replayed(again.metadata()), "{again:?}");
    assert_eq!(again.get_ref(), first.get_ref());
    let other = Ask { tenant: "tenant-2", ..ORDER }.send(&service.address).await??;
    assert!(!is_replayed(other.metadata()) && other.get_ref().order != 1, "{other:?}");
    assert_eq!(shop.counts().await?, [2, 2]);
    service.kill().await
}

/// Goal: of equal calls at once, in two processes, one runs. The others get its answer, or the
/// advice to repeat. Oracle: answers, orders.
async fn at_once(stage: Stage) -> Outcome {
    let shop = Shop::open(stage).await?;
    let services = [shop.serve(None).await?, shop.serve(None).await?];
    let calls = (0..50).map(|n| ORDER.send(&services[n % 2].address));
    let mut placed = BTreeSet::new();
    let mut ran = 0;
    for answer in join_all(calls).await {
        match answer? {
            Ok(answer) => {
                ran += i32::from(!is_replayed(answer.metadata()));
                placed.insert(answer.get_ref().order);
            }
            Err(status) => {
                assert_eq!(status.code(), Code::Unavailable, "{status:?}");
                assert_eq!(metadata(status.metadata(), "idempotency-code"), "idempotency_key_in_flight");
                let after: u64 = metadata(status.metadata(), "grpc-retry-pushback-ms").parse()?;
                assert!((1..=60_000).contains(&after), "{after}");
            }
        }
    }
    assert_eq!((ran, placed), (1, BTreeSet::from([1])));
    let answer = shop.retried(&services[0].address, ORDER).await?;
    assert!(is_replayed(answer.metadata()), "{answer:?}");
    assert_eq!(shop.counts().await?, [1, 1]);
    for service in services {
        service.kill().await?;
    }
    Ok(())
}

/// Goal: a refusal is the outcome of its call; a failure is not, and the next attempt runs. Neither
/// leaves anything behind. Oracle: statuses, orders, messages.
async fn failed(stage: Stage) -> Outcome {
    let shop = Shop::open(stage).await?;
    let service = shop.serve(None).await?;
    let dear = Ask { key: "dear", cents: LIMIT_CENTS + 1, ..ORDER };
    for replayed in [false, true, true] {
        let status = dear.send(&service.address).await?.err().ok_or("it was placed")?;
        assert_eq!(
            (status.code(), status.message()),
            (Code::FailedPrecondition, "over the customer's limit")
        );
        assert_eq!(is_replayed(status.metadata()), replayed, "{status:?}");
    }
    assert_eq!(shop.counts().await?, [0, 0]);

    shop.database.execute("ALTER TABLE orders ADD CONSTRAINT paused CHECK (cents <> 1250)").await?;
    for _ in 0..2 {
        let status = ORDER.send(&service.address).await?.err().ok_or("it was placed")?;
        assert_eq!((status.code(), is_replayed(status.metadata())), (Code::Internal, false), "{status:?}");
    }
    shop.database.execute("ALTER TABLE orders DROP CONSTRAINT paused").await?;
    let answer = shop.retried(&service.address, ORDER).await?;
    assert!(!is_replayed(answer.metadata()), "{answer:?}");
    assert_eq!(shop.counts().await?, [1, 1]);
    service.kill().await
}

/// Goal: a call that its client cancels in the middle is rolled back, and its key is free. Oracle:
/// the next attempt runs; orders, messages.
async fn cancelled(stage: Stage) -> Outcome {
    let shop = Shop::open(stage).await?;
    let service = shop.serve(None).await?;
    let mut other = PgConnection::connect(&shop.database.url).await?;
    sqlx::raw_sql("BEGIN; LOCK TABLE orders IN EXCLUSIVE MODE").execute(&mut other).await?;
    let blocked = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE 'INSERT INTO orders%'";
    let waits = eventually("the call waits in its transaction", || async {
        Ok(when(shop.database.integer(blocked).await? == 1))
    });
    tokio::select! {
        answer = ORDER.send(&service.address) => return Err(format!("it has not waited: {answer:?}").into()),
        waited = waits => waited?,
    }
    sqlx::raw_sql("ROLLBACK").execute(&mut other).await?;
    let answer = shop.retried(&service.address, ORDER).await?;
    assert!(!is_replayed(answer.metadata()), "{answer:?}");
    assert_eq!(shop.counts().await?, [1, 1]);
    service.kill().await
}

/// Goal: a call that cannot be recognized does not run. Oracle: statuses, orders.
async fn refused(stage: Stage) -> Outcome {
    let shop = Shop::open(stage).await?;
    let service = shop.serve(None).await?;
    let _placed = ORDER.send(&service.address).await??;
    let mut no_key = ORDER.request()?;
    no_key.metadata_mut().remove("idempotency-key");
    let mut nobody = ORDER.request()?;
    nobody.metadata_mut().remove("authorization");
    let long = "k".repeat(256);
    let cases = [
        (no_key, Code::InvalidArgument, "idempotency_key_missing"),
        (nobody, Code::Unauthenticated, "idempotency_key_of_nobody"),
        (Ask { key: &long, ..ORDER }.request()?, Code::InvalidArgument, "idempotency_key_malformed"),
        (Ask { cents: 1_251, ..ORDER }.request()?, Code::InvalidArgument, "idempotency_key_reused"),
        (Ask { note: "by post", ..ORDER }.request()?, Code::InvalidArgument, "idempotency_key_reused"),
    ];
    for (request, code, word) in cases {
        let status = send(&service.address, request).await?.err().ok_or("it was placed")?;
        assert_eq!((status.code(), metadata(status.metadata(), "idempotency-code")), (code, word));
    }
    assert_eq!(shop.counts().await?, [1, 1]);
    // The same call from a client that is newer than the service is recognized.
    let newer = Ask { key: "newer", note: "by post", ..ORDER };
    assert!(!is_replayed(newer.send(&service.address).await??.metadata()));
    assert!(is_replayed(newer.send(&service.address).await??.metadata()));
    assert_eq!(shop.counts().await?, [2, 2]);
    service.kill().await
}
