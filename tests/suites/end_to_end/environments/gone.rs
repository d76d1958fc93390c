//! A database whose host disappears for longer than any call waits, and comes back.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use idempotency::{ClaimOptions, Claimed, Ending, IdempotencyKeys, KeyId, KeyOptions};
use inbox::{Consumer, ConsumerName, Inbox, InboxOptions, Shutdown, WaitReason};
use message::Fingerprint;
use outbox::Outbox;
use proxy::{Conditions, End, Flow, Pass, Proxy};
use saga::{Run, Sagas, Started};
use sqlx::postgres::PgConnectOptions;
use sqlx::{PgPool, Postgres};
use tests::eventually::when;
use tests::relay_process::Config;
use tests::workload::Workload;
use tests::{Broker, Database, Failure, Outcome, RelayProcess, Role, Stage, eventually};
use tokio::task::JoinHandle;
use tokio_util::task::AbortOnDropHandle;

use super::{ORDERS, key, nothing_is_missing};
use crate::chunks::Apply;

tests::cases! { "environments/gone/{case}/{on}":
    postgres rabbitmq { all_are_back_a_minute_after_their_database = all_are_back }
}

/// Longer than the longest default limit of a call, which is that of an inbox: 120 s. Relay, keys
/// and sagas wait for 30 s.
const OUTAGE: Duration = Duration::from_secs(150);
/// The promise: everything is settled this long after the host is back.
const BACK_WITHIN: Duration = Duration::from_secs(60);
/// Maximum duration of a request with a key. It makes two calls, each of which waits for a
/// connection and for an answer.
const REQUEST_MAX: Duration = Duration::from_secs(120);
/// Orders under way when the host disappears, and the keys among which they are divided.
const UNDER_WAY: usize = 600;
const KEYS: usize = 30;
/// Sagas that are started just before the host disappears, and as many again while it is away.
const SAGAS: i64 = 12;
/// The steps of each saga.
const STEPS: [&str; 2] = ["pay", "ship"];
/// Their effects.
const PROGRESS: &str =
    "CREATE TABLE progress (n bigserial PRIMARY KEY, saga bigint NOT NULL, step text NOT NULL)";

/// Callers of idempotency keys, one request after another, each with its own key.
struct Requests {
    stop: Arc<AtomicBool>,
    served: Arc<AtomicUsize>,
    failed: Arc<AtomicUsize>,
    /// Ends with the duration of the longest request.
    task: JoinHandle<Duration>,
}

impl Requests {
    fn start(keys: IdempotencyKeys<Postgres>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let served = Arc::new(AtomicUsize::new(0));
        let failed = Arc::new(AtomicUsize::new(0));
        let ended = Arc::clone(&stop);
        let good = Arc::clone(&served);
        let bad = Arc::clone(&failed);
        let task = tokio::spawn(async move {
            let mut number = 0_usize;
            let mut longest = Duration::ZERO;
            while !ended.load(Ordering::Relaxed) {
                number += 1;
                let begun_at = Instant::now();
                let count = if request(&keys, number).await.is_ok() { &good } else { &bad };
                count.fetch_add(1, Ordering::Relaxed);
                longest = longest.max(begun_at.elapsed());
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            longest
        });
        Self { stop, served, failed, task }
    }

    /// Waits until some requests more are served.
    async fn go_on(&self) -> Outcome {
        let from = self.served.load(Ordering::Relaxed);
        eventually("requests are served", || async {
            Ok(when(self.served.load(Ordering::Relaxed) >= from + 3))
        })
        .await
    }

    /// Stops after the present request. Returns the duration of the longest one.
    async fn stop(self) -> Result<Duration, Failure> {
        self.stop.store(true, Ordering::Relaxed);
        Ok(self.task.await?)
    }
}

/// Runs a request: claims its key and stores the outcome.
async fn request(keys: &IdempotencyKeys<Postgres>, number: usize) -> Outcome {
    let id = KeyId::of_texts("tenant-1", "refund", &format!("request-{number}"))?;
    let fingerprint = Fingerprint::of_parts("refund", "", b"1250");
    let Claimed::Acquired(claim) = keys.claim(&id, fingerprint, &ClaimOptions::default()).await? else {
        return Err("the key was not free".into());
    };
    claim.complete(Ending::Succeeded, b"refunded").await?;
    Ok(())
}

/// Returns a consumer of the workload's orders, as a service builds it.
async fn consumer(
    workload: &Workload<Postgres>,
    services: &Database<Postgres>,
) -> Result<Consumer<Postgres>, Failure> {
    let inbox = Inbox::open(services.consumer.clone(), InboxOptions::default()).await?;
    let broker = Arc::clone(&workload.broker);
    let topic = workload.topic.clone();
    let consumer = Consumer::builder(inbox, ConsumerName::new("workload")?)
        .subscribe(move || {
            let broker = Arc::clone(&broker);
            let topic = topic.clone();
            async move {
                let subscribed = broker.join("workload", &topic).await;
                subscribed.map_err(|failure| message::SubscriptionError::lost(failure.to_string()))
            }
        })
        .handler(Apply)
        .build()?;
    Ok(consumer)
}

/// Opens sagas of two steps, each of which has an effect.
async fn checkout(pool: PgPool) -> Result<Sagas<Postgres>, Failure> {
    let sagas = Sagas::builder(pool, Outbox::new())
        .saga("checkout", 1, async |saga: &mut Run<Postgres>, number: i64| {
            for step in STEPS {
                let done = saga.step(step, async |tx| {
                    let insert = sqlx::query("INSERT INTO progress (saga, step) VALUES ($1, $2)");
                    insert.bind(number).bind(step).execute(&mut **tx).await?;
                    Ok(())
                });
                done.await?;
            }
            Ok(())
        })
        .open()
        .await?;
    Ok(sagas)
}

/// Starts sagas with these numbers through a database.
async fn start(sagas: &Sagas<Postgres>, database: &Database<Postgres>, numbers: Range<i64>) -> Outcome {
    for number in numbers {
        let mut tx = Outbox::new().begin(&database.service).await?;
        let started = sagas.start(&mut tx, "checkout", &format!("order-{number}"), &number).await?;
        assert_eq!(started, Started::Started);
        tx.commit().await?;
    }
    Ok(())
}

/// Goal: relay, consumer, idempotency keys and sagas, all with their default limits, lose the host
/// of their database for longer than any of these limits. No packet arrives, and no connection
/// ends. Nothing hangs meanwhile, and a minute after the return everything is settled. Oracle: the
/// relay's log, what the consumer says that it waits for, and the duration of the longest request;
/// on connections that bypass the proxy, the checker, the steps of the sagas in their order, and no
/// dead letter; `relay verify`.
async fn all_are_back(stage: Stage, broker: Arc<dyn Broker>) -> Outcome {
    let direct = Database::<Postgres>::migrated(&stage).await?;
    direct.execute(PROGRESS).await?;
    direct.let_use(Role::Service, "progress").await?;
    let workload = Workload::<Postgres>::on(direct, broker).await?;
    let direct = &workload.database;
    let server: PgConnectOptions = direct.url.parse()?;
    let server = format!("{}:{}", server.get_host(), server.get_port());
    let wire = Proxy::start(0, server.as_str()).await?;
    let url = direct.url.replace(&server, &wire.address().to_string());
    assert_ne!(url, direct.url, "the URL names {server}");
    // Without TLS: sqlx waits for the peer when it closes a TLS connection.
    let services = direct.reached_at(&stage, format!("{url}?sslmode=disable"))?;

    let section = workload.broker.relay_section().ok_or("no section")?;
    let place = services.relay_url()?;
    let text = format!("[[pipeline]]\nname = \"orders\"\n[pipeline.database]\nurl = {place:?}\n{section}");
    let config = Config::text(&stage, &text)?;
    let mut relay = RelayProcess::start(&stage, &config)?;
    let consumer = consumer(&workload, &services).await?;
    let status = consumer.status();
    let shutdown = Shutdown::new();
    let consuming = tokio::spawn(consumer.run(shutdown.clone()));
    let sagas = checkout(services.service.clone()).await?;
    let working = sagas.clone();
    let worker =
        AbortOnDropHandle::new(tokio::spawn(async move { working.run(std::future::pending()).await }));
    let keys = IdempotencyKeys::open(services.service.clone(), KeyOptions::default()).await?;
    let requests = Requests::start(keys);
    workload.place_many(3, ORDERS).await?;
    workload.settled().await?;
    requests.go_on().await?;

    // The host disappears in the middle of work of every kind.
    let mut tx = workload.begin().await?;
    for number in 0..UNDER_WAY {
        workload.place_in(&mut tx, &format!("key-{}", number % KEYS)).await?;
    }
    tx.commit().await?;
    start(&sagas, direct, 0..SAGAS).await?;
    workload.applied(i64::try_from(ORDERS + 1)?).await?;
    let lost = Flow { pass: Pass::Lose, ..Flow::default() };
    wire.set(Conditions { requests: lost, answers: lost, refuse: false });
    wire.abandon(End::Server);
    start(&sagas, direct, SAGAS..2 * SAGAS).await?;
    workload.place_many(3, ORDERS).await?;
    tokio::time::sleep(OUTAGE).await;
    relay.tells("did not answer within").await?;
    eventually("the consumer waits for the end of the outage", || async {
        Ok(when(status.waits().iter().any(|wait| wait.reason == WaitReason::Outage)))
    })
    .await?;
    assert!(requests.failed.load(Ordering::Relaxed) > 0, "no request ended without the database");

    wire.heal();
    let back = async {
        workload.settled().await?;
        let finished = "SELECT count(*) FROM saga WHERE state = 'finished'";
        eventually("every saga is finished", || async {
            Ok(when(direct.integer(finished).await? == 2 * SAGAS))
        })
        .await?;
        requests.go_on().await
    };
    let back = tokio::time::timeout(BACK_WITHIN, Box::pin(back)).await;
    back.map_err(|_| format!("not within {BACK_WITHIN:?} of the return; {:?}", status.waits()))??;

    workload.place_many(3, ORDERS).await?;
    workload.settled().await?;
    key(&services).await?;
    let longest = requests.stop().await?;
    assert!(longest < REQUEST_MAX, "a request took {longest:?}");
    let steps = direct.texts("SELECT saga || ' ' || step FROM progress ORDER BY saga, n").await?;
    let expected: Vec<String> =
        (0..2 * SAGAS).flat_map(|saga| STEPS.map(|step| format!("{saga} {step}"))).collect();
    assert_eq!(steps, expected, "each step takes effect once, in its order");
    assert_eq!(direct.integer("SELECT count(*) FROM inbox_dead_letter").await?, 0);
    assert!(relay.has_ended()?.is_none(), "the relay has ended: {}", relay.log()?);
    worker.abort();
    shutdown.graceful.cancel();
    consuming.await??;
    relay.stop().await?;
    nothing_is_missing(&stage, &workload).await
}
