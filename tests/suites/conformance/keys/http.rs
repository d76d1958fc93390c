//! Idempotency keys at the HTTP edge, with axum.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::*;
use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use axum::response::IntoResponse;
use axum::routing::{delete, post};
use axum::{Extension, Router};
use futures_util::stream;
use http_body_util::BodyExt as _;
use hyper::body::{Frame, SizeHint};
use idempotency::http::{Effect, HeldTransaction, IdempotencyLayer, LeasedKey};
use inbox::Tenant;
use tokio::sync::{Mutex, Semaphore};
use tower_service::Service as _;

tests::cases! { "keys/http/{on}/{case}":
    every {
        a_request_that_is_sent_again_gets_the_stored_response,
        what_cannot_be_done_is_answered_with_a_problem,
        a_key_that_may_have_lost_its_record_is_answered_with_a_problem,
        what_is_not_stored_is_rolled_back_and_runs_again,
        a_stream_is_refused_and_does_not_hang,
        a_stream_after_an_effect_elsewhere_is_refused_for_good,
        a_response_that_never_ends_holds_neither_its_key_nor_a_connection,
        a_request_without_an_effect_gives_its_key_back_whatever_its_response,
        a_response_that_broke_off_after_a_refusal_claims_no_effect,
        another_tenants_key_never_replays,
        a_request_whose_client_is_gone_runs_to_its_end,
        a_leased_request_is_in_flight_then_replayed,
        a_leased_handler_that_blocks_its_thread_keeps_its_lease,
        a_leased_request_that_failed_gives_its_key_back,
        a_request_waits_for_another_one_where_the_route_allows_it,
        a_route_may_let_requests_wait_without_a_limit,
        a_request_that_waits_gets_the_outcome_of_another_process,
        a_request_that_waits_runs_when_the_first_one_has_failed,
        a_request_waits_no_longer_than_its_route_allows,
        requests_that_wait_are_bounded_and_hold_no_connection,
        a_client_that_is_gone_frees_its_place,
        without_a_key_an_optional_route_runs_each_time,
        a_transaction_that_outlives_its_handler_is_rolled_back,
        a_transaction_that_its_handler_ended_is_an_error,
        a_response_with_trailers_is_refused,
    }
    on_postgres {
        a_hundred_requests_at_once_run_once,
        a_hundred_requests_that_wait_get_the_stored_response,
        a_service_whose_database_is_away_says_when_to_come_again,
    }
}

/// A gate at which handlers wait, and the calls that handlers made.
pub(super) struct Shop {
    go: Semaphore,
    calls: Mutex<Vec<String>>,
}

impl Default for Shop {
    fn default() -> Self {
        Self { go: Semaphore::new(0), calls: Mutex::default() }
    }
}

/// Writes an effect, then does what the header `x-do` names.
async fn place<DB: Keys>(
    State(shop): State<Arc<Shop>>,
    Extension(held): Extension<HeldTransaction<DB>>,
    tenant: Option<Extension<Tenant>>,
    headers: HeaderMap,
    body: String,
) -> Response<Body> {
    // The layer passes the tenant on to the handler.
    let tenant = tenant.as_ref().map(|tenant| tenant.as_str().as_bytes());
    assert_eq!(tenant, headers.get("x-tenant").map(HeaderValue::as_bytes));
    let mut tx = held.lock().await.unwrap();
    DB::apply(&mut tx, body.clone()).await.unwrap();
    let order = shop.calls.lock().await.len();
    shop.calls.lock().await.push(body);
    match headers.get("x-do").map_or("", |value| value.to_str().unwrap()) {
        "wait" => shop.go.acquire().await.unwrap().forget(),
        "stream" => return endless(),
        "stall" => return Response::new(Body::new(Half { breaks_off: false })),
        "trailers" => {
            let sum =
                HeaderMap::from_iter([(HeaderName::from_static("x-sum"), HeaderValue::from_static("7"))]);
            let body = Body::from("done").with_trailers(std::future::ready(Some(Ok(sum))));
            return Response::new(Body::new(body));
        }
        "drop a begin" => tests::drop_a_begin(&mut **tx).await,
        "leak" => {
            let held = held.clone();
            drop(tx);
            let (locked, is_locked) = tokio::sync::oneshot::channel();
            tokio::spawn(async move {
                let _guard = held.lock().await.unwrap();
                locked.send(()).unwrap();
                shop.go.acquire().await.unwrap().forget();
            });
            is_locked.await.unwrap();
        }
        "" => {}
        status => return (status.parse::<StatusCode>().unwrap(), "no").into_response(),
    }
    let headers =
        [("location", format!("/orders/{order}")), ("set-cookie", String::from("s=1")), ("x-a", "b".into())];
    (StatusCode::CREATED, headers, vec![0, 255, order as u8]).into_response()
}

fn endless() -> Response<Body> {
    let endless = stream::unfold((), |()| async { Some((Ok::<_, std::io::Error>("more"), ())) });
    Body::from_stream(endless).into_response()
}

/// A body of four bytes whose second half never arrives: its host is gone, or the connection ends.
struct Half {
    breaks_off: bool,
}

impl hyper::body::Body for Half {
    type Data = axum::body::Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        if self.breaks_off { Poll::Ready(Some(Err(std::io::Error::other("gone")))) } else { Poll::Pending }
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(4)
    }
}

/// Has an effect outside the database: the shop records the call.
async fn charge(
    State(shop): State<Arc<Shop>>,
    Extension(LeasedKey { id, attempt, .. }): Extension<LeasedKey>,
    headers: HeaderMap,
) -> Response<Body> {
    shop.calls.lock().await.push(format!("{} {attempt}", id.key()));
    match headers.get("x-do").map_or("", |value| value.to_str().unwrap()) {
        "wait" => shop.go.acquire().await.unwrap().forget(),
        "wait, fail" => {
            shop.go.acquire().await.unwrap().forget();
            return StatusCode::SERVICE_UNAVAILABLE.into_response();
        }
        "block" => {
            let go = || tokio::runtime::Handle::current().block_on(shop.go.acquire()).unwrap().forget();
            tokio::task::block_in_place(go);
        }
        "stream" => return endless(),
        "stall" => return Response::new(Body::new(Half { breaks_off: false })),
        "stream, no effect" => {
            return (StatusCode::UNPROCESSABLE_ENTITY, Extension(Effect::None), endless()).into_response();
        }
        "break off, refused" => {
            let half = Body::new(Half { breaks_off: true });
            return (StatusCode::UNPROCESSABLE_ENTITY, half).into_response();
        }
        "" => {}
        status => return (status.parse::<StatusCode>().unwrap(), "no").into_response(),
    }
    "charged".into_response()
}

fn tenant(request: &Parts) -> Option<Tenant> {
    Tenant::new(request.headers.get("x-tenant")?.to_str().ok()?).ok()
}

pub(super) struct App {
    pub(super) router: Router,
    pub(super) shop: Arc<Shop>,
}

pub(super) type Layers<DB> = (IdempotencyLayer<DB>, IdempotencyLayer<DB>);

pub(super) async fn app<DB: Keys>(db: &Database<DB>, change: impl FnOnce(Layers<DB>) -> Layers<DB>) -> App {
    let keys = open(db).await;
    let orders = IdempotencyLayer::transactional(keys.clone(), "/orders", tenant).unwrap();
    let charges = IdempotencyLayer::leased(keys.clone(), "/charges", tenant).unwrap();
    let returns = IdempotencyLayer::transactional(keys, "/returns", tenant).unwrap();
    let (orders, charges) = change((orders, charges));
    let shop = Arc::new(Shop::default());
    let router = Router::new()
        .route("/orders", post(place::<DB>).put(place::<DB>).layer(orders))
        .route("/charges", post(charge).layer(charges))
        .route("/returns", delete(place::<DB>).post(place::<DB>).layer(returns))
        .with_state(Arc::clone(&shop));
    App { router, shop }
}

/// The parts of a request.
#[derive(Clone, Copy)]
pub(super) struct Ask<'a> {
    pub(super) method: &'a str,
    pub(super) path: &'a str,
    pub(super) tenant: &'a str,
    pub(super) key: &'a str,
    pub(super) body: &'a str,
    pub(super) order: &'a str,
}

pub(super) const ASK: Ask<'static> =
    Ask { method: "POST", path: "/orders", tenant: "t1", key: "\"k\"", body: "{\"a\": 1}", order: "" };
pub(super) const CHARGE: Ask<'static> = Ask { path: "/charges", ..ASK };

/// An answer: status, headers and body.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl Answer {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(super) fn is_replayed(&self) -> bool {
        self.header("idempotency-replayed") == Some("true")
    }

    pub(super) fn code(&self) -> String {
        assert_eq!(self.header("content-type"), Some("application/problem+json"));
        let problem: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(problem["status"], self.status);
        problem["code"].as_str().unwrap().to_owned()
    }

    fn detail(&self) -> String {
        let problem: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        problem["detail"].as_str().unwrap().to_owned()
    }
}

impl App {
    pub(super) fn send(&self, ask: Ask<'_>) -> impl Future<Output = Answer> + Send + 'static {
        let mut request = Request::builder().method(ask.method).uri(ask.path);
        for (name, value) in [("x-tenant", ask.tenant), ("idempotency-key", ask.key), ("x-do", ask.order)] {
            if !value.is_empty() {
                request = request.header(name, value);
            }
        }
        let kind = "application/json";
        let request = request.header("content-type", kind).body(Body::from(ask.body.to_owned())).unwrap();
        self.send_whole(request)
    }

    fn send_whole(&self, request: Request<Body>) -> impl Future<Output = Answer> + Send + 'static {
        let mut router = self.router.clone();
        async move {
            let (parts, body) = router.call(request).await.unwrap().into_parts();
            let body = to_bytes(body, 1 << 20).await.unwrap().to_vec();
            Answer { status: parts.status.as_u16(), headers: parts.headers, body }
        }
    }

    pub(super) async fn calls(&self) -> usize {
        self.shop.calls.lock().await.len()
    }

    async fn called(&self) {
        tests::eventually("the handler runs", async || Ok((self.calls().await > 0).then_some(())))
            .await
            .unwrap();
    }
}

pub(super) async fn all_effects<DB: Keys>(db: &Database<DB>) -> i64 {
    db.integer("SELECT count(*) FROM effect").await.unwrap()
}

async fn a_request_that_is_sent_again_gets_the_stored_response<DB: Keys>(db: Database<DB>) {
    let app = app(&db, |layers| layers).await;
    let first = app.send(ASK).await;
    assert_eq!((first.status, first.is_replayed(), &first.body[..]), (201, false, &[0, 255, 0][..]));
    assert_eq!(first.header("set-cookie"), Some("s=1"));
    // Without quotes, and with different white space in the body: still the same request.
    for again in [ASK, Ask { key: "k", body: " {\"a\":1 }", ..ASK }] {
        let again = app.send(again).await;
        assert_eq!((again.status, again.is_replayed(), &again.body), (201, true, &first.body));
        assert_eq!(again.header("location"), Some("/orders/0"));
        assert_eq!(again.header("x-a"), Some("b"));
        assert_eq!(again.header("content-type"), first.header("content-type"));
        assert_eq!(again.header("set-cookie"), None);
    }
    let refused = Ask { key: "\"refused\"", order: "404", ..ASK };
    assert_eq!(app.send(refused).await.status, 404);
    let again = app.send(refused).await;
    assert_eq!((again.status, again.is_replayed(), &again.body[..]), (404, true, &b"no"[..]));
    assert_eq!((all_effects(&db).await, app.calls().await), (1, 2), "a refusal leaves nothing behind");
}

async fn what_cannot_be_done_is_answered_with_a_problem<DB: Keys>(db: Database<DB>) {
    let app = app(&db, |(orders, charges)| {
        (orders.request_bytes_max(64).body_timeout(Duration::from_millis(50)), charges.strict())
    })
    .await;
    assert_eq!(app.send(ASK).await.status, 201);
    let (long, large) = (format!("\"{}\"", "k".repeat(256)), "x".repeat(65));
    for (ask, status, code) in [
        (Ask { key: "", ..ASK }, 400, "idempotency_key_missing"),
        (Ask { key: "\"open", ..ASK }, 400, "idempotency_key_malformed"),
        (Ask { key: &long, ..ASK }, 400, "idempotency_key_malformed"),
        (Ask { key: "k", ..CHARGE }, 400, "idempotency_key_malformed"),
        (Ask { tenant: "", ..ASK }, 403, "idempotency_key_of_nobody"),
        (Ask { body: &large, ..ASK }, 413, "request_body_too_large"),
        (Ask { body: "{\"a\": 2}", ..ASK }, 422, "idempotency_key_reused"),
        (Ask { path: "/orders?b", ..ASK }, 422, "idempotency_key_reused"),
    ] {
        let answer = app.send(ask).await;
        assert_eq!((answer.status, answer.code().as_str()), (status, code));
    }
    let endless = Body::from_stream(stream::pending::<Result<String, std::io::Error>>());
    let slow = Request::post("/orders")
        .header("x-tenant", "t")
        .header("idempotency-key", "s")
        .body(endless)
        .unwrap();
    assert_eq!(app.send_whole(slow).await.code(), "request_body_too_slow");
    let broken = Body::from_stream(stream::once(async { Err::<String, _>(std::io::Error::other("gone")) }));
    let cut =
        Request::post("/orders").header("x-tenant", "t").header("idempotency-key", "s").body(broken).unwrap();
    assert_eq!(app.send_whole(cut).await.code(), "request_body_unreadable");
    assert_eq!((all_effects(&db).await, app.calls().await), (1, 1), "nothing of it has run");
}

async fn a_key_that_may_have_lost_its_record_is_answered_with_a_problem<DB: Keys>(db: Database<DB>) {
    let tokens = ClaimOptions::default().tokens(Duration::from_secs(300));
    let app = app(&db, |(orders, charges)| (orders.claim(tokens), charges.claim(tokens))).await;
    let hour = Duration::from_secs(3_600);
    let now = time::OffsetDateTime::now_utc();
    let made_at = |at| format!("\"{}\"", message::MessageId::derived(at, ["k"]).unwrap());
    let (old, early, present) = (made_at(now - 24 * hour), made_at(now + hour), made_at(now));
    for path in [ASK, CHARGE] {
        for (key, code) in [
            (&old, "idempotency_key_too_old"),
            (&early, "idempotency_key_too_far_ahead"),
            (&String::from("\"8e03978e\""), "idempotency_key_malformed"),
        ] {
            let answer = app.send(Ask { key, ..path }).await;
            assert_eq!((answer.status, answer.code().as_str()), (400, code));
        }
    }
    assert_eq!((all_effects(&db).await, app.calls().await), (0, 0), "nothing has run");
    for is_replayed in [false, true] {
        let answer = app.send(Ask { key: &present, ..ASK }).await;
        assert_eq!((answer.status, answer.is_replayed()), (201, is_replayed));
    }
}

async fn what_is_not_stored_is_rolled_back_and_runs_again<DB: Keys>(db: Database<DB>) {
    let app = app(&db, |layers| layers).await;
    for status in ["500", "503", "401", "403", "408", "409", "425", "429"] {
        let key = format!("\"{status}\"");
        let failing = app.send(Ask { key: &key, order: status, ..ASK }).await;
        assert_eq!((failing.status.to_string().as_str(), &failing.body[..]), (status, &b"no"[..]));
        assert_eq!(all_effects(&db).await, 0, "{status}");
        let again = app.send(Ask { key: &key, ..ASK }).await;
        assert_eq!((again.status, again.is_replayed()), (201, false), "{status}");
        db.execute("DELETE FROM effect").await.unwrap();
    }
}

async fn a_stream_is_refused_and_does_not_hang<DB: Keys>(db: Database<DB>) {
    let app = app(&db, |(orders, charges)| (orders.response_bytes_max(100), charges)).await;
    let streaming = app.send(Ask { order: "stream", ..ASK }).await;
    assert_eq!((streaming.status, streaming.code().as_str()), (500, "response_not_storable"));
    assert_eq!(all_effects(&db).await, 0, "nothing of it is stored");
    assert_eq!(app.send(ASK).await.status, 201);
}

async fn a_stream_after_an_effect_elsewhere_is_refused_for_good<DB: Keys>(db: Database<DB>) {
    let app = app(&db, |layers| layers).await;
    let first = app.send(Ask { order: "stream", ..CHARGE }).await;
    assert_eq!((first.status, first.code().as_str()), (500, "response_not_storable"));
    let again = app.send(Ask { order: "stream", ..CHARGE }).await;
    assert!(again.is_replayed() && again.body == first.body, "{again:?}");
    assert_eq!(app.calls().await, 1, "the effect is not made again");
}

/// Goal: an upstream that disappears in the middle of its response holds no key for ever, and no
/// connection of the pool. Oracle: the answers, and a request that needs the connection.
async fn a_response_that_never_ends_holds_neither_its_key_nor_a_connection<DB: Keys>(db: Database<DB>) {
    let soon = Duration::from_millis(100);
    let app = app(&db, |(orders, charges)| (orders.body_timeout(soon), charges.body_timeout(soon))).await;
    for ask in [ASK, CHARGE] {
        let stalled = app.send(Ask { order: "stall", ..ask });
        let stalled = tokio::time::timeout(Duration::from_secs(60), stalled).await.unwrap();
        assert_eq!((stalled.status, stalled.code().as_str()), (500, "response_not_storable"));
        assert!(stalled.detail().contains("not complete within 100ms"), "{}", stalled.detail());
        let again = app.send(ask).await;
        let (status, is_stored) = if ask.path == CHARGE.path { (500, true) } else { (201, false) };
        assert_eq!((again.status, again.is_replayed()), (status, is_stored), "{again:?}");
    }
    assert_eq!((all_effects(&db).await, app.calls().await), (1, 3));
}

async fn a_request_without_an_effect_gives_its_key_back_whatever_its_response<DB: Keys>(db: Database<DB>) {
    let refuse = ClaimOptions::default().on_expired(idempotency::OnExpired::Refuse);
    let app = app(&db, |(orders, charges)| (orders, charges.claim(refuse))).await;
    let first = app.send(Ask { order: "stream, no effect", ..CHARGE }).await;
    assert_eq!((first.status, first.code().as_str()), (500, "response_not_storable"));
    assert!(first.detail().starts_with("Nothing was done, but the response is a stream"), "{first:?}");
    let again = app.send(CHARGE).await;
    assert_eq!((again.status, again.is_replayed()), (200, false), "{again:?}");
    assert_eq!(*app.shop.calls.lock().await, ["k 1", "k 2"]);
}

async fn a_response_that_broke_off_after_a_refusal_claims_no_effect<DB: Keys>(db: Database<DB>) {
    let app = app(&db, |layers| layers).await;
    let first = app.send(Ask { order: "break off, refused", ..CHARGE }).await;
    let told = "The request may have taken effect, but the body of the response broke off";
    assert!(first.detail().starts_with(told), "{}", first.detail());
    let again = app.send(CHARGE).await;
    assert!(again.is_replayed() && again.body == first.body, "{again:?}");
}

/// Every combination of tenant, method, route and key is a separate request.
async fn another_tenants_key_never_replays<DB: Keys>(db: Database<DB>) {
    let app = app(&db, |layers| layers).await;
    let mut all = Vec::new();
    for tenant in ["t1", "t2", "t1:t2"] {
        for (method, path) in
            [("POST", "/orders"), ("PUT", "/orders"), ("POST", "/returns"), ("DELETE", "/returns")]
        {
            for key in ["\"a\"", "\"b\"", "\"t1\""] {
                all.push(Ask { method, path, tenant, key, ..ASK });
            }
        }
    }
    let mut bodies = Vec::new();
    for ask in &all {
        let answer = app.send(*ask).await;
        assert_eq!((answer.status, answer.is_replayed()), (201, false));
        bodies.push(answer.body);
    }
    for (ask, body) in all.iter().zip(&bodies) {
        let answer = app.send(*ask).await;
        assert!(answer.is_replayed() && answer.body == *body, "its own answer");
    }
    assert_eq!(all_effects(&db).await, all.len() as i64);
}

async fn a_request_whose_client_is_gone_runs_to_its_end<DB: Keys>(db: Database<DB>) {
    let app = app(&db, |layers| layers).await;
    let client = tokio::spawn(app.send(Ask { order: "wait", ..ASK }));
    app.called().await;
    client.abort();
    assert!(client.await.unwrap_err().is_cancelled());
    app.shop.go.add_permits(1);
    tests::eventually("its outcome is there", async || {
        let again = app.send(Ask { order: "wait", ..ASK }).await;
        Ok(again.is_replayed().then_some(()))
    })
    .await
    .unwrap();
    assert_eq!((all_effects(&db).await, app.calls().await), (1, 1));
}

async fn a_leased_request_is_in_flight_then_replayed<DB: Keys>(db: Database<DB>) {
    let app = app(&db, |layers| layers).await;
    let waiting = tokio::spawn(app.send(Ask { order: "wait", ..CHARGE }));
    app.called().await;
    let second = app.send(Ask { order: "wait", ..CHARGE }).await;
    assert_eq!((second.status, second.code().as_str()), (409, "idempotency_key_in_flight"));
    let after: u64 = second.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&after), "{after}");
    app.shop.go.add_permits(1);
    let first = waiting.await.unwrap();
    assert_eq!((first.status, &first.body[..]), (200, &b"charged"[..]));
    let again = app.send(CHARGE).await;
    assert!(again.is_replayed() && again.body == b"charged");
    assert_eq!(*app.shop.calls.lock().await, ["k 1"]);
}

/// Goal: a handler that blocks its thread does not prevent the renewal of its lease. Oracle: the
/// end of the lease, which moves while the handler blocks.
async fn a_leased_handler_that_blocks_its_thread_keeps_its_lease<DB: Keys>(db: Database<DB>) {
    let brief = ClaimOptions::default().lease(Duration::from_secs(1));
    let app = app(&db, |(orders, charges)| (orders, charges.claim(brief))).await;
    let blocking = tokio::spawn(app.send(Ask { order: "block", ..CHARGE }));
    app.called().await;
    let mut lease = column(&db, "k", "lease_until").await;
    for _ in 0..4 {
        lease = tests::eventually("the lease is renewed", async || {
            let now = column(&db, "k", "lease_until").await;
            Ok((now > lease).then_some(now))
        })
        .await
        .unwrap();
    }
    let second = app.send(CHARGE).await;
    assert_eq!((second.status, second.code().as_str()), (409, "idempotency_key_in_flight"));
    app.shop.go.add_permits(1);
    assert_eq!(blocking.await.unwrap().status, 200);
    assert_eq!(*app.shop.calls.lock().await, ["k 1"]);
}

async fn a_leased_request_that_failed_gives_its_key_back<DB: Keys>(db: Database<DB>) {
    let app = app(&db, |layers| layers).await;
    assert_eq!(app.send(Ask { order: "503", ..CHARGE }).await.status, 503);
    assert_eq!(app.send(CHARGE).await.status, 200);
    assert_eq!(*app.shop.calls.lock().await, ["k 1", "k 2"], "the same key, another attempt");
}

async fn a_request_waits_for_another_one_where_the_route_allows_it<DB: Keys>(db: Database<DB>) {
    let counters = tests::Counters::installed();
    // The route is used only here, because other tests count requests under theirs.
    let route = format!("/charges/{}", message::MessageId::new());
    let charges = IdempotencyLayer::leased(open(&db).await, &route, tenant).unwrap();
    let app = app(&db, |(orders, _)| (orders, charges.wait_max(Duration::from_secs(60)))).await;
    let first = tokio::spawn(app.send(Ask { order: "wait", ..CHARGE }));
    app.called().await;
    let second = tokio::spawn(app.send(Ask { order: "wait", ..CHARGE }));
    let operation = format!("POST {route}");
    tests::eventually("the second one asks again for a key that is held", async || {
        let labels = [("operation", operation.as_str()), ("result", "in_flight")];
        let asked = counters.value("idempotency_claims_total", &labels);
        if second.is_finished() {
            return Err(format!("answered after asking {asked} times, before the first one's outcome").into());
        }
        Ok((asked >= 2).then_some(()))
    })
    .await
    .unwrap();
    app.shop.go.add_permits(1);
    assert_eq!(first.await.unwrap().status, 200);
    let second = second.await.unwrap();
    assert!(second.is_replayed() && second.body == b"charged", "{second:?}");
    assert_eq!(*app.shop.calls.lock().await, ["k 1"]);
}

/// Opens a handle whose process has this many places to wait, and a layer for charges that waits a
/// minute.
async fn waiting<DB: Keys>(
    pool: &sqlx::Pool<DB>,
    options: KeyOptions,
) -> (IdempotencyKeys<DB>, IdempotencyLayer<DB>) {
    let keys = IdempotencyKeys::open(pool.clone(), options).await.unwrap();
    let charges = IdempotencyLayer::leased(keys.clone(), "/charges", tenant).unwrap();
    (keys, charges.wait_max(Duration::from_secs(60)))
}

async fn waits<DB: Keys>(keys: &IdempotencyKeys<DB>, count: usize) {
    let what = format!("{count} requests wait");
    tests::eventually(&what, async || Ok((keys.waiters() == count).then_some(()))).await.unwrap();
}

async fn a_request_that_waits_gets_the_outcome_of_another_process<DB: Keys>(db: Database<DB>) {
    let here = app(&db, |layers| layers).await;
    let first = tokio::spawn(here.send(Ask { order: "wait", ..CHARGE }));
    here.called().await;
    let (keys, charges) = waiting(&db.service, KeyOptions::default()).await;
    let there = app(&db, |(orders, _)| (orders, charges)).await;
    let second = tokio::spawn(there.send(CHARGE));
    waits(&keys, 1).await;
    here.shop.go.add_permits(1);
    assert_eq!(first.await.unwrap().status, 200);
    let second = second.await.unwrap();
    assert!(second.is_replayed() && second.body == b"charged", "{second:?}");
    assert_eq!((here.calls().await, there.calls().await, keys.waiters()), (1, 0, 0));
}

async fn a_request_that_waits_runs_when_the_first_one_has_failed<DB: Keys>(db: Database<DB>) {
    let (keys, charges) = waiting(&db.service, KeyOptions::default()).await;
    let app = app(&db, |(orders, _)| (orders, charges)).await;
    // It answers 503 once it may go on.
    let first = tokio::spawn(app.send(Ask { order: "wait, fail", ..CHARGE }));
    app.called().await;
    let second = tokio::spawn(app.send(Ask { order: "wait", ..CHARGE }));
    waits(&keys, 1).await;
    app.shop.go.add_permits(1);
    assert_eq!(first.await.unwrap().status, 503);
    // While it runs itself, it waits for no other request.
    tests::eventually("the second one runs", async || Ok((app.calls().await == 2).then_some(())))
        .await
        .unwrap();
    waits(&keys, 0).await;
    app.shop.go.add_permits(1);
    let second = second.await.unwrap();
    assert_eq!((second.status, second.is_replayed()), (200, false));
    assert_eq!(*app.shop.calls.lock().await, ["k 1", "k 2"]);
}

async fn a_request_waits_no_longer_than_its_route_allows<DB: Keys>(db: Database<DB>) {
    let limit = Duration::from_millis(300);
    let app = app(&db, |(orders, charges)| (orders, charges.wait_max(limit))).await;
    let first = tokio::spawn(app.send(Ask { order: "wait", ..CHARGE }));
    app.called().await;
    let begun_at = std::time::Instant::now();
    let second = app.send(CHARGE).await;
    assert!(begun_at.elapsed() >= limit);
    assert_eq!((second.status, second.code().as_str()), (409, "idempotency_key_in_flight"));
    let after: u64 = second.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&after), "{after}");
    app.shop.go.add_permits(1);
    assert_eq!(first.await.unwrap().status, 200);
}

/// Goal: any number of repeated requests takes a bounded number of places, and none of the pool's
/// connections. Oracle: those above the limits get 409 at once, and a request with another key is
/// answered although the pool has one connection.
async fn requests_that_wait_are_bounded_and_hold_no_connection<DB: Keys>(db: Database<DB>) {
    let connect = db.service.connect_options();
    let one = sqlx::pool::PoolOptions::<DB>::new().max_connections(1);
    let pool = one.connect_with((*connect).clone()).await.unwrap();
    let (keys, charges) = waiting(&pool, KeyOptions::default().waiters_max(3).waiters_per_key_max(2)).await;
    let app = app(&db, |(orders, _)| (orders, charges)).await;
    let charge = |key, order| app.send(Ask { key, order, ..CHARGE });
    let mut first = Vec::new();
    for key in ["a", "b"] {
        first.push(tokio::spawn(charge(key, "wait")));
        tests::eventually("it runs", async || Ok((app.calls().await == first.len()).then_some(())))
            .await
            .unwrap();
    }
    let mut waiting = vec![tokio::spawn(charge("a", "")), tokio::spawn(charge("a", ""))];
    waits(&keys, 2).await;
    let refused = charge("a", "").await;
    assert_eq!((refused.status, refused.code().as_str()), (409, "idempotency_key_in_flight"));
    assert!(refused.header("retry-after").is_some());
    waiting.push(tokio::spawn(charge("b", "")));
    waits(&keys, 3).await;
    assert_eq!(charge("b", "").await.status, 409, "the process has no place left");
    assert_eq!(charge("c", "").await.status, 200, "what need not wait runs");
    app.shop.go.add_permits(2);
    for first in first {
        assert_eq!(first.await.unwrap().status, 200);
    }
    for waiting in waiting {
        let answer = waiting.await.unwrap();
        assert!(answer.is_replayed() && answer.body == b"charged", "{answer:?}");
    }
    assert_eq!((app.calls().await, keys.waiters()), (3, 0));
    pool.close().await;
}

async fn a_client_that_is_gone_frees_its_place<DB: Keys>(db: Database<DB>) {
    let (keys, charges) = waiting(&db.service, KeyOptions::default().waiters_max(1)).await;
    let app = app(&db, |(orders, _)| (orders, charges)).await;
    let first = tokio::spawn(app.send(Ask { order: "wait", ..CHARGE }));
    app.called().await;
    let gone = tokio::spawn(app.send(CHARGE));
    waits(&keys, 1).await;
    gone.abort();
    assert!(gone.await.unwrap_err().is_cancelled());
    waits(&keys, 0).await;
    let third = tokio::spawn(app.send(CHARGE));
    waits(&keys, 1).await;
    app.shop.go.add_permits(1);
    assert_eq!(first.await.unwrap().status, 200);
    assert!(third.await.unwrap().is_replayed());
    assert_eq!(app.calls().await, 1);
}

async fn a_hundred_requests_that_wait_get_the_stored_response(db: Database<Postgres>) {
    let keys = IdempotencyKeys::open(db.service.clone(), KeyOptions::default().waiters_per_key_max(100));
    let orders = IdempotencyLayer::transactional(keys.await.unwrap(), "/orders", tenant).unwrap();
    let app = app(&db, |(_, charges)| (orders.wait_max(Duration::from_secs(60)), charges)).await;
    let racing: Vec<_> = (0..100).map(|_| tokio::spawn(app.send(ASK))).collect();
    let mut ran = 0;
    for racer in racing {
        let answer = racer.await.unwrap();
        assert_eq!(answer.status, 201, "{answer:?}");
        ran += usize::from(!answer.is_replayed());
    }
    assert_eq!((ran, all_effects(&db).await), (1, 1));
}

async fn a_route_may_let_requests_wait_without_a_limit<DB: Keys>(db: Database<DB>) {
    let app = app(&db, |(orders, charges)| (orders.wait_max(Duration::MAX), charges)).await;
    assert_eq!(app.send(ASK).await.status, 201);
}

async fn without_a_key_an_optional_route_runs_each_time<DB: Keys>(db: Database<DB>) {
    let app = app(&db, |(orders, charges)| (orders.optional(), charges)).await;
    for status in ["", "", "500"] {
        app.send(Ask { key: "", order: status, ..ASK }).await;
    }
    assert_eq!((all_effects(&db).await, app.calls().await), (2, 3), "in a transaction all the same");
}

async fn a_transaction_that_outlives_its_handler_is_rolled_back<DB: Keys>(db: Database<DB>) {
    let app = app(&db, |layers| layers).await;
    let answer = app.send(Ask { order: "leak", ..ASK }).await;
    assert_eq!((answer.status, answer.code().as_str()), (500, "idempotency_failed"));
    app.shop.go.add_permits(1);
    tests::eventually("the key is free", async || Ok((app.send(ASK).await.status == 201).then_some(())))
        .await
        .unwrap();
    assert_eq!(all_effects(&db).await, 1, "only of the second one");
}

/// With a key or without one, no answer claims that its effect was stored.
async fn a_transaction_that_its_handler_ended_is_an_error<DB: Keys>(db: Database<DB>) {
    let app = app(&db, |(orders, charges)| (orders.optional(), charges)).await;
    for key in ["\"k\"", ""] {
        let answer = app.send(Ask { key, order: "drop a begin", ..ASK }).await;
        assert_eq!((answer.status, answer.code().as_str()), (500, "idempotency_failed"), "{key}");
    }
    assert_eq!(all_effects(&db).await, 0);
    // The key's lock is released when the connection is back in the pool.
    tests::eventually("the key is free", async || Ok((app.send(ASK).await.status == 201).then_some(())))
        .await
        .unwrap();
    assert_eq!(all_effects(&db).await, 1);
}

async fn a_response_with_trailers_is_refused<DB: Keys>(db: Database<DB>) {
    let app = app(&db, |layers| layers).await;
    let answer = app.send(Ask { order: "trailers", ..ASK }).await;
    assert_eq!((answer.status, answer.code().as_str()), (500, "response_not_storable"));
    assert_eq!(all_effects(&db).await, 0);
}

async fn a_hundred_requests_at_once_run_once(db: Database<Postgres>) {
    let app = app(&db, |layers| layers).await;
    for round in 0..5 {
        let key = format!("\"round-{round}\"");
        let racing: Vec<_> = (0..100).map(|_| tokio::spawn(app.send(Ask { key: &key, ..ASK }))).collect();
        let mut ran = 0;
        for racer in racing {
            let answer = racer.await.unwrap();
            match answer.status {
                201 => ran += usize::from(!answer.is_replayed()),
                409 => assert_eq!(answer.header("retry-after"), Some("1")),
                other => panic!("{other}"),
            }
        }
        assert_eq!(ran, 1, "round {round}");
        assert_eq!(all_effects(&db).await, round + 1);
    }
}

async fn a_service_whose_database_is_away_says_when_to_come_again(db: Database<Postgres>) {
    let app = app(&db, |layers| layers).await;
    db.service.close().await;
    let answer = app.send(ASK).await;
    assert_eq!((answer.status, answer.code().as_str()), (503, "idempotency_unavailable"));
    assert_eq!(answer.header("retry-after"), Some("1"));
}
