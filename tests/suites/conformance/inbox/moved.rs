//! Messages that move from process to process while the first one still has them in hand: no
//! process counts as ended.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use inbox::{Consumer, Handler, HandlerError, Inbox, RunError, Tx};
use message::Message;
use sqlx::postgres::PgPoolOptions;
use sqlx::{PgPool, Postgres};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::inbox::broker::Broker;
use crate::inbox::database::{Database, TestDatabase};
use crate::inbox::failures::{dead_letters, until};
use crate::inbox::message;
use tests::Stage;

tests::cases! { "inbox/moved/{on}/{case}":
    on_postgres {
        a_process_that_has_not_begun_yet_is_not_counted_as_ended_on_postgres,
        a_message_that_moves_takes_effect_at_repeatable_read_on_postgres,
    }
    postgres { a_message_that_moves_stops_no_process_and_counts_none_on_postgres }
}

const MOVES: &[u8] = b"moves";

/// A process that finds a message in hand asks again after a second.
const ASKED_TWICE: Duration = Duration::from_millis(2_500);

/// Handles the one message until the test lets it end.
#[derive(Clone)]
struct Long {
    begun: Arc<watch::Sender<u32>>,
    may_end: Arc<watch::Sender<bool>>,
}

#[async_trait]
impl Handler<Postgres> for Long {
    async fn handle(
        &self,
        tx: &mut Tx<Postgres>,
        message: &Message,
    ) -> Result<Option<Vec<u8>>, HandlerError> {
        <Postgres as TestDatabase>::apply(tx, "billing", message).await?;
        if message.payload == MOVES {
            self.begun.send_modify(|begun| *begun += 1);
            drop(self.may_end.subscribe().wait_for(|may_end| *may_end).await);
        }
        Ok(None)
    }
}

/// Reads how many processes ended with each message that is in hand or failed.
async fn ends_in(admin: &PgPool) -> Vec<i32> {
    sqlx::query_scalar("SELECT ends FROM inbox_attempt").fetch_all(admin).await.unwrap()
}

/// Waits until no note of a message is left: a process without a session checks its copy once more.
async fn none_in_hand(admin: &PgPool) {
    until("no message is in hand", async || ends_in(admin).await.is_empty()).await;
}

/// Starts a process of the consumer with one worker. It subscribes once; the broker gives its
/// deliveries to the next process.
fn process(inbox: &Inbox<Postgres>, broker: &Broker, handler: &Long) -> JoinHandle<Result<(), RunError>> {
    let (broker, has_subscribed) = (broker.clone(), Arc::new(AtomicBool::new(false)));
    let consumer = Consumer::builder(inbox.clone(), "billing")
        .subscribe(move || {
            let (broker, has_subscribed) = (broker.clone(), Arc::clone(&has_subscribed));
            async move {
                if has_subscribed.swap(true, Ordering::SeqCst) {
                    std::future::pending::<()>().await;
                }
                Ok(broker.subscribe())
            }
        })
        .handler(handler.clone())
        .concurrency(NonZeroUsize::MIN);
    tokio::spawn(consumer.run(std::future::pending::<()>()))
}

/// Goal: a message moves from process to process while the first one still handles it. That is not
/// counted against the message, and the processes still do other work. When the first process ends
/// after all, that counts once. Oracle: the other messages that each process handles with its one
/// worker; the count in the database; the effects.
async fn a_message_that_moves_stops_no_process_and_counts_none_on_postgres(stage: Stage) {
    for is_ended in [false, true] {
        super::each(stage.clone(), async |database| a_message_moves(database, is_ended).await).await;
    }
}

async fn a_message_moves(database: &Database<Postgres>, is_ended: bool) {
    // A short timeout, so that a process that hangs soon fails.
    let options = database.options().call_timeout(Duration::from_secs(5));
    let inbox = Inbox::<Postgres>::open(database.pool.clone(), options).await.unwrap();
    let broker = Broker::new([message("moves")]);
    let handler = Long { begun: Arc::new(watch::channel(0).0), may_end: Arc::new(watch::channel(false).0) };
    let mut begun = handler.begun.subscribe();
    let mut processes = vec![process(&inbox, &broker, &handler)];
    begun.wait_for(|begun| *begun == 1).await.unwrap();
    let mut expected = vec![String::from("moves")];
    for number in 2..=7 {
        processes.push(process(&inbox, &broker, &handler));
        broker.subscribed_at_least(number).await;
        let beside = format!("beside {number}");
        broker.send(Ok(message(&beside)));
        broker.settled_at_least(expected.len()).await;
        expected.push(beside);
    }
    expected.sort_unstable();
    // Every process asks a second time, after which one that has not begun would count as ended.
    tokio::time::sleep(ASKED_TWICE).await;
    let ends = async || ends_in(&database.admin).await;
    assert_eq!(ends().await, [0]);
    if is_ended {
        processes[0].abort();
        begun.wait_for(|begun| *begun == 2).await.unwrap();
        assert_eq!(ends().await, [1]);
    }
    handler.may_end.send_replace(true);
    broker.drained().await;
    let mut effects = <Postgres as TestDatabase>::effects(&database.pool, "billing").await;
    effects.sort_unstable();
    assert_eq!(effects, expected);
    none_in_hand(&database.admin).await;
    assert_eq!(dead_letters(&inbox).await, []);
    processes.iter().for_each(JoinHandle::abort);
}

/// Goal: other processes that get a message while it is handled do not abort its transaction, where
/// transactions see the rows as they were at their beginning. Oracle: how often it was handled, and
/// its effects.
async fn a_message_that_moves_takes_effect_at_repeatable_read_on_postgres(database: &Database<Postgres>) {
    let connect = (*database.pool.connect_options()).clone();
    let connect = connect.options([("default_transaction_isolation", "repeatable read")]);
    let pool = PgPoolOptions::new().max_connections(8).connect_with(connect).await.unwrap();
    let inbox = Inbox::<Postgres>::open(pool, database.options()).await.unwrap();
    let broker = Broker::new([message("moves")]);
    let handler = Long { begun: Arc::new(watch::channel(0).0), may_end: Arc::new(watch::channel(false).0) };
    let mut processes = vec![process(&inbox, &broker, &handler)];
    handler.begun.subscribe().wait_for(|begun| *begun == 1).await.unwrap();
    for (number, settled) in [(2, 1), (3, 2)] {
        processes.push(process(&inbox, &broker, &handler));
        broker.subscribed_at_least(number).await;
        // It has asked for the message, and found it in hand, when it handles the next one.
        broker.send(Ok(message(&format!("beside {number}"))));
        broker.settled_at_least(settled).await;
    }
    handler.may_end.send_replace(true);
    broker.drained().await;
    assert_eq!(*handler.begun.borrow(), 1, "its first transaction has committed");
    let mut effects = <Postgres as TestDatabase>::effects(&database.pool, "billing").await;
    effects.sort_unstable();
    assert_eq!(effects, ["beside 2", "beside 3", "moves"]);
    none_in_hand(&database.admin).await;
    assert_eq!(dead_letters(&inbox).await, []);
    processes.iter().for_each(JoinHandle::abort);
}

/// Goal: a process that has recorded that it has a message in hand, and waits for a connection to
/// begin, is not counted as ended by another process that gets the message. Oracle: the count in
/// the database while it waits and when it handles the message; the effects.
async fn a_process_that_has_not_begun_yet_is_not_counted_as_ended_on_postgres(database: &Database<Postgres>) {
    let inbox = database.inbox().await;
    let broker = Broker::new([message("moves")]);
    let handler = Long { begun: Arc::new(watch::channel(0).0), may_end: Arc::new(watch::channel(false).0) };
    let mut begun = handler.begun.subscribe();

    // Once the slow process has recorded the message, it waits for its one connection.
    let (waits, may_begin) = (Arc::new(watch::channel(false).0), Arc::new(watch::channel(false).0));
    let mut waiting = waits.subscribe();
    let slow = PgPoolOptions::new().max_connections(1).acquire_timeout(Duration::from_secs(600));
    let slow = slow.before_acquire({
        let (admin, may_begin) = (database.admin.clone(), Arc::clone(&may_begin));
        move |_, _| {
            let (admin, waits, may_begin) = (admin.clone(), Arc::clone(&waits), Arc::clone(&may_begin));
            Box::pin(async move {
                if !ends_in(&admin).await.is_empty() {
                    waits.send_replace(true);
                    drop(may_begin.subscribe().wait_for(|may_begin| *may_begin).await);
                }
                Ok(true)
            })
        }
    });
    let connect = (*database.pool.connect_options()).clone();
    let slow = slow.connect_with(connect).await.unwrap();
    let slow_inbox = Inbox::<Postgres>::open(slow, database.options()).await.unwrap();
    let slow_process = process(&slow_inbox, &broker, &handler);
    waiting.wait_for(|waits| *waits).await.unwrap();
    assert_eq!(ends_in(&database.admin).await, [0], "it has noted the message");

    let other_process = process(&inbox, &broker, &handler);
    broker.subscribed_at_least(2).await;
    // It has asked for the message, and found it in hand, when it handles the next one.
    broker.send(Ok(message("beside")));
    broker.settled_at_least(1).await;
    assert_eq!(ends_in(&database.admin).await, [0], "it has not begun yet");
    may_begin.send_replace(true);
    begun.wait_for(|begun| *begun == 1).await.unwrap();
    assert_eq!(ends_in(&database.admin).await, [0], "it handles the message");

    handler.may_end.send_replace(true);
    broker.drained().await;
    let mut effects = <Postgres as TestDatabase>::effects(&database.pool, "billing").await;
    effects.sort_unstable();
    assert_eq!(effects, ["beside", "moves"]);
    none_in_hand(&database.admin).await;
    [slow_process, other_process].iter().for_each(JoinHandle::abort);
}
