//! Handlers that hang, block, panic or fail in ways that look like an outage: the message is
//! dead-lettered, and the consumer continues.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::inbox::broker::Broker;
use crate::inbox::chunks::chunks_of;
use crate::inbox::database::{Database, TestDatabase};
use crate::inbox::runner::{Effect, builder, start};
use crate::inbox::{consumer, keyed, message};
use async_trait::async_trait;
use inbox::{
    ConsumerBuilder, DeadLetter, DeadLetterQuery, Dialect, Handler, HandlerError, Inbox, ManyDecided, Reason,
    RedriveOptions, Requested, SeenLetter, Signature, Tenant, Tx,
};
use message::Message;
use sqlx::Postgres;
use sqlx::postgres::PgSslMode;
use tests::{Counters, eventually};

tests::cases! { "inbox/failures/{on}/{case}":
    every {
        handlers_that_hang_are_ended_and_dead_lettered,
        a_handler_that_blocks_its_thread_is_told,
        a_failure_that_looks_like_an_outage_counts_while_others_succeed,
        a_failure_without_others_is_capped_by_age,
        a_message_whose_scope_cannot_be_told_is_dead_lettered,
        a_tenant_read_from_the_payload_of_a_chunk_is_explained,
        a_redrive_that_is_requested_is_carried_out_once,
        a_request_that_accepts_late_messages_replaces_one_that_does_not,
        a_stop_during_a_redrive_counts_against_no_message,
    }
    on_postgres {
        a_statement_that_always_takes_too_long_is_dead_lettered_on_postgres,
        a_hung_statement_ends_with_its_handler_on_postgres,
        a_table_that_changes_under_a_handler_counts_no_attempt_on_postgres,
        a_session_that_became_read_only_is_not_lent_again_on_postgres,
        processes_carry_out_different_requests_at_once_on_postgres,
    }
    night on_postgres { a_database_host_that_is_gone_stops_no_consumer_on_postgres }
}

pub(super) const BATCHES: [Option<NonZeroUsize>; 2] = [None, NonZeroUsize::new(4)];

pub(super) fn in_batches<DB: TestDatabase>(
    consumer: ConsumerBuilder<DB>,
    batch: Option<NonZeroUsize>,
) -> ConsumerBuilder<DB> {
    match batch {
        Some(batch) => consumer.batch(batch),
        None => consumer,
    }
}

pub(super) async fn until(what: &str, is_so: impl AsyncFn() -> bool) {
    eventually(what, async || Ok(is_so().await.then_some(()))).await.unwrap();
}

pub(super) async fn dead_letters<DB: TestDatabase>(inbox: &Inbox<DB>) -> Vec<DeadLetter> {
    inbox.dead_letters(&DeadLetterQuery::default()).await.unwrap()
}

/// Writes an effect and hangs if the payload begins with `hangs`. Other messages are only recorded:
/// without a statement, their calls end in time however slow the server is.
#[derive(Clone, Default)]
struct Hangs(Arc<Mutex<Vec<String>>>);

#[async_trait]
impl<DB: TestDatabase + Dialect> Handler<DB> for Hangs {
    async fn handle(&self, tx: &mut Tx<DB>, message: &Message) -> Result<Option<Vec<u8>>, HandlerError> {
        if message.payload.starts_with(b"hangs") {
            DB::apply(tx, "billing", message).await?;
            std::future::pending::<()>().await;
        }
        self.0.lock().unwrap().push(String::from_utf8_lossy(&message.payload).into_owned());
        Ok(None)
    }
}

/// Goal: eight handlers that hang do not stop a consumer of eight. Oracle: the message behind them
/// is handled and settled without a dead letter, and they have no effect.
pub(super) async fn handlers_that_hang_are_ended_and_dead_lettered<DB: TestDatabase>(
    database: &Database<DB>,
) {
    let inbox = database.inbox().await;
    let handler = Hangs::default();
    for (round, batch) in BATCHES.into_iter().enumerate() {
        let hung = (0..8).map(|n| keyed(&format!("key-{n}"), &format!("hangs {round} {n}")));
        let broker = Broker::new(hung.chain([keyed("fine", &format!("fine {round}"))]));
        let consuming = builder(&inbox, &broker, Effect::works())
            .handler(handler.clone())
            .handler_timeout(Duration::from_millis(50))
            .attempts_max(2);
        let running = start(in_batches(consuming, batch));
        broker.drained().await;
        running.stop().await;
        let dead = dead_letters(&inbox).await;
        assert_eq!(dead.len(), 8 * (round + 1));
        for letter in &dead {
            assert_eq!((letter.reason, letter.attempts), (Reason::Poison, 2));
            assert!(letter.error.contains("did not finish within 50ms"), "{}", letter.error);
        }
    }
    let mut handled = handler.0.lock().unwrap().clone();
    // A batch with one that hangs is handled again, message by message.
    handled.dedup();
    assert_eq!(handled, ["fine 0", "fine 1"]);
    assert_eq!(DB::effects(&database.pool, "billing").await, [""; 0]);
}

/// Goal: a handler that cannot be stopped is at least reported. Oracle: the gauge.
async fn a_handler_that_blocks_its_thread_is_told<DB: TestDatabase>(database: &Database<DB>) {
    let counters = Counters::installed();
    let inbox = database.inbox().await;
    let broker = Broker::new([message("blocks")]);
    let told = Arc::new(AtomicBool::new(false));
    let telling = Arc::clone(&told);
    // The handler reads the gauge itself: a runtime with a blocked thread may not run other tasks.
    let handler = Effect::new(move |_, _| {
        let deadline = std::time::Instant::now() + Duration::from_mins(4);
        while std::time::Instant::now() < deadline && !telling.load(Ordering::Relaxed) {
            let blocked = counters.gauge("inbox_handlers_blocked", &[("consumer", "billing")]);
            telling.store(blocked >= 1.0, Ordering::Relaxed);
            std::thread::yield_now();
        }
        Ok(())
    });
    let running = start(builder(&inbox, &broker, handler).handler_timeout(Duration::from_millis(1)));
    broker.drained().await;
    running.stop().await;
    assert!(told.load(Ordering::Relaxed));
}

/// Goal: when the database ends a transaction for one message only, the message has failed. Oracle:
/// it is dead-lettered, and the others take effect.
async fn a_failure_that_looks_like_an_outage_counts_while_others_succeed<DB: TestDatabase>(
    database: &Database<DB>,
) {
    let inbox = database.inbox().await;
    for batch in BATCHES {
        let broker = Broker::new([keyed("bad", "poison")]);
        let feeding = broker.clone();
        let handler = Effect::new(move |message, call| {
            if message.payload.starts_with(b"poison") {
                // Another message succeeds before the next attempt.
                feeding.send(Ok(self::message(&format!("other {call}"))));
                return Err(sqlx::Error::PoolTimedOut.into());
            }
            Ok(())
        });
        let consuming = builder(&inbox, &broker, handler).attempts_max(3);
        let running = start(in_batches(consuming, batch));
        until("it is dead", async || !dead_letters(&inbox).await.is_empty()).await;
        broker.drained().await;
        running.stop().await;
        let dead = dead_letters(&inbox).await;
        assert_eq!((dead.len(), dead[0].reason, dead[0].attempts), (1, Reason::Poison, 3));
        let signature =
            Signature { actor: String::from("test"), note: String::from("over"), selection: None };
        inbox.discard(dead[0].id, &signature).await.unwrap();
    }
}

/// Goal: a message is not retried forever if there are no others to compare it with. Oracle: its
/// dead letter has no attempt.
async fn a_failure_without_others_is_capped_by_age<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let broker = Broker::new([message("alone")]);
    let handler = Effect::new(|_, _| Err(HandlerError::unavailable("the service it needs is away")));
    let running =
        start(builder(&inbox, &broker, handler).attempts_max(2).failing_max(Duration::from_millis(1)));
    broker.drained().await;
    running.stop().await;
    let dead = dead_letters(&inbox).await;
    assert_eq!((dead.len(), dead[0].reason, dead[0].attempts), (1, Reason::Poison, 0));
    assert_eq!(dead[0].error, "the service it needs is away");
}

/// Goal: a scope function that panics or refuses does not end the consumer. Oracle: dead letters
/// with the reason, and the effects of the others.
async fn a_message_whose_scope_cannot_be_told_is_dead_lettered<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    for (round, batch) in BATCHES.into_iter().enumerate() {
        let text = |what: &str| message(&format!("{what} {round}"));
        let broker = Broker::new([text("panics"), text("refused"), text("fine")]);
        let tenant = |message: &Message| {
            assert!(!message.payload.starts_with(b"panics"), "on purpose");
            let is_refused = message.payload.starts_with(b"refused");
            Tenant::new(if is_refused { "t".repeat(300) } else { String::from("acme") })
        };
        let consuming = builder(&inbox, &broker, Effect::works()).try_tenant(tenant);
        let running = start(in_batches(consuming, batch));
        broker.drained().await;
        running.stop().await;
        let dead = dead_letters(&inbox).await;
        let mut errors: Vec<_> = dead.iter().skip(2 * round).map(|letter| letter.error.as_str()).collect();
        errors.sort_unstable();
        assert!(errors.len() == 2 && errors[0].contains("300 bytes"), "{errors:?}");
        assert!(errors[1].contains("the function for tenants panicked"), "{errors:?}");
        assert!(dead.iter().all(|letter| letter.reason == Reason::NoTenant && letter.message().is_err()));
    }
    assert_eq!(DB::effects(&database.pool, "billing").await, ["fine 0", "fine 1"]);
}

/// Goal: if a function for tenants fails because it reads the payload of a chunk, the dead letter
/// states this. Oracle: its error.
async fn a_tenant_read_from_the_payload_of_a_chunk_is_explained<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let chunk = chunks_of(&message(&"x".repeat(5_000))).swap_remove(0);
    let broker = Broker::new([chunk]);
    let consuming = builder(&inbox, &broker, Effect::works()).try_tenant(|_| Err("the payload is not JSON"));
    let running = start(consuming);
    broker.drained().await;
    running.stop().await;
    let dead = dead_letters(&inbox).await;
    assert_eq!((dead.len(), dead[0].reason), (1, Reason::NoTenant));
    assert!(dead[0].error.starts_with("the payload is not JSON; this is chunk 1 of "), "{}", dead[0].error);
}

/// Goal: a redrive that an operator requests happens once, in a process with the handler. Oracle:
/// the effect, the dead letter, the audit.
async fn a_redrive_that_is_requested_is_carried_out_once<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let repaired = Arc::new(AtomicBool::new(false));
    let broker = Broker::new([message("one"), message("two")]);
    let consuming = || {
        let is_repaired = Arc::clone(&repaired);
        let handler = Effect::new(move |_, _| {
            if is_repaired.load(Ordering::Acquire) { Ok(()) } else { Err(HandlerError::reject("broken")) }
        });
        builder(&inbox, &broker, handler).redrive_interval(Some(Duration::from_millis(10)))
    };
    let both = [start(consuming()), start(consuming())];
    broker.drained().await;
    let dead = dead_letters(&inbox).await;
    let signature = Signature {
        actor: String::from("ann"),
        note: String::from("the price is known now"),
        selection: None,
    };
    let options = RedriveOptions::default();
    let request = async |at: usize| inbox.request_redrive(dead[at].id, options, &signature).await.unwrap();
    let decided = async || inbox.decisions(std::num::NonZeroU32::new(10).unwrap()).await.unwrap();
    let done = async || decided().await.iter().all(|decision| decision.subject.done_at.is_some());
    // Not repaired yet: the failure is reported, and the dead letter stays open.
    assert_eq!(request(0).await, Requested::Now);
    until("the requests are carried out", done).await;
    let outcome = decided().await[0].subject.outcome.clone();
    assert_eq!(outcome.as_deref(), Some("the handler failed again: broken"));
    assert_eq!(dead_letters(&inbox).await.len(), 2);
    repaired.store(true, Ordering::Release);
    assert_eq!((request(0).await, request(1).await), (Requested::Now, Requested::Now));
    until("the requests are carried out", done).await;
    for running in both {
        running.stop().await;
    }
    assert!(dead_letters(&inbox).await.is_empty());
    assert!(matches!(request(0).await, Requested::Closed(_)));
    let mut effects = DB::effects(&database.pool, "billing").await;
    effects.sort_unstable();
    assert_eq!(effects, ["one", "two"]);
    let decided = decided().await;
    assert_eq!(
        decided.iter().filter(|d| d.subject.outcome.as_deref() == Some("applied")).count(),
        2,
        "{decided:?}"
    );
    assert!(decided.iter().all(|decision| decision.signature == signature));
    assert_eq!(decided[0].subject.consumer, consumer("billing").as_str());
}

/// Goal: an operator's request to redrive a late message anyway is not ignored because an earlier
/// request that does not accept late messages is still open, for this message alone or for several.
/// Oracle: the answers, and the decisions: the open request, and what became of the earlier one.
async fn a_request_that_accepts_late_messages_replaces_one_that_does_not<DB: TestDatabase>(
    database: &Database<DB>,
) {
    let inbox = database.inbox().await;
    let broker = Broker::new([message("one"), message("two")]);
    let handler = Effect::new(|_, _| Err(HandlerError::reject("broken")));
    let running = start(builder(&inbox, &broker, handler).redrive_interval(None));
    broker.drained().await;
    running.stop().await;
    let dead = dead_letters(&inbox).await;
    let signed = |actor: &str| Signature { actor: actor.into(), note: "a test".into(), selection: None };
    let late = RedriveOptions::default().accept_late(true);
    let request = async |actor: &str, options: RedriveOptions| {
        inbox.request_redrive(dead[0].id, options, &signed(actor)).await.unwrap()
    };
    assert_eq!(request("ann", RedriveOptions::default()).await, Requested::Now);
    assert_eq!(request("bob", RedriveOptions::default()).await, Requested::Already);
    assert_eq!(request("bob", late).await, Requested::Now);
    for options in [late, RedriveOptions::default()] {
        assert_eq!(request("cid", options).await, Requested::Already);
    }
    let seen = SeenLetter { id: dead[1].id, reason: dead[1].reason, deliveries: 1 };
    let mut decided = ManyDecided { id: uuid::Uuid::new_v4(), signature: signed("dan") };
    let requests = async |options: RedriveOptions, decided: &ManyDecided| {
        let answers = inbox.request_redrives(&[seen], options, decided).await.unwrap();
        answers.into_iter().map(Result::unwrap).collect::<Vec<_>>()
    };
    assert_eq!(requests(RedriveOptions::default(), &decided).await, [Requested::Now]);
    decided.id = uuid::Uuid::new_v4();
    assert_eq!(requests(late, &decided).await, [Requested::Now]);
    assert_eq!(requests(late, &decided).await, [Requested::Already], "it was sent twice");

    let decided = inbox.decisions(std::num::NonZeroU32::new(10).unwrap()).await.unwrap();
    let told: Vec<_> = decided
        .iter()
        .map(|decision| {
            (
                decision.signature.actor.as_str(),
                decision.subject.accept_late,
                decision.subject.outcome.as_deref(),
            )
        })
        .collect();
    let replaced = Some("replaced by a request that accepts late messages");
    assert_eq!(
        told,
        [("dan", true, None), ("dan", false, replaced), ("bob", true, None), ("ann", false, replaced)]
    );
}

/// Rejects, then hangs, then works.
#[derive(Clone, Default)]
struct Repaired {
    stage: Arc<AtomicUsize>,
    begun: Arc<AtomicUsize>,
}

#[async_trait]
impl<DB: TestDatabase + Dialect> Handler<DB> for Repaired {
    async fn handle(&self, tx: &mut Tx<DB>, message: &Message) -> Result<Option<Vec<u8>>, HandlerError> {
        match self.stage.load(Ordering::Acquire) {
            0 => return Err(HandlerError::reject("broken")),
            1 => {
                self.begun.fetch_add(1, Ordering::AcqRel);
                std::future::pending::<()>().await;
            }
            _ => DB::apply(tx, "billing", message).await?,
        }
        Ok(None)
    }
}

/// Goal: a message is not given up because its consumer was stopped again and again during its
/// redrive. Oracle: its effect, after more stops than a message may have ended processes.
async fn a_stop_during_a_redrive_counts_against_no_message<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let broker = Broker::new([message("one")]);
    let handler = Repaired::default();
    let consuming = || {
        builder(&inbox, &broker, Effect::works())
            .handler(handler.clone())
            .redrive_interval(Some(Duration::from_millis(10)))
    };
    let running = start(consuming());
    broker.drained().await;
    let dead = dead_letters(&inbox).await.remove(0);
    let signature = Signature { actor: "ann".into(), note: "a test".into(), selection: None };
    handler.stage.store(1, Ordering::Release);
    inbox.request_redrive(dead.id, RedriveOptions::default(), &signature).await.unwrap();
    until("it is redriven", async || handler.begun.load(Ordering::Acquire) == 1).await;
    running.stop().await;
    for stops in 2..8 {
        let running = start(consuming());
        until("it is redriven", async || handler.begun.load(Ordering::Acquire) == stops).await;
        running.stop().await;
    }
    handler.stage.store(2, Ordering::Release);
    let running = start(consuming());
    until("it is redriven", async || dead_letters(&inbox).await.is_empty()).await;
    running.stop().await;
    assert_eq!(DB::effects(&database.pool, "billing").await, ["one"]);
}

/// Runs SQL before the effect.
struct Runs(&'static [&'static str]);

#[async_trait]
impl Handler<Postgres> for Runs {
    async fn handle(
        &self,
        tx: &mut Tx<Postgres>,
        message: &Message,
    ) -> Result<Option<Vec<u8>>, HandlerError> {
        if message.payload.starts_with(b"slow") {
            for statement in self.0 {
                Postgres::sql(tx, statement).await?;
            }
        }
        Postgres::apply(tx, "billing", message).await?;
        Ok(None)
    }
}

/// Goal: a message that always exceeds `statement_timeout` (57014, once treated as an outage) does
/// not hold its key forever.
async fn a_statement_that_always_takes_too_long_is_dead_lettered_on_postgres(database: &Database<Postgres>) {
    let inbox = database.inbox().await;
    for (round, batch) in BATCHES.into_iter().enumerate() {
        let broker =
            Broker::new([keyed("k", &format!("slow {round}")), keyed("k", &format!("behind {round}"))]);
        let handler = Runs(&["SET LOCAL statement_timeout = '1ms'", "SELECT pg_sleep(60)"]);
        let consuming = builder(&inbox, &broker, Effect::works()).handler(handler).attempts_max(3);
        let running = start(in_batches(consuming, batch));
        let is_dead = async || {
            broker.send(Ok(message("another")));
            dead_letters(&inbox).await.len() > round
        };
        until("it is dead while others succeed", is_dead).await;
        broker.drained().await;
        running.stop().await;
        let dead = dead_letters(&inbox).await;
        assert_eq!(dead.len(), round + 1);
        assert!(dead[round].error.contains("statement timeout"), "{}", dead[round].error);
        let effects = Postgres::effects(&database.pool, "billing").await;
        assert!(effects.contains(&format!("behind {round}")), "{effects:?}");
    }
}

/// Goal: the server cancels the statement of a handler that was ended, so that the next attempt
/// does not wait for its locks. Oracle: the dead letter within the test's deadline, while the
/// statement would take an hour.
async fn a_hung_statement_ends_with_its_handler_on_postgres(database: &Database<Postgres>) {
    let inbox = database.inbox().await;
    // No other message: its effect could take longer than the limit on a slow server.
    let broker = Broker::new([message("slow")]);
    let consuming = builder(&inbox, &broker, Effect::works())
        .handler(Runs(&["SELECT pg_sleep(3600)"]))
        .handler_timeout(Duration::from_millis(100))
        .attempts_max(2);
    let running = start(consuming);
    broker.drained().await;
    running.stop().await;
    let dead = dead_letters(&inbox).await;
    assert_eq!((dead.len(), dead[0].reason, dead[0].attempts), (1, Reason::Poison, 2));
    assert!(dead[0].error.contains("did not finish within"), "{}", dead[0].error);
    assert_eq!(Postgres::effects(&database.pool, "billing").await, [""; 0]);
    let sleeping = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(3600)%' AND state = 'active' \
        AND pid <> pg_backend_pid()";
    let sleeping: i64 = sqlx::query_scalar(sleeping).fetch_one(&database.admin).await.unwrap();
    assert_eq!(sleeping, 0);
}

/// Goal: a host that disappears silently, with requests on their way to it, stops no consumer once
/// another host answers at its address. Oracle: the effects, with a pool of two connections.
/// Without TLS: sqlx waits for the peer when it closes a TLS connection.
async fn a_database_host_that_is_gone_stops_no_consumer_on_postgres(database: &Database<Postgres>) {
    let there = (*database.pool.connect_options()).clone();
    let upstream = format!("{}:{}", there.get_host(), there.get_port());
    let wire = proxy::Proxy::start(0, upstream).await.unwrap();
    let pool = outbox::pool_options::<Postgres>()
        .max_connections(2)
        .connect_with(there.host("127.0.0.1").port(wire.address().port()).ssl_mode(PgSslMode::Disable))
        .await
        .unwrap();
    let options = database.options().call_timeout(Duration::from_secs(4));
    let inbox = Inbox::open(pool, options).await.unwrap();
    let wire = Arc::new(wire);
    let gone = Arc::clone(&wire);
    let broker = Broker::new((0..20).map(|n| keyed(&format!("key-{n}"), &format!("effect {n}"))));
    let handler = Effect::new(move |message, call| {
        if call == 1 && [&b"effect 3"[..], b"effect 9"].contains(&&message.payload[..]) {
            // No answer to this transaction's next statement comes, and no connection error either.
            gone.abandon(proxy::End::Server);
        }
        Ok(())
    });
    let consuming = builder(&inbox, &broker, handler).handler_timeout(Duration::from_secs(1));
    let running = start(consuming);
    until("everything has taken effect", async || {
        <Postgres as TestDatabase>::effects(&database.pool, "billing").await.len() == 20
    })
    .await;
    broker.drained().await;
    running.stop().await;
}

/// Reads all columns of a table with a statement that the session prepares once.
struct ReadsAll;

#[async_trait]
impl Handler<Postgres> for ReadsAll {
    async fn handle(
        &self,
        tx: &mut Tx<Postgres>,
        message: &Message,
    ) -> Result<Option<Vec<u8>>, HandlerError> {
        let read = sqlx::query("SELECT * FROM price").fetch_all(&mut **tx).await;
        read.map_err(HandlerError::retrying)?;
        Ok(Postgres::apply(tx, "billing", message).await.map(|()| None)?)
    }
}

/// Goal: a migration beside running consumers dead-letters nothing. Oracle: the effects and dead
/// letters of a consumer that gives each message one attempt, over one connection.
async fn a_table_that_changes_under_a_handler_counts_no_attempt_on_postgres(database: &Database<Postgres>) {
    let admin = async |statement: &'static str| {
        sqlx::query(statement).execute(&database.admin).await.unwrap();
    };
    admin("CREATE TABLE price (cents bigint)").await;
    admin("GRANT SELECT ON price TO PUBLIC").await;
    let options = (*database.pool.connect_options()).clone();
    let pool = outbox::pool_options::<Postgres>().max_connections(1).connect_with(options).await.unwrap();
    let inbox = Inbox::<Postgres>::open(pool, database.options()).await.unwrap();
    let broker = Broker::new([message("before")]);
    let consuming = builder(&inbox, &broker, Effect::works()).handler(ReadsAll).attempts_max(1);
    let running = start(consuming.redrive_interval(None));
    broker.drained().await;
    admin("ALTER TABLE price ADD COLUMN note text").await;
    broker.send(Ok(message("after")));
    broker.settled_at_least(2).await;
    running.stop().await;
    assert_eq!(dead_letters(&inbox).await, []);
    assert_eq!(Postgres::effects(&database.pool, "billing").await, ["before", "after"]);
}

/// Goal: after a failover that closes no connection, a pool does not stay on the old primary.
/// Oracle: the server process behind the next connection from the pool.
async fn a_session_that_became_read_only_is_not_lent_again_on_postgres(database: &Database<Postgres>) {
    let options = (*database.pool.connect_options()).clone();
    let pool = outbox::pool_options::<Postgres>().max_connections(1).connect_with(options).await.unwrap();
    let process =
        async || sqlx::query_scalar::<_, i32>("SELECT pg_backend_pid()").fetch_one(&pool).await.unwrap();
    let first = process().await;
    assert_eq!(process().await, first, "it is lent again");
    sqlx::query("SET default_transaction_read_only = on").execute(&pool).await.unwrap();
    assert_ne!(process().await, first);
    pool.close().await;
}

/// Blocks on one message until the test lets it continue.
#[derive(Clone)]
struct Waits(Arc<tokio::sync::Semaphore>);

#[async_trait]
impl Handler<Postgres> for Waits {
    async fn handle(
        &self,
        tx: &mut Tx<Postgres>,
        message: &Message,
    ) -> Result<Option<Vec<u8>>, HandlerError> {
        if message.payload == "slow" {
            drop(self.0.acquire().await);
        }
        Ok(Postgres::apply(tx, "billing", message).await.map(|()| None)?)
    }
}

/// Goal: a process does not wait for another one's redrive, but finds other work. Oracle: the
/// second request is carried out while the first one's handler waits for exactly that.
async fn processes_carry_out_different_requests_at_once_on_postgres(database: &Database<Postgres>) {
    let inbox = database.inbox().await;
    let rejects = Effect::new(|_, _| Err(HandlerError::reject("not yet")));
    let broker = Broker::new([message("slow"), message("quick")]);
    let running = start(builder(&inbox, &broker, rejects));
    broker.drained().await;
    running.stop().await;
    let signature = Signature { actor: String::from("ann"), note: String::from("now"), selection: None };
    let mut letters = dead_letters(&inbox).await;
    letters.sort_by_key(|letter| letter.payload != "slow");
    for letter in &letters {
        inbox.request_redrive(letter.id, RedriveOptions::default(), &signature).await.unwrap();
    }
    let gate = Waits(Arc::new(tokio::sync::Semaphore::new(0)));
    let idle = Broker::new([]);
    let process = || {
        let consuming = builder(&inbox, &idle, Effect::works()).handler(gate.clone());
        start(consuming.redrive_interval(Some(Duration::from_millis(2))))
    };
    let processes = [process(), process()];
    let effects = async || Postgres::effects(&database.pool, "billing").await;
    until("the other one is redriven", async || effects().await == ["quick"]).await;
    gate.0.add_permits(1);
    until("both are redriven", async || dead_letters(&inbox).await.is_empty()).await;
    for process in processes {
        process.stop().await;
    }
    assert_eq!(effects().await, ["quick", "slow"]);
    let outcomes: Vec<_> = inbox
        .decisions(std::num::NonZeroU32::MAX)
        .await
        .unwrap()
        .into_iter()
        .map(|it| it.subject.outcome)
        .collect();
    assert_eq!(outcomes, [Some(String::from("applied")), Some(String::from("applied"))]);
}
