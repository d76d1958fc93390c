//! The programs that docs/drivers.md shows, as consumers of a real queue: `OUTBOX_RABBITMQ_URL`
//! names the server.

use std::env;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use brokers::rabbitmq::{Admin, Config, Connector, QueueOptions};
use drivers::orders::OrderPlaced;
use lapin::options::{BasicGetOptions, BasicPublishOptions};
use lapin::{BasicProperties, Connection, ConnectionProperties};
use libtest_mimic::{Failed, Trial};
use statements::message::{Connector as _, Message, MessageId, Receipts, Submission, Ticket, Topic};
use tokio::runtime::Runtime;

use crate::database::{self, invoices, letter, order};
use crate::page::{PROGRAMS, Program};

/// One program at a time: all of them are the same consumer, and carry out each other's redrives.
static TURN: Mutex<()> = Mutex::new(());

/// Only a failing case waits as long.
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) fn trials() -> Vec<Trial> {
    let trial = |name: String, run: fn(Program), program| {
        Trial::test(name, move || -> Result<(), Failed> {
            run(program);
            Ok(())
        })
    };
    let each = PROGRAMS.into_iter().flat_map(|program| {
        let name = |case| format!("page/{}/{case}", program.name);
        [
            trial(name("what_is_received_takes_effect_once"), what_is_received_takes_effect_once, program),
            trial(name("a_database_that_refuses_gets_no_delivery"), refused, program),
        ]
    });
    each.collect()
}

/// A queue of its own.
struct Queue {
    name: String,
    url: String,
    runtime: Runtime,
}

impl Queue {
    fn declare(program: Program) -> Self {
        let url = env::var("OUTBOX_RABBITMQ_URL")
            .expect("OUTBOX_RABBITMQ_URL names a server: cargo xtask services env");
        let name = format!("{}_{}", program.name, std::process::id());
        let queue = Self { name, url, runtime: Runtime::new().expect("a runtime") };
        // An earlier case may have left one.
        let _ = std::fs::remove_file(queue.log());
        queue.runtime.block_on(async {
            let admin = queue.admin().await;
            admin.declare_queue(&queue.name, QueueOptions::default()).await.expect("declared");
            admin.close().await;
        });
        queue
    }

    /// Returns the file that its consumers print errors to.
    fn log(&self) -> PathBuf {
        env::temp_dir().join(format!("{}.log", self.name))
    }

    async fn admin(&self) -> Admin {
        Admin::connect(&Config::new(self.url.as_str())).await.expect("a connection")
    }

    /// Publishes messages as a relay does.
    fn publish(&self, messages: &[&Message]) {
        self.runtime.block_on(async {
            let connector = Connector::new(&Config::new(self.url.as_str())).expect("a connector");
            let channel = Receipts::channel();
            let mut receipts = channel.1;
            let mut publisher = connector.connect(channel.0).await.expect("a session");
            for (number, message) in (0..).zip(messages) {
                let message = Arc::new((*message).clone());
                publisher.submit(vec![Submission { ticket: Ticket(number), message }]).await;
                let receipt = receipts.recv().await.expect("a receipt");
                receipt.outcome.expect("it is confirmed");
            }
            publisher.close(Duration::from_secs(5)).await;
        });
    }

    /// Publishes bytes that are not a message.
    fn publish_bytes(&self, bytes: &[u8]) {
        self.runtime.block_on(async {
            let connected = Connection::connect(&self.url, ConnectionProperties::default()).await;
            let connection = connected.expect("a connection");
            let channel = connection.create_channel().await.expect("a channel");
            let options = BasicPublishOptions::default();
            let sent = channel.basic_publish(
                "".into(),
                self.name.as_str().into(),
                options,
                bytes,
                BasicProperties::default(),
            );
            let _confirm = sent.await.expect("it is sent");
            connection.close(200, "".into()).await.expect("it is closed");
        });
    }

    /// Returns whether the next message has been delivered before. It stays in the queue.
    fn was_delivered(&self) -> bool {
        self.runtime.block_on(async {
            let connected = Connection::connect(&self.url, ConnectionProperties::default()).await;
            let connection = connected.expect("a connection");
            let channel = connection.create_channel().await.expect("a channel");
            let got = channel.basic_get(self.name.as_str().into(), BasicGetOptions::default()).await;
            let is_again = got.expect("an answer").expect("a message").redelivered;
            connection.close(200, "".into()).await.expect("it is closed");
            is_again
        })
    }

    /// Returns how many messages are not settled. Call it when no consumer has any.
    fn left(&self) -> u32 {
        self.runtime.block_on(async {
            let admin = self.admin().await;
            let left = admin.count(&self.name).await.expect("a number");
            admin.close().await;
            left
        })
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.runtime.block_on(async {
            let admin = self.admin().await;
            let _ = admin.delete_queue(&self.name).await;
            admin.close().await;
        });
    }
}

/// A program that consumes. It is killed when this is dropped, and its errors are printed.
struct Consumer {
    child: Child,
    log: PathBuf,
}

impl Consumer {
    fn start(program: Program, queue: &Queue) -> Self {
        Self::start_with(program, queue, "")
    }

    /// Starts it with more parameters in the address of the database.
    fn start_with(program: Program, queue: &Queue, parameters: &str) -> Self {
        let log = queue.log();
        let file = File::options().create(true).append(true).open(&log).expect("a log");
        let mut command = Command::new(program.file);
        command.arg("consume").stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        let url = format!("{}?application_name={}{parameters}", database::url(), queue.name);
        command.env("DATABASE_URL", url);
        command.env("RABBITMQ_URL", &queue.url).env("QUEUE", &queue.name);
        Self { child: command.spawn().expect("it runs"), log }
    }

    /// Returns what it has printed.
    fn printed(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a status").is_none()
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        eprintln!("{}", self.printed());
    }
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun_at = Instant::now();
    while !is_so() {
        assert!(begun_at.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Returns a message about an order, for the queue.
fn placed(order: i64, queue: &Queue) -> Message {
    let event = OrderPlaced { order, customer: format!("customer-{order}"), cents: 1250 };
    let message = event.delivered(MessageId::new()).expect("a key");
    Message { topic: queue.name.parse::<Topic>().expect("a topic"), ..message }
}

/// Goal: the loop of the page handles what a broker delivers: copies, a handler that fails at
/// first, a payload that is not an event, an event of another kind, bytes that are not a message, a
/// redrive, a lost connection, a process that is killed. Oracle: invoices, dead letters, an empty
/// queue.
fn what_is_received_takes_effect_once(program: Program) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let queue = Queue::declare(program);
    let orders = [order(), order(), order(), order(), order()];
    let [first, failing, unreadable, lost, last] = orders.map(|order| placed(order, &queue));
    let unreadable = Message { payload: "no order".into(), ..unreadable };
    // It has the fields of an order that was placed.
    let order_cancelled = order();
    let kind = "order.cancelled".parse().expect("a kind");
    let cancelled = Message { kind, ..placed(order_cancelled, &queue) };
    // The handler fails while there is another invoice of this order.
    database::execute(&format!(
        "INSERT INTO invoice (message_id, order_id, customer, cents)
            VALUES (gen_random_uuid(), {order}, 'nobody', 0);
        CREATE UNIQUE INDEX IF NOT EXISTS once_{order} ON invoice (order_id) WHERE order_id = {order}",
        order = orders[1]
    ));

    let mut consumer = Consumer::start(program, &queue);
    let sessions = format!("FROM pg_stat_activity WHERE application_name = '{}'", queue.name);
    let session = || database::text(&format!("SELECT min(pid)::text {sessions}"));
    eventually("it connects", || !session().is_empty());
    let first_session = session();
    queue.publish(&[&first, &first]);
    queue.publish_bytes(b"no message");
    queue.publish(&[&unreadable, &cancelled, &failing, &failing]);
    let attempts = format!(
        "SELECT attempts::text FROM inbox_attempt WHERE message_id = '{}' AND attempts > 0",
        failing.id
    );
    eventually("the handler has failed", || !database::text(&attempts).is_empty());
    database::execute(&format!("DELETE FROM invoice WHERE order_id = {} AND customer = 'nobody'", orders[1]));
    eventually("another attempt succeeds", || invoices(orders[1]) == "1");
    // A fault of the session must not follow the message into its last attempt.
    assert_ne!(session(), first_session, "the attempt has a new session");
    assert_eq!(invoices(orders[0]), "1");
    assert_eq!(letter(&unreadable, "reason"), "rejected");
    assert_eq!(letter(&cancelled, "reason"), "rejected");
    assert_eq!(letter(&cancelled, "error"), "no handler for order.cancelled");
    let malformed = format!(
        "SELECT count(*)::text FROM inbox_dead_letter WHERE topic = '{}' AND reason = 'malformed'",
        queue.name
    );
    assert_eq!(database::text(&malformed), "1");

    // An operator corrects the message, and asks for a redrive.
    let corrected = String::from_utf8(placed(orders[2], &queue).payload.to_vec()).expect("a text");
    let id = letter(&unreadable, "id");
    database::execute(&format!(
        "UPDATE inbox_dead_letter SET payload = convert_to('{corrected}', 'UTF8') WHERE id = '{id}';
        INSERT INTO inbox_audit (actor, note, action, dead_letter, consumer)
            VALUES ('ann', 'corrected', 'redrive', '{id}', 'billing')"
    ));
    eventually("the redrive takes effect", || letter(&unreadable, "resolution") == "applied");
    assert_eq!(invoices(orders[2]), "1");

    // The loop goes on after the loss of its connection to the database, in its session with the
    // broker. A new process goes on after a kill.
    let ended = database::text(&format!("SELECT count(pg_terminate_backend(pid))::text {sessions}"));
    assert_ne!(ended, "0");
    queue.publish(&[&lost]);
    eventually("it goes on", || invoices(orders[3]) == "1");
    assert!(consumer.is_running());
    assert!(!consumer.printed().contains("begins again"), "{}", consumer.printed());
    drop(consumer);
    queue.publish(&[&first, &failing, &lost, &last]);
    let consumer = Consumer::start(program, &queue);
    eventually("everything is handled", || invoices(orders[4]) == "1");
    eventually("everything is settled", || queue.left() == 0);
    drop(consumer);
    // An unsettled message would be back in the queue once RabbitMQ has noticed the end.
    thread::sleep(Duration::from_millis(500));
    assert_eq!(queue.left(), 0);
    for order in orders {
        assert_eq!(invoices(order), "1", "order {order}");
    }
    assert_eq!(invoices(order_cancelled), "0");
}

/// Goal: a database that permits logins and refuses work costs no delivery, because a quorum queue
/// drops a message at its delivery limit. Oracle: the broker's word about the message.
fn refused(program: Program) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let queue = Queue::declare(program);
    let order = order();
    queue.publish(&[&placed(order, &queue)]);
    let read_only = "&options=-c%20default_transaction_read_only%3Don";
    let consumer = Consumer::start_with(program, &queue, read_only);
    eventually("it has tried twice", || consumer.printed().matches("begins again").count() >= 2);
    assert!(consumer.printed().contains("read-only transaction"), "{}", consumer.printed());
    drop(consumer);
    // An unsettled message would be back in the queue once RabbitMQ has noticed the end.
    thread::sleep(Duration::from_millis(500));
    assert!(!queue.was_delivered());

    let consumer = Consumer::start(program, &queue);
    eventually("it is handled once the database works", || invoices(order) == "1");
    eventually("it is settled", || queue.left() == 0);
    drop(consumer);
}
