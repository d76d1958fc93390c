//! The effect of a request as its answer reports it, and the later state of its key.

use std::sync::Arc;

use super::http::{ASK, App, Ask, CHARGE, all_effects, app};
use super::*;
use axum::Extension;
use axum::body::Body;
use axum::http::{HeaderMap, Response, StatusCode};
use axum::response::IntoResponse as _;
use axum::routing::post;
use idempotency::OnExpired;
use idempotency::http::{Effect, HeldTransaction, IdempotencyLayer, LeasedKey};
use inbox::Tenant;
use outbox::{NewMessage, Outbox};

tests::cases! { "keys/effects/{on}/{case}":
    every {
        a_refusal_leaves_no_row_and_no_message_behind,
        a_broken_constraint_is_answered_and_stored_as_a_refusal,
        under_refuse_an_answer_that_is_not_stored_waits_for_an_operator,
        an_answer_may_say_that_its_writes_are_kept_or_not,
        a_route_may_keep_what_its_refusals_write,
        a_route_chooses_the_answers_that_it_stores,
        an_enqueue_that_failed_is_not_committed_whatever_the_handler_answers,
        what_a_leased_answer_says_decides_about_its_key,
        a_handler_hears_that_its_lease_is_lost,
        a_leased_handler_sees_whether_there_is_a_key,
    }
    on_postgres { a_hundred_refusals_at_once_run_once }
}

/// Writes an order and its message before it finds out that the request must be refused.
async fn refuse<DB: Keys>(Extension(held): Extension<HeldTransaction<DB>>) -> StatusCode {
    let mut tx = held.lock().await.unwrap();
    DB::apply(&mut tx, String::from("refused")).await.unwrap();
    tx.enqueue(NewMessage::new("orders")).await.unwrap();
    StatusCode::UNPROCESSABLE_ENTITY
}

/// Reports a violated unique constraint as a refusal.
async fn unique<DB: Keys>(Extension(held): Extension<HeldTransaction<DB>>, body: String) -> StatusCode {
    let mut tx = held.lock().await.unwrap();
    match DB::apply(&mut tx, body).await {
        Ok(()) => StatusCode::CREATED,
        Err(error) if error.as_database_error().is_some_and(|error| error.is_unique_violation()) => {
            StatusCode::UNPROCESSABLE_ENTITY
        }
        Err(error) => panic!("{error}"),
    }
}

async fn with<DB: Keys>(
    db: &Database<DB>,
    path: &'static str,
    handler: axum::routing::MethodRouter<()>,
) -> App {
    let tenant = |_: &axum::http::request::Parts| Tenant::new("t1").ok();
    let keys = open(db).await.with_outbox(Outbox::new());
    let layer = IdempotencyLayer::transactional(keys, path, tenant).unwrap().optional();
    App { router: axum::Router::new().route(path, handler.layer(layer)), shop: Arc::default() }
}

/// Writes an order and enqueues to the topic of the header `x-do`; ignores that it is refused.
async fn swallow<DB: Keys>(
    Extension(held): Extension<HeldTransaction<DB>>,
    headers: HeaderMap,
) -> StatusCode {
    let topic = headers.get("x-do").map_or("", |value| value.to_str().unwrap());
    let mut tx = held.lock().await.unwrap();
    DB::apply(&mut tx, String::from("order")).await.unwrap();
    tx.enqueue(NewMessage::new("orders")).await.unwrap();
    match topic {
        "staged" => tx.stage(NewMessage::new(topic)).is_ok(),
        "refused" => {
            assert!(tx.enqueue(NewMessage::new("")).await.is_err());
            return StatusCode::UNPROCESSABLE_ENTITY;
        }
        topic => tx.enqueue(NewMessage::new(topic)).await.is_ok(),
    };
    StatusCode::CREATED
}

/// Oracle: before, the order was committed without its message, and the answer 201 was stored.
async fn an_enqueue_that_failed_is_not_committed_whatever_the_handler_answers<DB: Keys>(db: Database<DB>) {
    let app = with(&db, "/swallowed", post(swallow::<DB>)).await;
    let ask = Ask { path: "/swallowed", ..ASK };
    let messages = async || db.integer("SELECT count(*) FROM outbox_message").await.unwrap();
    for key in ["\"k\"", ""] {
        let answer = app.send(Ask { key, ..ask }).await;
        assert_eq!((answer.status, answer.is_replayed()), (500, false), "{key}");
        assert_eq!((all_effects(&db).await, messages().await), (0, 0), "{key}");
    }
    for is_replayed in [false, true] {
        let answer = app.send(Ask { order: "staged", ..ask }).await;
        assert_eq!((answer.status, answer.is_replayed()), (201, is_replayed), "the key was free");
        assert_eq!((all_effects(&db).await, messages().await), (1, 2));
        let answer = app.send(Ask { order: "refused", key: "\"other\"", ..ask }).await;
        assert_eq!((answer.status, answer.is_replayed()), (422, is_replayed), "a refusal is stored");
        assert_eq!((all_effects(&db).await, messages().await), (1, 2));
    }
}

const REFUSED: Ask<'static> = Ask { path: "/refused", ..ASK };

async fn a_refusal_leaves_no_row_and_no_message_behind<DB: Keys>(db: Database<DB>) {
    let app = with(&db, "/refused", post(refuse::<DB>)).await;
    for is_replayed in [false, true] {
        let answer = app.send(REFUSED).await;
        assert_eq!((answer.status, answer.is_replayed()), (422, is_replayed));
        assert_eq!(all_effects(&db).await, 0, "the order");
        assert_eq!(db.integer("SELECT count(*) FROM outbox_message").await.unwrap(), 0, "its message");
    }
}

async fn a_broken_constraint_is_answered_and_stored_as_a_refusal<DB: Keys>(db: Database<DB>) {
    db.execute("CREATE UNIQUE INDEX once ON effect (payload)").await.unwrap();
    let app = with(&db, "/unique", post(unique::<DB>)).await;
    let ask = Ask { path: "/unique", body: "an order", ..ASK };
    assert_eq!(app.send(ask).await.status, 201);
    for is_replayed in [false, true] {
        let answer = app.send(Ask { key: "\"other\"", ..ask }).await;
        assert_eq!((answer.status, answer.is_replayed()), (422, is_replayed));
    }
    assert_eq!(all_effects(&db).await, 1);
}

async fn under_refuse_an_answer_that_is_not_stored_waits_for_an_operator<DB: Keys>(db: Database<DB>) {
    let refuse = ClaimOptions::default().on_expired(OnExpired::Refuse);
    let app = app(&db, |(orders, charges)| (orders, charges.claim(refuse))).await;
    for status in ["500", "503", "408", "429"] {
        let key = format!("\"{status}\"");
        let charge = Ask { key: &key, order: status, ..CHARGE };
        assert_eq!(app.send(charge).await.status.to_string(), status);
        let again = app.send(charge).await;
        assert_eq!((again.status, again.code().as_str()), (409, "idempotency_key_stuck"), "{status}");
    }
    assert_eq!(app.calls().await, 4, "nobody is charged twice");
}

/// The key stays held while the writes of its handler are rolled back.
async fn a_hundred_refusals_at_once_run_once(db: Database<Postgres>) {
    let app = with(&db, "/refused", post(refuse::<Postgres>)).await;
    for round in 0..5 {
        let key = format!("\"round-{round}\"");
        let racing: Vec<_> = (0..100).map(|_| tokio::spawn(app.send(Ask { key: &key, ..REFUSED }))).collect();
        let mut ran = 0;
        for racer in racing {
            let answer = racer.await.unwrap();
            match answer.status {
                422 => ran += usize::from(!answer.is_replayed()),
                409 => assert_eq!(answer.header("retry-after"), Some("1")),
                other => panic!("{other}"),
            }
        }
        assert_eq!(ran, 1, "round {round}");
    }
    assert_eq!(all_effects(&db).await, 0);
}

/// Answers with the status and the effect that the header `x-do` names.
async fn say<DB: Keys>(held: Option<Extension<HeldTransaction<DB>>>, headers: HeaderMap) -> Response<Body> {
    if let Some(Extension(held)) = held {
        DB::apply(&mut *held.lock().await.unwrap(), String::from("effect")).await.unwrap();
    }
    let told = headers["x-do"].to_str().unwrap();
    let (status, effect) = told.split_once(' ').unwrap();
    let effect = match effect {
        "happened" => Effect::Happened,
        "none" => Effect::None,
        _ => Effect::Unknown,
    };
    (Extension(effect), status.parse::<StatusCode>().unwrap()).into_response()
}

async fn an_answer_may_say_that_its_writes_are_kept_or_not<DB: Keys>(db: Database<DB>) {
    let app = with(&db, "/say", post(say::<DB>)).await;
    for (told, status, kept) in [("422 happened", 422, 1), ("200 none", 200, 0), ("422 unknown", 422, 0)] {
        let key = format!("\"{told}\"");
        for is_replayed in [false, true] {
            let answer = app.send(Ask { path: "/say", key: &key, order: told, ..ASK }).await;
            assert_eq!((answer.status, answer.is_replayed()), (status, is_replayed), "{told}");
        }
        assert_eq!(all_effects(&db).await, kept, "{told}");
        db.execute("DELETE FROM effect").await.unwrap();
    }
}

async fn a_route_may_keep_what_its_refusals_write<DB: Keys>(db: Database<DB>) {
    let app = app(&db, |(orders, charges)| (orders.keep_when(|_| true), charges)).await;
    assert_eq!(app.send(Ask { order: "422", ..ASK }).await.status, 422);
    assert_eq!(all_effects(&db).await, 1);
}

/// Goal: `store_when` replaces the default, by which 404 is stored and 401 is not.
/// Oracle: whether the second answer is a replay, and how often the handler ran.
async fn a_route_chooses_the_answers_that_it_stores<DB: Keys>(db: Database<DB>) {
    let chosen = |status: StatusCode| status != StatusCode::NOT_FOUND;
    let app = app(&db, |(orders, charges)| (orders.store_when(chosen), charges)).await;
    // An answer of 5xx is never stored.
    for (order, is_stored) in [("401", true), ("404", false), ("500", false)] {
        let key = format!("\"{order}\"");
        for is_replayed in [false, is_stored] {
            let answer = app.send(Ask { key: &key, order, ..ASK }).await;
            assert_eq!((answer.status.to_string().as_str(), answer.is_replayed()), (order, is_replayed));
        }
    }
    assert_eq!((all_effects(&db).await, app.calls().await), (0, 5));
}

async fn leased<DB: Keys>(
    db: &Database<DB>,
    path: &'static str,
    on_expired: OnExpired,
    handler: axum::routing::MethodRouter<()>,
) -> App {
    let tenant = |_: &axum::http::request::Parts| Tenant::new("t1").ok();
    let layer = IdempotencyLayer::leased(open(db).await, path, tenant).unwrap().optional();
    let layer = layer.claim(ClaimOptions::default().on_expired(on_expired));
    App { router: axum::Router::new().route(path, handler.layer(layer)), shop: Arc::default() }
}

async fn what_a_leased_answer_says_decides_about_its_key<DB: Keys>(db: Database<DB>) {
    for (on_expired, told, again) in [
        (OnExpired::Refuse, "503 none", (503, "")),
        (OnExpired::Refuse, "503 unknown", (409, "idempotency_key_stuck")),
        (OnExpired::Refuse, "200 unknown", (409, "idempotency_key_stuck")),
        (OnExpired::TakeOver, "503 none", (503, "")),
        (OnExpired::TakeOver, "503 happened", (409, "idempotency_key_in_flight")),
        (OnExpired::TakeOver, "200 unknown", (409, "idempotency_key_in_flight")),
    ] {
        let app = leased(&db, "/say", on_expired, post(say::<DB>)).await;
        let key = format!("\"{told} {}\"", on_expired.as_str());
        let ask = Ask { path: "/say", key: &key, order: told, ..ASK };
        app.send(ask).await;
        let answer = app.send(ask).await;
        let code = if answer.status == 409 { answer.code() } else { String::new() };
        assert_eq!((answer.status, code.as_str()), again, "{on_expired:?} {told}");
    }
    db.execute(DB::LAPSE).await.unwrap();
    let app = leased(&db, "/say", OnExpired::TakeOver, post(say::<DB>)).await;
    let ask = Ask { path: "/say", key: "\"200 unknown take_over\"", order: "200 happened", ..ASK };
    assert_eq!(app.send(ask).await.status, 200, "taken over when the lease has expired");
    let ask = Ask { key: "\"200 unknown refuse\"", ..ask };
    assert_eq!(app.send(ask).await.status, 409, "whatever the route's policy is by now");
}

async fn a_handler_hears_that_its_lease_is_lost<DB: Keys>(db: Database<DB>) {
    let wait = async |Extension(key): Extension<LeasedKey>| {
        assert!(!key.is_lost());
        key.lost().await;
        assert!(key.is_lost());
        "lost"
    };
    let tenant = |_: &axum::http::request::Parts| Tenant::new("t1").ok();
    let keys = open(&db).await;
    let short = ClaimOptions::default().lease(std::time::Duration::from_secs(1));
    let layer = IdempotencyLayer::leased(keys.clone(), "/wait", tenant).unwrap().claim(short);
    let app =
        App { router: axum::Router::new().route("/wait", post(wait).layer(layer)), shop: Arc::default() };
    let name = message::MessageId::new().to_string();
    let waiting = tokio::spawn(app.send(Ask { path: "/wait", key: &format!("\"{name}\""), ..ASK }));
    let holder = tests::eventually("it is claimed", async || Ok(column(&db, &name, "holder").await.pop()));
    let holder = format!("holder={}", holder.await.unwrap());
    tests::eventually("somebody else has it", async || {
        // The test takes the key away between two renewals of the lease.
        db.execute("UPDATE idempotency_key SET holder = 'f0000000-0000-4000-8000-000000000000'").await?;
        Ok(waiting.is_finished().then_some(()))
    })
    .await
    .unwrap();
    assert_eq!(waiting.await.unwrap().status, 200);
    let key = format!("key={name} of t1 (POST /wait)");
    let told = tests::log::lines_with(&[" WARN ", "was not renewed", &key, &holder, "is_lost=true"]);
    assert_eq!(told.len(), 1, "{told:?}");
}

async fn a_leased_handler_sees_whether_there_is_a_key<DB: Keys>(db: Database<DB>) {
    let told = async |Extension(key): Extension<Option<LeasedKey>>| match key {
        Some(_) => StatusCode::CREATED,
        None => StatusCode::OK,
    };
    let app = leased(&db, "/told", OnExpired::TakeOver, post(told)).await;
    for (key, status) in [("\"k\"", 201), ("", 200), ("", 200)] {
        assert_eq!(app.send(Ask { path: "/told", key, ..ASK }).await.status, status);
    }
}
