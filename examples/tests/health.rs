//! The probes of a service, from its start to its stop.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use examples::health::{Health, probes};
use examples::order::OrderPlaced;
use examples::setting::Failure;
use message::{MaxInFlightPerKey, SizeLimit, Topic};
use outbox_toolkit::memory::Broker;
use outbox_toolkit::prelude::*;
use tokio::sync::{Semaphore, oneshot};
use tower_service::Service as _;

/// Asks a probe. Returns its status and text.
async fn probe(router: &Router, path: &str) -> Result<(u16, String), Failure> {
    let answer = router.clone().call(Request::get(path).body(Body::empty())?).await?;
    let status = answer.status().as_u16();
    Ok((status, String::from_utf8(to_bytes(answer.into_body(), 1 << 16).await?.to_vec())?))
}

/// Waits until a probe answers with a status and a text that contains this one.
async fn until(router: &Router, path: &str, status: u16, text: &str) -> Result<(), Failure> {
    let mut last = (0, String::new());
    for _ in 0..600 {
        last = probe(router, path).await?;
        if last.0 == status && last.1.contains(text) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    anyhow::bail!("{path} never answers {status} with {text:?}, but {last:?}")
}

/// Goal: a service is alive while its broker is away, is ready once it reads, and its probes say
/// what it waits for, and what its relay does. Oracle: the answers of both routes.
#[tokio::test]
async fn probes_say_what_a_service_waits_for() -> Result<(), Failure> {
    let folder = std::env::temp_dir().join(format!("health-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let url = format!("sqlite://{}?mode=rwc", folder.join("orders.db").display());
    let pool = outbox_toolkit::pool::<Sqlite>(&url).await?;
    migrate(&pool).await?;
    let broker = Broker::new();
    let relay = Relay::builder(&pool)
        .connector(broker.connector(MaxInFlightPerKey::Pipelined), SizeLimit::PORTABLE)
        .build()?;
    let gate = Arc::new(Semaphore::new(0));
    let handler = Arc::clone(&gate);
    let consumer = Consumer::builder(Inbox::open(pool.clone(), InboxOptions::default()).await?, "billing")
        .on(async move |_: &mut Tx<Sqlite>, _: OrderPlaced| {
            handler.acquire().await.map_err(|error| HandlerError::retry(error.to_string()))?.forget();
            Ok::<_, HandlerError>(())
        })
        .subscribe(broker.subscriber("billing", [Topic::new("orders")?]))
        .build()?;
    let health = Health { consumer: consumer.status(), relay: relay.health() };
    let router = probes(health.clone());
    assert_eq!(probe(&router, "/readyz").await?.0, 503, "it does not run yet");

    broker.faults().unreachable();
    let (stop, stopped) = oneshot::channel::<()>();
    let consuming = tokio::spawn(consumer.run(async { drop(stopped.await) }));
    let (stop_relay, relay_stopped) = oneshot::channel::<()>();
    let relaying = tokio::spawn(relay.run(async { drop(relay_stopped.await) }));
    until(&router, "/livez", 200, "waits for broker: ").await?;
    until(&router, "/readyz", 503, "reads nothing yet").await?;

    broker.faults().reachable();
    until(&router, "/readyz", 200, "waits for message: ").await?;
    until(&router, "/readyz", 200, "relay leads").await?;
    let outbox = Outbox::<Sqlite>::new();
    let mut tx = outbox.begin(&pool).await?;
    let enqueued = tx.enqueue(&OrderPlaced { order: 1, cents: 1_250 }).await?;
    tx.commit().await?;
    until(&router, "/readyz", 200, &format!("waits for handler of {}: ", enqueued.message_id())).await?;
    gate.add_permits(1);
    until(&router, "/readyz", 200, "waits for message: ").await?;

    drop(stop);
    consuming.await??;
    until(&router, "/livez", 503, "relay leads").await?;
    drop(stop_relay);
    relaying.await?;
    until(&router, "/livez", 503, "relay has stopped for ").await?;

    // A relay whose outbox has no tables yet.
    let url = format!("sqlite://{}?mode=rwc", folder.join("empty.db").display());
    let empty = outbox_toolkit::pool::<Sqlite>(&url).await?;
    let relay = Relay::builder(&empty)
        .connector(broker.connector(MaxInFlightPerKey::Pipelined), SizeLimit::PORTABLE)
        .build()?;
    let router = probes(Health { relay: relay.health(), ..health });
    let (stop_relay, relay_stopped) = oneshot::channel::<()>();
    let relaying = tokio::spawn(relay.run(async { drop(relay_stopped.await) }));
    until(&router, "/readyz", 503, "relay waits (run `relay migrate up --line outbox`) for ").await?;
    drop(stop_relay);
    relaying.await?;
    empty.close().await;
    pool.close().await;
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}
