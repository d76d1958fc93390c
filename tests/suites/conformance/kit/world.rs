//! Worlds keep their promises, and their checker finds violations.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use checker::Promise;
use inbox::{Handler, HandlerError, Received, Tenant, Tx};
use message::{Event, Fault, FaultScope, Message, Topic};
use outbox::NewMessage;
use testkit::{CrashPoint, Loss, World, made_ago};
use tests::{Failure, Outcome};

use super::{Kit, add};

tests::cases! { "kit/world/{on}/{case}":
    databases {
        duplicates_of_every_kind_take_effect_once,
        batches_and_another_order_change_nothing,
        crashes_of_consumers_and_of_the_relay_are_survived,
        a_poisoned_message_is_parked_and_named,
        what_does_not_come_to_rest_is_named,
        a_replay_after_the_retention_is_refused,
        a_message_that_comes_too_late_is_refused,
        a_message_is_applied_once_per_scope,
        without_the_guard_a_duplicate_is_found,
        an_effect_that_is_missing_is_found,
        the_builder_of_production_runs_in_a_world,
    }
}

/// A handler that counts messages in the database.
struct Count;

#[async_trait]
impl<DB: Kit> Handler<DB> for Count {
    async fn handle(&self, tx: &mut Tx<DB>, _: &Message) -> Result<Option<Vec<u8>>, HandlerError> {
        add::<DB>(&mut **tx, 1).await?;
        Ok(None)
    }
}

/// A handler that refuses every message, with retries or for good.
struct Refuse(fn(&'static str) -> HandlerError);

#[async_trait]
impl<DB: Kit> Handler<DB> for Refuse {
    async fn handle(&self, _: &mut Tx<DB>, _: &Message) -> Result<Option<Vec<u8>>, HandlerError> {
        Err((self.0)("no such account"))
    }
}

/// A world with a counter that is zero.
async fn prepared<DB: Kit>() -> Result<World<DB>, Failure> {
    let world = DB::builder()?.build().await?;
    world.execute("CREATE TABLE counter (n bigint NOT NULL)").await?;
    world.execute("INSERT INTO counter VALUES (0)").await?;
    Ok(world)
}

fn orders(count: usize) -> impl Iterator<Item = NewMessage> + Send {
    (0..count).map(|n| NewMessage::new("orders").key(format!("order-{}", n % 3)).payload(n.to_string()))
}

async fn count<DB: Kit>(world: &World<DB>) -> Result<i64, testkit::Failure> {
    world.number("SELECT n FROM counter").await
}

fn topic() -> Result<Topic, message::InvalidText> {
    Topic::new("orders")
}

async fn duplicates_of_every_kind_take_effect_once<DB: Kit>() -> Outcome {
    let world = prepared::<DB>().await?;
    world.broker().faults().duplicate_next(5);
    world.broker().faults().lose_settlements(2);
    world.consumer("counting", "orders", Count).copies(3).start()?;
    world.enqueue(orders(20)).await?;
    world.quiet().await?;
    world.broker().replay(&topic()?);
    world.assert_promises_kept().await;
    world.assert_nothing_parked().await;
    assert_eq!(count(&world).await?, 20);
    assert!(world.applied("counting").await?.iter().all(|(_, times)| *times == 1));
    Ok(())
}

async fn batches_and_another_order_change_nothing<DB: Kit>() -> Outcome {
    let world = prepared::<DB>().await?;
    world.broker().faults().shuffle_deliveries(42);
    world.enqueue(orders(50)).await?;
    world.broker().stored(&topic()?, 50).await;
    let batches = |builder: inbox::ConsumerBuilder<DB>| builder.batch(NonZeroUsize::new(16).expect("16"));
    world.consumer("counting", "orders", Count).configure(batches).start()?;
    world.assert_promises_kept().await;
    assert_eq!(count(&world).await?, 50);
    Ok(())
}

async fn crashes_of_consumers_and_of_the_relay_are_survived<DB: Kit>() -> Outcome {
    let world = prepared::<DB>().await?;
    world.broker().faults().lose_next(2, Loss::Confirmation);
    world.crash_at(CrashPoint::AfterEffect);
    world.crash_at(CrashPoint::AfterCommit);
    world.consumer("counting", "orders", Count).start()?;
    world.enqueue(orders(10)).await?;
    world.broker().stored(&topic()?, 5).await;
    world.crash_relay()?;
    world.crash_consumers();
    world.enqueue(orders(10)).await?;
    world.assert_promises_kept().await;
    assert_eq!((count(&world).await?, world.crashes_left()), (20, 0));
    Ok(())
}

async fn a_poisoned_message_is_parked_and_named<DB: Kit>() -> Outcome {
    let world = prepared::<DB>().await?;
    let enqueued = world.enqueue(orders(1)).await?;
    let id = enqueued[0].message_id();
    world.broker().stored(&topic()?, 1).await;
    let poison = made_ago(Duration::ZERO)?;
    world.broker().faults().refuse_id(poison, Fault::Message, FaultScope::Message);
    world.enqueue([NewMessage::new("orders").id(poison)]).await?;
    world.consumer("rejecting", "orders", Refuse(HandlerError::reject)).start()?;
    world.quiet().await?;
    let parked = world.parked().await?.join("\n");
    assert!(parked.contains(&format!("relay: {poison} is dead")), "{parked}");
    assert!(parked.contains(&id.to_string()) && parked.contains("no such account"), "{parked}");
    world.assert_promises_kept().await;
    Ok(())
}

/// The maximum number of questions, generous for a busy machine.
const ASKED_MAX: u32 = 200;

async fn what_does_not_come_to_rest_is_named<DB: Kit>() -> Outcome {
    let world = DB::builder()?.patience(Duration::from_millis(300)).build().await?;
    world
        .consumer("failing", "orders", Refuse(HandlerError::retry))
        .configure(|b| b.attempts_max(1_000_000))
        .start()?;
    world.enqueue(orders(1)).await?;
    // The first attempts may come late. From then on every answer names the consumer.
    for _ in 0..ASKED_MAX {
        let failure = world.quiet().await.expect_err("a message that is never done").to_string();
        if failure.contains("failing failed") && failure.contains("no such account") {
            return Ok(());
        }
        assert!(failure.contains("not quiet"), "{failure}");
    }
    panic!("the consumer that fails was not named in {ASKED_MAX} answers")
}

async fn a_replay_after_the_retention_is_refused<DB: Kit>() -> Outcome {
    let world = prepared::<DB>().await?;
    world.consumer("counting", "orders", Count).start()?;
    world.enqueue(orders(3)).await?;
    world.quiet().await?;
    world.advance(Duration::from_secs(15 * 86_400)).await?;
    world.broker().replay(&topic()?);
    world.assert_promises_kept().await;
    assert_eq!((count(&world).await?, world.parked().await?.len()), (3, 3));
    Ok(())
}

async fn a_message_that_comes_too_late_is_refused<DB: Kit>() -> Outcome {
    let world = prepared::<DB>().await?;
    world.consumer("counting", "orders", Count).start()?;
    let late = NewMessage::new("orders").id(made_ago(Duration::from_secs(15 * 86_400))?);
    let early = NewMessage::new("orders").id(made_ago(Duration::from_secs(13 * 86_400))?);
    world.enqueue([late, early]).await?;
    world.quiet().await?;
    assert_eq!((count(&world).await?, world.parked().await?.len()), (1, 1));
    Ok(())
}

async fn a_message_is_applied_once_per_scope<DB: Kit>() -> Outcome {
    let world = prepared::<DB>().await?;
    let tenant = |message: &Message| {
        Tenant::new(message.headers.get("tenant").unwrap_or_default()).unwrap_or_else(|_| Tenant::none())
    };
    world.consumer("counting", "orders", Count).tenant(tenant).start()?;
    world.enqueue([NewMessage::new("orders").header("tenant", "a")]).await?;
    world.broker().stored(&topic()?, 1).await;
    // The same message again: once for the same tenant and twice for a different tenant.
    let original = world.broker().log(&topic()?).remove(0);
    for tenant in ["a", "b", "b"] {
        let mut again = original.clone();
        again.headers.insert("tenant", tenant)?;
        world.broker().put(&topic()?, Ok(again));
    }
    world.assert_promises_kept().await;
    world.assert_nothing_parked().await;
    assert_eq!(world.applied("counting").await?, [(original.id.as_uuid(), 2)]);
    let scopes =
        "SELECT count(*) FROM (SELECT DISTINCT scope FROM testkit_effect WHERE scope IN ('a', 'b')) s";
    assert_eq!((count(&world).await?, world.number(scopes).await?), (2, 2));
    Ok(())
}

/// The checker does detect problems: without the guard a duplicate is applied again and reported.
async fn without_the_guard_a_duplicate_is_found<DB: Kit>() -> Outcome {
    let world = prepared::<DB>().await?;
    world.broker().faults().duplicate_next(1);
    world.consumer("counting", "orders", Count).configure(|builder| builder.without_guard()).start()?;
    let id = world.enqueue(orders(2)).await?[0].message_id();
    world.quiet().await?;
    let verdict = world.verdict().await?;
    let again = verdict.ruling(Promise::AtMostOnce);
    assert_eq!((count(&world).await?, again.breached), (3, 1), "{verdict}");
    assert_eq!(again.breaches[0].subject.ids, [id.as_uuid()]);
    Ok(())
}

/// A missing effect is reported as well, so the checker is not satisfied if nothing happens.
async fn an_effect_that_is_missing_is_found<DB: Kit>() -> Outcome {
    let world = prepared::<DB>().await?;
    world.consumer("counting", "orders", Count).start()?;
    world.enqueue(orders(2)).await?;
    world.quiet().await?;
    world.execute("DELETE FROM testkit_effect WHERE seq = (SELECT max(seq) FROM testkit_effect)").await?;
    let verdict = world.verdict().await?;
    assert_eq!(verdict.ruling(Promise::ExactlyOnce).breached, 1, "{verdict}");
    assert_eq!(verdict.ruling(Promise::InboxIffEffect).breached, 1, "{verdict}");
    Ok(())
}

#[derive(serde::Deserialize)]
struct Placed {
    order: i64,
}

impl Event for Placed {
    const TOPIC: &'static str = "orders";
    const KIND: &'static str = "order.placed";
}

/// Goal: tests run the calls of production. Oracle: the function for many events is called with
/// several; the tenant of the builder is the recorded one; its enqueued messages are published.
async fn the_builder_of_production_runs_in_a_world<DB: Kit>() -> Outcome {
    const ORDERS: i64 = 12;
    let world = prepared::<DB>().await?;
    let placed =
        |order: i64| NewMessage::new("orders").kind("order.placed").payload(format!("{{\"order\":{order}}}"));
    world.enqueue((0..ORDERS).map(placed)).await?;
    world.broker().stored(&topic()?, ORDERS as usize).await;
    let largest = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&largest);
    world
        .consumer_with("counting", "orders", move |builder| {
            let seen = Arc::clone(&seen);
            builder
                .batch(NonZeroUsize::new(12).expect("12"))
                .tenant(|_| Tenant::new("acme").unwrap_or_default())
                .on_batch(async move |tx: &mut Tx<DB>, placed: Vec<Placed>, received: &[Received]| {
                    seen.fetch_max(placed.len(), Ordering::Relaxed);
                    assert!(received.iter().all(|received| received.tenant.as_str() == "acme"));
                    let orders: i64 = placed.iter().map(|placed| placed.order).sum();
                    add::<DB>(&mut **tx, orders).await?;
                    tx.enqueue(NewMessage::new("counted").json(&orders)).await?;
                    Ok(())
                })
        })
        .copies(2)
        .start()?;
    world.assert_promises_kept().await;
    assert_eq!(count(&world).await?, (0..ORDERS).sum::<i64>());
    assert!(largest.load(Ordering::Relaxed) > 1);
    let scopes = "SELECT count(*) FROM testkit_effect WHERE scope = 'acme'";
    assert_eq!(world.number(scopes).await?, ORDERS);
    assert!(world.number("SELECT count(*) FROM outbox_message WHERE topic = 'counted'").await? > 0);
    Ok(())
}
