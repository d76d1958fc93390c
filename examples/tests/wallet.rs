//! Tests of the wallet service, as you would write them for a service of your own.

use examples::setting::Failure;
use examples::wallet::{self, Identity, TABLES, TOPIC};
use message::Topic;
use testkit::World;

/// A world with two instances of the service, each of which gets every message.
async fn world(identity: fn(u32) -> Identity) -> Result<World, Failure> {
    let world = World::new().await?;
    sqlx::raw_sql(TABLES).execute(world.pool()).await?;
    for instance in 1..=2 {
        let feed = world.feed_of_its_own(TOPIC)?;
        world.run(move |inbox| wallet::consumer(inbox, identity(instance), feed.subscriber()))?;
    }
    world.effects("wallet", TOPIC, "SELECT message_id FROM credit ORDER BY id");
    Ok(world)
}

#[tokio::test]
async fn a_payment_is_credited_once() -> Result<(), Failure> {
    let world = world(|_| Identity::Service).await?;
    for cents in [100, 20, 3] {
        wallet::pay(world.pool(), world.outbox(), 7, cents).await?;
    }
    world.assert_promises_kept().await;
    assert_eq!(world.number("SELECT cents FROM account WHERE id = 7").await?, 123);
    Ok(())
}

#[tokio::test]
async fn a_payment_is_credited_once_through_lost_answers_crashes_and_a_replay() -> Result<(), Failure> {
    let world = world(|_| Identity::Service).await?;
    world.broker().faults().duplicate_next(2);
    world.broker().faults().lose_settlements(1);
    for cents in [100, 20, 3] {
        wallet::pay(world.pool(), world.outbox(), 7, cents).await?;
        world.crash_consumers();
    }
    world.crash_relay()?;
    world.quiet().await?;
    world.broker().replay(&Topic::new(TOPIC)?);
    world.assert_promises_kept().await;
    assert_eq!(world.number("SELECT cents FROM account WHERE id = 7").await?, 123);
    Ok(())
}

/// The same test finds the mistake of [`Identity::Instance`].
#[tokio::test]
#[should_panic(expected = "✗ no message takes effect twice")]
async fn a_name_for_each_instance_is_found() {
    let world = world(Identity::Instance).await.expect("a world");
    wallet::pay(world.pool(), world.outbox(), 7, 100).await.expect("paid");
    world.assert_promises_kept().await;
}
