//! URLs that name several servers, one of which is the primary. The cases have their own servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use sqlx::Postgres;
use tests::eventually::when;
use tests::relay_process::Config;
use tests::workload::Workload;
use tests::{Backend, Cluster, Database, Failure, Outcome, RelayProcess, Stage, brokers, eventually};

use super::{ORDERS, key, nothing_is_missing, saga};
use crate::commands::Ran;

tests::cases! { "environments/hosts/{case}":
    anywhere + postgres xtask rabbitmq {
        relay_and_consumer_follow_the_primary_through_two_promotions = two_promotions,
        a_server_that_lost_its_role_under_open_sessions_is_left = demoted,
    }
}

/// Two servers, the first of which is the primary, behind one list of hosts.
struct Pair {
    first: Cluster,
    second: Cluster,
    /// Both, as in the list.
    hosts: String,
    workload: Workload<Postgres>,
}

/// The server that is first in the list.
#[derive(PartialEq, Eq)]
enum FirstInTheList {
    Primary,
    Standby,
}

impl Pair {
    /// Starts the servers. Commits wait for the standby, so that a promotion loses nothing.
    async fn start(stage: &Stage, is_first: FirstInTheList) -> Result<Self, Failure> {
        let first = Cluster::start(stage, &[]).await?;
        let database = Database::<Postgres>::migrated_at(stage, first.url()).await?;
        let second = first.standby(stage).await?;
        first.wait_for_its_standby().await?;
        let hosts = match is_first {
            FirstInTheList::Primary => format!("{},{}", first.address(), second.address()),
            FirstInTheList::Standby => format!("{},{}", second.address(), first.address()),
        };
        let database = database.among(stage, &hosts).await?;
        let broker = brokers::open(stage, Backend::Rabbitmq).await?;
        let workload = Workload::<Postgres>::on(database, broker).await?;
        Ok(Self { first, second, hosts, workload })
    }

    /// Returns the URL of the relay, which names both servers.
    fn relay_url(&self) -> Result<String, Failure> {
        let url = tests::Role::Relay.url(&self.first.url())?;
        Ok(url.replace(&self.first.address(), &self.hosts) + "?target_session_attrs=read-write")
    }
}

/// Places orders until it is stopped, whatever happens to the servers.
struct Producer {
    stop: Arc<AtomicBool>,
    /// Orders whose commit was confirmed.
    confirmed: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Producer {
    fn start(workload: &Workload<Postgres>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let confirmed = Arc::new(AtomicUsize::new(0));
        let (workload, ended, counted) = (workload.clone(), Arc::clone(&stop), Arc::clone(&confirmed));
        let task = tokio::spawn(async move {
            let mut number = 0_usize;
            while !ended.load(Ordering::Relaxed) {
                number += 1;
                if workload.place(&format!("busy-{}", number % 3)).await.is_ok() {
                    counted.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Self { stop, confirmed, task }
    }

    /// Waits until this many more orders are confirmed.
    async fn confirms(&self, orders: usize) -> Outcome {
        let from = self.confirmed.load(Ordering::Relaxed);
        eventually("a producer goes on", || async {
            Ok(when(self.confirmed.load(Ordering::Relaxed) >= from + orders))
        })
        .await
    }

    /// Stops it, and returns how many orders were confirmed.
    async fn stop(self) -> Result<usize, Failure> {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await?;
        Ok(self.confirmed.load(Ordering::Relaxed))
    }
}

/// Goal: relay, consumer, producer, keys and sagas that know two servers go on without a restart
/// while the primary changes twice, and while the first one of the list is a standby. Nothing that
/// was confirmed is lost, and nothing is doubled. Oracle: the checker, on the contents of the last
/// primary; the number of confirmed orders; the relay's log and `relay status`; `relay verify`.
async fn two_promotions(stage: Stage) -> Outcome {
    let pair = Pair::start(&stage, FirstInTheList::Standby).await?;
    let workload = &pair.workload;
    let database = &workload.database;
    let config = Config::write(&stage, "orders", &pair.relay_url()?, workload.broker.as_ref(), "")?;
    let mut relay = RelayProcess::start(&stage, &config)?;
    let consumer = workload.consume().await?;
    workload.place_many(3, ORDERS).await?;
    workload.settled().await?;

    let producer = Producer::start(workload);
    producer.confirms(ORDERS).await?;
    pair.first.crash().await?;
    pair.second.promote().await?;
    producer.confirms(ORDERS).await?;
    relay.tells("the server was promoted since the cursor was stored").await?;

    // The former primary comes back as a standby, and becomes the primary again.
    pair.first.rejoin(&pair.second).await?;
    pair.second.wait_for_its_standby().await?;
    producer.confirms(ORDERS).await?;
    let status = Ran::with(&config, &["status", "--output", "json"]).await?.done()?.json()?;
    assert_eq!(status[0]["cursor_timeline"], 2, "{status}");
    pair.second.crash().await?;
    pair.first.promote().await?;
    producer.confirms(ORDERS).await?;

    let confirmed = producer.stop().await?;
    workload.settled().await?;
    let placed = workload.placed().await?.len();
    assert!(placed >= confirmed + ORDERS, "{placed} orders are left of {confirmed} and {ORDERS}");
    key(database).await?;
    saga(database).await?;
    assert!(relay.has_ended()?.is_none(), "the relay has ended: {}", relay.log()?);
    eventually("the cursor is of the third timeline", || async {
        let status = Ran::with(&config, &["status", "--output", "json"]).await?.done()?.json()?;
        Ok(when(status[0]["cursor_timeline"] == 3 && status[0]["cursor_is_of_this_server"] == true))
    })
    .await?;
    consumer.stop().await?;
    relay.stop().await?;
    nothing_is_missing(&stage, workload).await
}

/// Goal: a primary, which is first in the list, becomes read-only by default under its open
/// sessions, as if it were about to be replaced, and the standby is promoted meanwhile. Pools leave
/// the server, and a relay that starts passes it over, although it still answers. Oracle: the
/// checker on the contents of the promoted server; no order and no session of the pools is left on
/// the other one.
async fn demoted(stage: Stage) -> Outcome {
    let pair = Pair::start(&stage, FirstInTheList::Primary).await?;
    let workload = &pair.workload;
    let config = Config::write(&stage, "orders", &pair.relay_url()?, workload.broker.as_ref(), "")?;
    let consumer = workload.consume().await?;
    workload.place_many(3, ORDERS).await?;

    pair.first.execute("ALTER SYSTEM SET default_transaction_read_only = on").await?;
    pair.first.execute("SELECT pg_reload_conf()").await?;
    eventually("the setting is in force", || async {
        Ok(when(pair.first.text("SHOW default_transaction_read_only").await? == "on"))
    })
    .await?;
    pair.second.promote().await?;
    eventually("an order is placed on the promoted server", || async {
        Ok(when(workload.place("key-0").await.is_ok()))
    })
    .await?;
    workload.place_many(3, ORDERS).await?;
    let relay = RelayProcess::start(&stage, &config)?;
    workload.settled().await?;
    assert_eq!(workload.placed().await?.len(), 2 * ORDERS + 1);
    assert_eq!(pair.first.text("SELECT count(*)::text FROM placed").await?, ORDERS.to_string());
    eventually("no session of a pool is left on the read-only server", || async {
        let left = "SELECT count(*)::text FROM pg_stat_activity WHERE usename IN ('outbox_test_producer', \
            'outbox_test_consumer') AND backend_type = 'client backend'";
        Ok(when(pair.first.text(left).await? == "0"))
    })
    .await?;
    consumer.stop().await?;
    relay.stop().await?;
    nothing_is_missing(&stage, workload).await
}
