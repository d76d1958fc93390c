//! Node numbers: one holder at a time, and no two equal ids whatever fails.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::outbox::support::{Database, TestDialect};
use message::Fault;
use message::token::{Clock, NodeTerm, Stale};
use migrations::Dialect as Kind;
use outbox::nodes::{BATCH_MAX, NODE_LEASE_DEFAULT, NodeError, NodeIds, NodeOptions};
use outbox::{EnqueueError, NewMessage, Outbox};
use sqlx::Postgres;
use tests::Role;
use tests::eventually::when;

tests::cases! { "outbox/nodes/{on}/{case}":
    every {
        nodes_that_race_get_numbers_of_their_own,
        a_number_given_back_is_given_out_under_a_larger_epoch,
        a_node_whose_lease_has_ended_stops_before_its_number_is_free,
        a_stopped_node_makes_no_id_of_its_successor,
        the_clock_may_step_back,
        messages_carry_the_ids_of_their_node,
        all_numbers_in_use_is_told,
        a_number_that_was_given_out_twice_stays_with_its_last_holder,
    }
    night on_postgres { a_host_that_is_gone_with_a_renewal_on_its_way_stops_no_node }
}

/// Clocks that only the test advances, like those of a stopped process.
#[derive(Debug, Clone, Default)]
struct Hands {
    since_1970: Arc<AtomicU64>,
    elapsed: Arc<AtomicU64>,
}

impl Hands {
    fn new() -> Self {
        let hands = Self::default();
        hands.since_1970.store(1_770_000_000_000, Ordering::Relaxed);
        hands
    }

    /// Lets time pass for this process.
    fn pass(&self, time: Duration) {
        let millis = u64::try_from(time.as_millis()).unwrap();
        self.since_1970.fetch_add(millis, Ordering::Relaxed);
        self.elapsed.fetch_add(millis, Ordering::Relaxed);
    }
}

impl Clock for Hands {
    fn since_1970(&self) -> Duration {
        Duration::from_millis(self.since_1970.load(Ordering::Relaxed))
    }

    fn elapsed(&self) -> Duration {
        Duration::from_millis(self.elapsed.load(Ordering::Relaxed))
    }
}

async fn node<DB: TestDialect>(db: &Database<DB>, clock: &Hands) -> NodeIds {
    NodeIds::open(db.pool.clone(), NodeOptions::default().clock(clock.clone())).await.unwrap()
}

/// Sets the end of a node number's lease to a time that has passed.
async fn lapse<DB: TestDialect>(db: &Database<DB>, number: u16) {
    let past = match DB::DIALECT {
        Kind::Postgres => "clock_timestamp() - interval '1 second'",
        Kind::Sqlite => "1",
    };
    let sql = format!("UPDATE outbox_node SET lease_until = {past} WHERE number = {number}");
    assert_eq!(db.run(&sql).await, 1);
}

async fn nodes_that_race_get_numbers_of_their_own<DB: TestDialect>(db: &Database<DB>) {
    // All nodes see the same time, so that only number and epoch distinguish their ids.
    let clock = Hands::new();
    let racing: Vec<_> = (0..24)
        .map(|_| {
            let (pool, options) = (db.pool.clone(), NodeOptions::default().clock(clock.clone()));
            tokio::spawn(async move { NodeIds::open(pool, options).await.unwrap() })
        })
        .collect();
    let mut nodes = Vec::new();
    for racer in racing {
        nodes.push(racer.await.unwrap());
    }
    let numbers: HashSet<_> = nodes.iter().map(|node| node.number().unwrap()).collect();
    assert_eq!(numbers, (0..24).map(|number| (number, 1)).collect());
    let ids: Vec<_> = nodes.iter().flat_map(|node| node.batch(500).unwrap()).collect();
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), 24 * 500);
    for node in nodes {
        node.close().await.unwrap();
    }
    assert_eq!(db.number("SELECT count(*) FROM outbox_node WHERE holder IS NULL").await, 24);
}

async fn a_number_given_back_is_given_out_under_a_larger_epoch<DB: TestDialect>(db: &Database<DB>) {
    let clock = Hands::new();
    let first = node(db, &clock).await;
    let clone = first.clone();
    assert_eq!((first.number(), clone.number()), (Some((0, 1)), Some((0, 1))));
    first.close().await.unwrap();
    assert_eq!(clone.next(), Err(Stale::NoNumber));
    assert!(matches!(clone.renew().await, Err(NodeError::Closed)));
    let second = node(db, &clock).await;
    assert_eq!(second.number(), Some((0, 2)));
    drop(second);
    // When the last handle is dropped, the number is released. No epoch is used again.
    let free = async || db.number("SELECT count(*) FROM outbox_node WHERE holder IS NULL").await == 1;
    tests::eventually("the number is free", || async { Ok(when(free().await)) }).await.unwrap();
    assert_eq!(node(db, &clock).await.number(), Some((0, 3)));
}

pub(super) async fn a_node_whose_lease_has_ended_stops_before_its_number_is_free<DB: TestDialect>(
    db: &Database<DB>,
) {
    let clock = Hands::new();
    let node_0 = node(db, &clock).await;
    clock.pass(NODE_LEASE_DEFAULT * 9 / 10 - Duration::from_millis(1));
    let last = node_0.next().unwrap();
    clock.pass(Duration::from_millis(1));
    let stale = node_0.next().unwrap_err();
    assert_eq!(stale, Stale::Expired { number: 0, epoch: 1, ago: Duration::ZERO });
    assert_eq!(node_0.batch(3).unwrap_err(), stale);
    // By the database's clock, the number is still reserved for its holder.
    assert_eq!(node(db, &clock).await.number(), Some((1, 1)));
    node_0.renew().await.unwrap();
    assert_eq!(node_0.number(), Some((0, 1)));
    assert!(node_0.next().unwrap() > last);
}

pub(super) async fn a_stopped_node_makes_no_id_of_its_successor<DB: TestDialect>(db: &Database<DB>) {
    let (clock, stopped_clock) = (Hands::new(), Hands::new());
    let stopped = node(db, &stopped_clock).await;
    lapse(db, 0).await;
    let successor = node(db, &clock).await;
    assert_eq!((stopped.number(), successor.number()), (Some((0, 1)), Some((0, 2))));

    // When the stopped process continues, it still trusts its lease, because its clocks had
    // stopped.
    let (late, ids) = (stopped.batch(BATCH_MAX).unwrap(), successor.batch(BATCH_MAX).unwrap());
    assert!(late.iter().all(|id| NodeTerm::of(*id) == (0, 1)));
    assert!(ids.iter().all(|id| NodeTerm::of(*id) == (0, 2)));
    assert_eq!(late.iter().chain(&ids).collect::<HashSet<_>>().len(), 2 * BATCH_MAX);

    // Its next renewal reports the loss, and does not affect the successor.
    stopped.renew().await.unwrap();
    successor.renew().await.unwrap();
    assert_eq!((stopped.number(), successor.number()), (Some((1, 1)), Some((0, 2))));
    assert!(stopped.next().unwrap() > late[BATCH_MAX - 1]);
}

async fn the_clock_may_step_back<DB: TestDialect>(db: &Database<DB>) {
    let clock = Hands::new();
    let node = node(db, &clock).await;
    let mut last = node.next().unwrap();
    for _ in 0..20 {
        clock.since_1970.fetch_sub(2_500, Ordering::Relaxed);
        let next = node.next().unwrap();
        assert!(next > last);
        last = next;
    }
    clock.since_1970.fetch_sub(10_001, Ordering::Relaxed);
    assert!(matches!(node.next(), Err(Stale::Behind { behind }) if behind == Duration::from_millis(60_001)));
    clock.pass(Duration::from_secs(1));
    assert!(node.next().unwrap() > last);
}

async fn messages_carry_the_ids_of_their_node<DB: TestDialect>(db: &Database<DB>) {
    let clock = Hands::new();
    let node = node(db, &clock).await;
    let outbox = Outbox::<DB>::builder().ids(node.clone()).build();
    let mut tx = outbox.begin(&db.pool).await.unwrap();
    let one = tx.enqueue(NewMessage::new("orders")).await.unwrap().message_id();
    let staged = tx.stage(NewMessage::new("orders")).unwrap();
    tx.commit().await.unwrap();
    assert_eq!((NodeTerm::of(one), NodeTerm::of(staged)), ((0, 1), (0, 1)));
    assert_eq!(db.rows().await, 2);

    clock.pass(NODE_LEASE_DEFAULT);
    let mut tx = outbox.begin(&db.pool).await.unwrap();
    let error = tx.enqueue(NewMessage::new("orders")).await.unwrap_err();
    assert!(matches!(error, EnqueueError::NoId(_)), "{error}");
    assert!(error.fault() == Fault::Broker && error.is_retryable());
    assert!(tests::trial::chain(&error).contains("lease on number 0 (epoch 1)"), "{error}");
    tx.rollback().await.unwrap();
}

/// A standby that lagged is promoted: its row is one lease behind.
async fn a_number_that_was_given_out_twice_stays_with_its_last_holder<DB: TestDialect>(db: &Database<DB>) {
    let clock = Hands::new();
    node(db, &clock).await.close().await.unwrap();
    let old = node(db, &clock).await;
    assert_eq!(old.number(), Some((0, 2)));
    lapse(db, 0).await;
    db.run("UPDATE outbox_node SET epoch = 1").await;
    let new = node(db, &clock).await;
    assert_eq!(new.number(), Some((0, 2)), "the same number and epoch");
    old.renew().await.unwrap();
    assert_eq!(old.number(), Some((1, 1)), "it takes another one");
    new.renew().await.unwrap();
    assert_eq!(new.number(), Some((0, 2)));
    old.close().await.unwrap();
    assert_eq!(db.number("SELECT count(*) FROM outbox_node WHERE holder IS NOT NULL").await, 1);
    new.close().await.unwrap();
}

/// Goal: a host that disappears while a renewal waits for it does not hold up the node. Oracle:
/// once another host answers at the address, the node makes ids again and can be closed.
async fn a_host_that_is_gone_with_a_renewal_on_its_way_stops_no_node(db: &Database<Postgres>) {
    let (pool, wire) = crate::proxied::pool(&Role::Producer.url(&db.url).unwrap(), 4).await;
    let options = NodeOptions::default().lease(Duration::from_secs(3));
    let node = NodeIds::open(pool.clone(), options).await.unwrap();
    let mut stalled = db.admin.begin().await.unwrap();
    sqlx::query("LOCK TABLE outbox_node").execute(&mut *stalled).await.unwrap();
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'proxied'";
    let waits = async || Ok(when(db.number(waiting).await > 0));
    tests::eventually("the renewal waits", waits).await.unwrap();
    wire.abandon(proxy::End::Server);
    stalled.rollback().await.unwrap();
    // Beyond the end of the lease that it had.
    tokio::time::sleep(Duration::from_secs(4)).await;
    tests::eventually("the node makes ids again", async || Ok(when(node.next().is_ok()))).await.unwrap();
    tokio::time::timeout(Duration::from_secs(10), node.close()).await.unwrap().unwrap();
    wire.end_abandonment();
    pool.close().await;
}

async fn all_numbers_in_use_is_told<DB: TestDialect>(db: &Database<DB>) {
    let forever = match DB::DIALECT {
        Kind::Postgres => "'infinity'",
        Kind::Sqlite => "9000000000000000000",
    };
    db.run(&format!(
        "INSERT INTO outbox_node (number, epoch, holder, lease_until) VALUES (65535, 7, 'other', {forever})"
    ))
    .await;
    let options = NodeOptions::default;
    let error = NodeIds::open(db.pool.clone(), options()).await.unwrap_err();
    assert!(matches!(error, NodeError::AllTaken) && error.fault() == Fault::Operator, "{error}");
    // The last number is reused like any other number, but an exhausted epoch is not.
    lapse(db, 65_535).await;
    let last = NodeIds::open(db.pool.clone(), options()).await.unwrap();
    assert_eq!(last.number(), Some((65_535, 8)));
    last.close().await.unwrap();
    db.run("UPDATE outbox_node SET epoch = 4294967295").await;
    let error = NodeIds::open(db.pool.clone(), options()).await.unwrap_err();
    assert!(matches!(error, NodeError::AllTaken), "{error}");
}
