//! The processes of the checkout, which can be started, killed and restarted.

use std::ops::RangeInclusive;
use std::process::ExitStatus;
use std::time::Duration;

use proxy::Proxy;
use sqlx::Postgres;
use tests::eventually::when;
use tests::relay_process::Config;
use tests::{Backend, Database, Failure, Outcome, RelayProcess, Stage, brokers, eventually};
use tokio::process::Command;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::orders::Order;
use crate::client::send;
use crate::program::{self, Running};

/// Time for which other shops wait before they take over the sagas of a dead shop.
const LEASE_SECONDS: &str = "2";
/// Maximum wait for the shop's answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// A process that can be killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Process {
    Shop,
    Bank,
    Shipping,
    /// The relay that publishes the replies of shipping.
    Relay,
}

impl Process {
    pub(super) const ALL: [Self; 4] = [Self::Shop, Self::Bank, Self::Shipping, Self::Relay];
}

/// All processes, with their databases.
pub(super) struct Services {
    stage: Stage,
    pub(super) shop: Database<Postgres>,
    pub(super) bank_book: Database<Postgres>,
    pub(super) shipping: Database<Postgres>,
    /// Proxy in front of the bank, which gets another port with every start. `counter` is the proxy
    /// in front of the shop.
    pub(super) bank: Proxy,
    counter: Proxy,
    queues: [(&'static str, String); 2],
    relay: Config,
    running: Mutex<Vec<(Process, Child)>>,
}

enum Child {
    Program(Running),
    Relay(RelayProcess),
}

impl Services {
    /// Starts all processes.
    pub(super) async fn start(stage: &Stage) -> Result<Self, Failure> {
        let rabbitmq = brokers::open(stage, Backend::Rabbitmq).await?;
        let queues = [("SHIP", "ship"), ("SHIPPED", "shipped")]
            .map(|(variable, queue)| (variable, rabbitmq.topic_name(queue)));
        let config = brokers::patient_rabbitmq(&Backend::Rabbitmq.address()?);
        for (_, queue) in &queues {
            // The shop declares them.
            brokers::remove_rabbitmq_queue(stage, &config, queue);
        }
        let shipping = Database::<Postgres>::migrated(stage).await?;
        // Both are redirected before any process connects.
        let nowhere = || Proxy::start(0, "127.0.0.1:1");
        let services = Self {
            stage: stage.clone(),
            shop: Database::empty(stage).await?,
            bank_book: Database::empty(stage).await?,
            bank: nowhere().await?,
            counter: nowhere().await?,
            relay: Config::write(stage, "shipping", &shipping.url, &*rabbitmq, "")?,
            shipping,
            queues,
            running: Mutex::default(),
        };
        for process in Process::ALL {
            services.run(process, None).await?;
        }
        Ok(services)
    }

    /// Starts a process. A shop may be one that ends at a crash point.
    pub(super) async fn run(&self, process: Process, crash_point: Option<&str>) -> Outcome {
        let child = match process {
            Process::Shop => {
                let point = crash_point.map(|point| ("OUTBOX_CRASH_POINTS", point));
                return self.run_shop(point.as_slice()).await;
            }
            Process::Bank => {
                let settings = [("DATABASE_URL", self.bank_book.url.as_str())];
                let bank = Running::serve(&self.stage, "bank", &settings).await?;
                self.bank.redirect(bank.address.as_str());
                Child::Program(bank)
            }
            Process::Shipping => {
                let mut python = Command::new(program::python());
                let script = std::path::absolute("../examples/shipping/shipping.py")?;
                python.arg(script).envs(self.settings(&self.shipping)?);
                Child::Program(Running::spawn(&self.stage, "shipping", python)?)
            }
            Process::Relay => Child::Relay(RelayProcess::start(&self.stage, &self.relay)?),
        };
        self.running.lock().await.push((process, child));
        Ok(())
    }

    /// Starts a shop that waits for shipping for only a second.
    pub(super) async fn run_impatient_shop(&self) -> Outcome {
        self.run_shop(&[("SHIP_WITHIN_SECONDS", "1")]).await
    }

    async fn run_shop(&self, more: &[(&str, &str)]) -> Outcome {
        let (own, bank) = (self.settings(&self.shop)?, self.bank.address().to_string());
        let own: Vec<_> = own.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let settings = [("PROVIDER", bank.as_str()), ("LEASE_SECONDS", LEASE_SECONDS)];
        let settings = [&settings[..], &own, more].concat();
        let shop = Running::serve(&self.stage, "checkout", &settings).await?;
        self.counter.redirect(shop.address.as_str());
        self.running.lock().await.push((Process::Shop, Child::Program(shop)));
        Ok(())
    }

    fn settings(&self, database: &Database<Postgres>) -> Result<Vec<(&'static str, String)>, Failure> {
        let mut settings = vec![("DATABASE_URL", database.url.clone())];
        settings.push(("RABBITMQ_URL", Backend::Rabbitmq.address()?));
        settings.extend(self.queues.iter().cloned());
        Ok(settings)
    }

    async fn take(&self, process: Process) -> Option<Child> {
        let mut running = self.running.lock().await;
        let found = running.iter().position(|(one, _)| *one == process)?;
        Some(running.swap_remove(found).1)
    }

    /// Kills a process if it is running.
    pub(super) async fn kill(&self, process: Process) -> Outcome {
        match self.take(process).await {
            Some(Child::Program(program)) => program.kill().await,
            Some(Child::Relay(relay)) => relay.kill().await,
            None => Ok(()),
        }
    }

    /// Waits until the shop has ended on its own.
    pub(super) async fn shop_ended(&self) -> Result<ExitStatus, Failure> {
        match self.take(Process::Shop).await {
            Some(Child::Program(shop)) => shop.ended().await,
            _ => Err("no shop runs".into()),
        }
    }

    /// Sends an order until a shop confirms that it has it.
    pub(super) async fn place(&self, order: &Order) -> Outcome {
        let counter = self.counter.address().to_string();
        eventually(&format!("the shop takes {order:?}"), || async {
            match timeout(PATIENCE, send(&counter, order.request()?)).await {
                Ok(Ok(answer)) if answer.status.is_success() => Ok(Some(())),
                Ok(Ok(answer)) if !answer.status.is_server_error() => Err(format!("{answer:?}").into()),
                // The shop was killed in the middle, or is not running yet.
                _ => Ok(None),
            }
        })
        .await
    }

    /// Tells shipping to take back the request of an order that it has not seen.
    pub(super) async fn take_back(&self, order: &Order) -> Outcome {
        self.tell_shipping(order.id..=order.id, &["order.unship"]).await
    }

    /// Sends shipping messages of these kinds for each of these orders, one right after the other,
    /// because they have different keys. For every second order the kinds are reversed, so that two
    /// shipping processes that take turns have the same work.
    pub(super) async fn tell_shipping(&self, orders: RangeInclusive<i64>, kinds: &[&str]) -> Outcome {
        let [(_, ship), _] = &self.queues;
        let sent = kinds.len() * orders.clone().count();
        let (first, last) = (orders.start(), orders.end());
        let turned: Vec<&str> = kinds.iter().rev().copied().collect();
        let (kinds, turned) = (kinds.join(","), turned.join(","));
        let enqueue = format!(
            "SELECT count(*) FROM generate_series({first}, {last}) AS id, \
             string_to_table(CASE WHEN id % 2 = 0 THEN '{turned}' ELSE '{kinds}' END, ',') AS kind, \
             LATERAL outbox_enqueue_json(topic => '{ship}', key => kind || '-' || id, kind => kind, \
             payload => jsonb_build_object('order', id, 'grams', 1), \
             headers => jsonb_build_object('saga-key', format('checkout/%s/ship', id), \
             'saga-reply-token', 'none'))"
        );
        assert_eq!(self.shop.integer(&enqueue).await?, i64::try_from(sent)?);
        Ok(())
    }

    /// Waits until this many sagas have ended.
    pub(super) async fn settled(&self, sagas: usize) -> Outcome {
        let ended = "SELECT count(*) FROM saga WHERE ended_at IS NOT NULL";
        eventually("all sagas have ended", || async {
            Ok(when(self.shop.integer(ended).await? == i64::try_from(sagas)?))
        })
        .await
    }
}
