//! A web service whose requests are repeated: a real process, PostgreSQL, and clients that do not
//! use the toolkit.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt as _;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Request};
use futures_util::stream;
use idempotency::KeyId;
use idempotency::crash_points::{AFTER_CLAIM, AFTER_COMPLETE, AFTER_EFFECT, AFTER_OUTCOME};
use sqlx::Postgres;
use tests::eventually::when;
use tests::{Database, Failure, Outcome, Stage, eventually};
use tokio::process::Command;

use crate::client::{Answer, send};
use crate::program::{self, Running};
use crate::provider::{DECLINED_CENTS, Provider};

/// Default maximum size of a request body, in bytes.
const BODY_BYTES_MAX_DEFAULT: usize = 1_048_576;

/// Maximum time for which a key stays held without a sign of life, in seconds.
const LEASE_SECONDS: u64 = 2;

tests::cases! { "orders_api/{on}/{case}":
    postgres {
        a_kill_at_any_point_has_no_second_effect = killed,
        what_is_sent_again_is_answered_byte_for_byte = sent_again,
        what_cannot_be_read_is_refused_and_does_nothing = refused,
        no_tenant_route_or_key_gets_the_answer_of_another = apart,
    }
    postgres, if program::python3 { of_fifty_requests_at_once_one_runs = at_once }
}

/// A database, a provider, and services that use them.
struct Shop {
    stage: Stage,
    database: Database<Postgres>,
    provider: Arc<Provider>,
}

/// Parameters of a request. In `/orders` a transaction holds its key, in `/charges` a lease.
#[derive(Debug, Clone, Copy)]
struct Ask<'a> {
    path: &'a str,
    tenant: &'a str,
    key: &'a str,
    cents: i64,
}

const ORDER: Ask<'static> = Ask { path: "/orders", tenant: "tenant-1", key: "k", cents: 1_250 };
const CHARGE: Ask<'static> = Ask { path: "/charges", ..ORDER };

impl Ask<'_> {
    fn request(&self) -> Result<Request<Body>, Failure> {
        let request = Request::post(self.path)
            .header("host", "shop")
            .header("authorization", format!("Bearer {}", self.tenant))
            .header("content-type", "application/json")
            .header("idempotency-key", format!("\"{}\"", self.key));
        Ok(request.body(Body::from(format!("{{\"cents\":{}}}", self.cents)))?)
    }

    async fn send(&self, address: &str) -> Result<Answer, Failure> {
        send(address, self.request()?).await
    }

    /// Returns the key that the provider must receive.
    fn downstream(&self) -> Result<String, Failure> {
        let operation = format!("POST {}", self.path);
        Ok(KeyId::of_texts(self.tenant, &operation, self.key)?.downstream().to_string())
    }
}

impl Shop {
    async fn open(stage: Stage) -> Result<Self, Failure> {
        let database = Database::<Postgres>::empty(&stage).await?;
        let provider = Provider::start(&stage).await?;
        Ok(Self { stage, database, provider })
    }

    /// Starts a service in its own process. With a crash point, the process ends there.
    async fn serve(&self, crash_point: Option<&str>) -> Result<Running, Failure> {
        let lease = LEASE_SECONDS.to_string();
        let mut settings = vec![
            ("DATABASE_URL", self.database.url.as_str()),
            ("PROVIDER", &self.provider.address),
            ("LEASE_SECONDS", &lease),
        ];
        settings.extend(crash_point.map(|point| ("OUTBOX_CRASH_POINTS", point)));
        Running::serve(&self.stage, "orders_api", &settings).await
    }

    async fn orders(&self) -> Result<i64, Failure> {
        self.database.integer("SELECT count(*) FROM orders").await
    }

    /// Repeats a request until its key is free. Demands that the key is free once the lease has
    /// expired by the database's clock.
    async fn retried(&self, address: &str, ask: Ask<'_>) -> Result<Answer, Failure> {
        let overdue = format!(
            "SELECT (SELECT count(*) FROM idempotency_key WHERE key = '{}' AND operation = 'POST {}' \
             AND lease_until <= clock_timestamp()) + (SELECT count(*) FROM pg_stat_activity \
             WHERE datname = current_database() AND state = 'idle in transaction' \
             AND state_change < clock_timestamp() - interval '{} s')",
            ask.key,
            ask.path,
            // The extra second is for the server, which enforces its timeout only when it gets
            // processor time.
            LEASE_SECONDS + 1
        );
        eventually("the key is free", || async {
            let is_overdue = self.database.integer(&overdue).await? > 0;
            let answer = ask.send(address).await?;
            if answer.status != 409 {
                return Ok(Some(answer));
            }
            assert!(!is_overdue, "{ask:?}: held although the lease is over");
            in_flight(&answer)?;
            Ok(None)
        })
        .await
    }
}

/// Checks that a response reports that the request is running, and when to try again.
fn in_flight(answer: &Answer) -> Outcome {
    assert_eq!((answer.status.as_u16(), answer.code().as_str()), (409, "idempotency_key_in_flight"));
    let after: u64 = answer.header("retry-after").ok_or("no Retry-After")?.parse()?;
    assert!((1..=LEASE_SECONDS).contains(&after), "Retry-After: {after}");
    Ok(())
}

/// Goal: a service that ends anywhere between claim and answer leaves no second effect, and no key
/// held for longer than its lease. Oracle: orders, messages, the provider's book; the answers to
/// the retries.
async fn killed(stage: Stage) -> Outcome {
    let shop = Shop::open(stage).await?;
    let healthy = shop.serve(None).await?;
    let in_transaction = [AFTER_CLAIM, AFTER_EFFECT, AFTER_OUTCOME, AFTER_COMPLETE];
    // With a lease, the key and its outcome are written together, so there is no crash point
    // between them.
    let on_lease = [AFTER_CLAIM, AFTER_EFFECT, AFTER_COMPLETE];
    let orders = in_transaction.map(|point| (ORDER, point));
    let charges = on_lease.map(|point| (CHARGE, point));
    for (cents, (ask, point)) in (1..).zip(orders.into_iter().chain(charges)) {
        let ask = Ask { key: point, cents, ..ask };
        let doomed = shop.serve(Some(point)).await?;
        let lost = ask.send(&doomed.address).await;
        assert!(lost.is_err(), "{point}: {lost:?}");
        assert_eq!(doomed.ended().await?.signal(), Some(6), "{point}: ended at its crash point");

        let answer = shop.retried(&healthy.address, ask).await?;
        assert_eq!(answer.status, 201, "{point}: {answer:?}");
        assert_eq!(answer.is_replayed(), point == AFTER_COMPLETE, "{point}: {answer:?}");
        let again = ask.send(&healthy.address).await?;
        assert!(again.is_replayed() && again.body == answer.body, "{point}: {again:?}");

        let orders = format!("SELECT count(*) FROM orders WHERE cents = {cents}");
        let book = shop.provider.book();
        let charges = book.charges.iter().filter(|charge| charge.cents == cents.to_string()).count();
        let calls = book.calls_with(&ask.downstream()?);
        let found = (shop.database.integer(&orders).await?, charges, calls);
        // The provider is asked again only if a service died after the effect.
        let asked = if point == AFTER_EFFECT { 2 } else { 1 };
        let expected = if ask.path == ORDER.path { (1, 0, 0) } else { (0, 1, asked) };
        assert_eq!(found, expected, "{point} of {}: orders, charges, calls", ask.path);
    }
    let messages = shop.database.integer("SELECT count(*) FROM outbox_message").await?;
    assert_eq!((shop.orders().await?, messages), (4, 4));
    healthy.kill().await
}

/// Returns the headers that a replay must repeat: all except those about this response itself.
fn repeated(answer: &Answer) -> HeaderMap {
    let mut headers = answer.headers.clone();
    headers.remove("date");
    headers.remove("idempotency-replayed");
    headers
}

/// Goal: a retry gets the first answer. A different request with the same key, and a request that
/// comes too early, get an error. Oracle: the bytes; the service's orders and the provider's book.
async fn sent_again(stage: Stage) -> Outcome {
    let shop = Shop::open(stage).await?;
    let service = shop.serve(None).await?;
    // A request that succeeds, a request that is refused for good, a request whose effect is in
    // another system, and a request that this system refuses for good.
    for (ask, status) in [
        (ORDER, 201),
        (Ask { key: "large", cents: 250_000, ..ORDER }, 422),
        (Ask { key: "charge", ..CHARGE }, 201),
        (Ask { key: "declined", cents: DECLINED_CENTS, ..CHARGE }, 402),
    ] {
        let first = ask.send(&service.address).await?;
        assert_eq!((first.status.as_u16(), first.is_replayed(), first.code().as_str()), (status, false, ""));
        for _ in 0..2 {
            let again = ask.send(&service.address).await?;
            assert!(again.is_replayed(), "{again:?}");
            assert_eq!((again.status, &again.body), (first.status, &first.body));
            assert_eq!(repeated(&again), repeated(&first));
        }
        let other = Ask { cents: 990, ..ask }.send(&service.address).await?;
        assert_eq!((other.status.as_u16(), other.code().as_str()), (422, "idempotency_key_reused"));
    }

    shop.provider.answer(false);
    let address = service.address.clone();
    let waiting = Ask { key: "slow", cents: 7, ..CHARGE };
    let first = tokio::spawn(async move { waiting.send(&address).await });
    eventually("the charge is made", || async { Ok(when(shop.provider.book().charges.len() == 2)) }).await?;
    in_flight(&waiting.send(&service.address).await?)?;
    shop.provider.answer(true);
    let first = first.await??;
    assert_eq!((first.status.as_u16(), first.is_replayed()), (201, false));
    let again = waiting.send(&service.address).await?;
    assert!(again.is_replayed() && again.body == first.body, "{again:?}");
    assert_eq!((shop.orders().await?, shop.provider.book().calls.len()), (1, 3));
    service.kill().await
}

/// Goal: a request whose key, owner or body cannot be read is refused with its own code, and
/// nothing runs. Oracle: the answers; no keys and no orders.
async fn refused(stage: Stage) -> Outcome {
    let shop = Shop::open(stage).await?;
    let service = shop.serve(None).await?;
    let changed = |change: &dyn Fn(&mut HeaderMap)| -> Result<Request<Body>, Failure> {
        let mut request = ORDER.request()?;
        change(request.headers_mut());
        Ok(request)
    };
    let without = |name: &'static str| {
        changed(&|headers| {
            headers.remove(name);
        })
    };
    let twice = changed(&|headers| {
        headers.append("idempotency-key", HeaderValue::from_static("\"k\""));
    });
    let mut asked = vec![
        (without("idempotency-key")?, 400, "idempotency_key_missing"),
        (without("authorization")?, 403, "idempotency_key_of_nobody"),
        (twice?, 400, "idempotency_key_malformed"),
    ];
    let long = format!("\"{}\"", "k".repeat(256));
    let malformed: [&[u8]; 9] = [
        b"",
        b"\"\"",
        b"\"open",
        b"open\"",
        b"a, b",
        b"\"a\" \"b\"",
        b"\"a\tb\"",
        b"\"\xc3\xa4\"",
        long.as_bytes(),
    ];
    for value in malformed {
        let value = HeaderValue::from_bytes(value)?;
        let request = changed(&|headers| {
            headers.insert("idempotency-key", value.clone());
        });
        asked.push((request?, 400, "idempotency_key_malformed"));
    }
    // A stream of unknown length, and a body that declares its length.
    let chunks = [vec![b' '; BODY_BYTES_MAX_DEFAULT], vec![b' ']].map(Ok::<_, std::io::Error>);
    for body in [Body::from_stream(stream::iter(chunks)), Body::from(vec![b' '; BODY_BYTES_MAX_DEFAULT + 1])]
    {
        let mut request = ORDER.request()?;
        *request.body_mut() = body;
        asked.push((request, 413, "request_body_too_large"));
    }
    for (request, status, code) in asked {
        let told = format!("{:?}", request.headers());
        let answer = send(&service.address, request).await?;
        assert_eq!((answer.status.as_u16(), answer.code().as_str()), (status, code), "{told}");
    }
    let keys = shop.database.integer("SELECT count(*) FROM idempotency_key").await?;
    assert_eq!((shop.orders().await?, keys), (0, 0), "nothing of it has run");

    // A stream within the limit is accepted like any other body.
    let mut streamed = ORDER.request()?;
    let chunks = ["{\"cents\"", ":1250}"].map(Ok::<_, std::io::Error>);
    *streamed.body_mut() = Body::from_stream(stream::iter(chunks));
    assert_eq!(send(&service.address, streamed).await?.status, 201);
    assert!(ORDER.send(&service.address).await?.is_replayed(), "the same request");
    service.kill().await
}

/// Goal: every combination of tenant, route and key is a separate request, here and at the
/// provider. Oracle: all responses differ although all request bodies are equal; each combination
/// gets its own response again.
async fn apart(stage: Stage) -> Outcome {
    let shop = Shop::open(stage).await?;
    let service = shop.serve(None).await?;
    let tenants = ["tenant-1", "tenant-2", "tenant-1:tenant-2"];
    let keys = ["a", "b", "tenant-2", "tenant-2:a"];
    let asks = tenants.into_iter().flat_map(|tenant| {
        let paths = ["/orders", "/charges"].into_iter();
        paths.flat_map(move |path| keys.map(|key| Ask { path, tenant, key, ..ORDER }))
    });
    let mut answers = Vec::new();
    for ask in asks {
        let answer = ask.send(&service.address).await?;
        assert_eq!((answer.status.as_u16(), answer.is_replayed()), (201, false), "{ask:?}");
        answers.push((ask, answer.body));
    }
    let bodies: BTreeSet<_> = answers.iter().map(|(_, body)| body).collect();
    assert_eq!(bodies.len(), tenants.len() * 2 * keys.len(), "nobody got another one's answer");
    for (ask, body) in answers.iter().rev() {
        let again = ask.send(&service.address).await?;
        assert!(again.is_replayed() && again.body == *body, "{ask:?}: {again:?}");
    }
    let (orders, charges) = (shop.orders().await?, shop.provider.book().charges.len());
    assert_eq!((orders, charges), (12, 12), "and the provider can tell the tenants apart");
    service.kill().await
}

/// Goal: of many simultaneous requests with one key, one runs; the others get its answer or 409.
/// Oracle: the count of answers by a client in another language, and the service's rows.
async fn at_once(stage: Stage) -> Outcome {
    let database = Database::<Postgres>::empty(&stage).await?;
    let script = std::path::absolute("http/storm.py")?;
    let mut python = Command::new("python3");
    python.arg(script).arg(program::path("orders_api")?);
    python.args(["--rounds", "20", "--clients", "50"]).env("DATABASE_URL", &database.url);
    let printed = program::lines(python).await?;
    assert_eq!(printed.last().map(String::as_str), Some("20 orders, 20 messages, 0 broken rounds"));
    assert!(printed[0].contains("'executed': 20"), "{printed:?}");
    Ok(())
}
