//! Places an order and bills it, with Diesel:
//!
//! ```sh
//! DATABASE_URL=postgres://localhost/billing cargo run --bin orders_diesel 7
//! ```
//!
//! With `consume` instead of a number and `RABBITMQ_URL=amqp://localhost`, it bills what a relay
//! publishes.

use std::error::Error;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};
use std::{env, thread};

use brokers::rabbitmq::{Config, Subscriber};
use diesel::connection::Connection;
use diesel::pg::PgConnection;
use diesel::prelude::*;
use drivers::diesel::{apply, redrive, run, run_alone};
use drivers::orders::{OrderPlaced, pause};
use statements::message::{Committed, Delivery, Message, MessageId, Settlement};
use statements::{ConsumerName, Inbox, Outbox, Outcome};
use tokio::runtime::Runtime;

diesel::table! {
    orders (id) { id -> BigInt, customer -> Text, cents -> BigInt, }
}
diesel::table! {
    invoice (order_id) { message_id -> Uuid, order_id -> BigInt, customer -> Text, cents -> BigInt, }
}

/// How often the inbox is maintained.
const HOUR: Duration = Duration::from_secs(3_600);

/// Deliveries that the broker hands out ahead. The loop takes one at a time, and a quorum queue
/// counts all of them when their session ends.
const PREFETCH: u16 = 16;

type Failure = statements::Failure<diesel::result::Error>;

fn place(connection: &mut PgConnection, order: &OrderPlaced) -> Result<MessageId, Failure> {
    connection.transaction(|connection| {
        let row =
            (orders::id.eq(order.order), orders::customer.eq(&order.customer), orders::cents.eq(order.cents));
        diesel::insert_into(orders::table).values(row).execute(connection)?;
        Ok(run(connection, Outbox::new().enqueue(order))?.id())
    })
}

fn bill(connection: &mut PgConnection, message: &Message) -> Result<(), Failure> {
    let order = OrderPlaced::read(message).map_err(|error| Failure::reject(error.to_string()))?;
    let row = (
        invoice::message_id.eq(message.id.as_uuid()),
        invoice::order_id.eq(order.order),
        invoice::customer.eq(&order.customer),
        invoice::cents.eq(order.cents),
    );
    diesel::insert_into(invoice::table).values(row).execute(connection)?;
    Ok(())
}

/// Bills what is delivered, one message after the other. An error of the session with the broker
/// ends it. Nothing is lost then: what is not settled comes again.
fn consume(runtime: &Runtime, subscriber: &Subscriber, inbox: &Inbox) -> Result<(), Box<dyn Error>> {
    let mut connection = connect()?;
    // A database that refuses work ends this before there are deliveries: a quorum queue counts
    // those of a session that ends, and drops a message at its limit.
    maintain(&mut connection, inbox)?;
    redrive(&mut connection, inbox, bill)?;
    let mut maintained_at = Instant::now();
    let mut subscription = runtime.block_on(subscriber.subscribe())?;
    loop {
        for delivery in runtime.block_on(subscription.receive(NonZeroUsize::MIN, Duration::from_secs(5)))? {
            let proof = handled(&mut connection, inbox, &delivery);
            runtime.block_on(subscription.settle(vec![Settlement::done(&delivery, proof)?]))?;
        }
        if let Err(error) = between(&mut connection, inbox, &mut maintained_at) {
            eprintln!("tries again on a new connection: {error}");
            renew(&mut connection, 1);
        }
    }
}

/// Handles a delivery until its outcome is final. Returns the proof that settles it. An error of
/// the database does not end the session with the broker.
fn handled(connection: &mut PgConnection, inbox: &Inbox, delivery: &Delivery) -> Committed {
    let mut errors = 0;
    loop {
        match attempt(connection, inbox, delivery) {
            Ok(Outcome::Applied(proof) | Outcome::Known(proof) | Outcome::DeadLetter(proof)) => return proof,
            Ok(Outcome::Again { attempts }) => renew(connection, attempts),
            Err(error) => {
                errors += 1;
                eprintln!("tries again on a new connection: {error}");
                renew(connection, errors);
            }
        }
    }
}

fn attempt(
    connection: &mut PgConnection,
    inbox: &Inbox,
    delivery: &Delivery,
) -> Result<Outcome, statements::Error<diesel::result::Error>> {
    match &delivery.message {
        Ok(message) => apply(connection, inbox, message, |connection| bill(connection, message)),
        Err(malformed) => {
            let letter = run_alone(connection, inbox.refuse_delivery(delivery, malformed))?;
            Ok(Outcome::DeadLetter(letter.after_commit()))
        }
    }
}

/// Maintains the inbox every hour, and carries out redrives.
fn between(
    connection: &mut PgConnection,
    inbox: &Inbox,
    maintained_at: &mut Instant,
) -> Result<(), Box<dyn Error>> {
    if maintained_at.elapsed() > HOUR {
        maintain(connection, inbox)?;
        *maintained_at = Instant::now();
    }
    while redrive(connection, inbox, bill)? {}
    Ok(())
}

/// Waits, and connects again, so that a broken session does not fail every attempt. If this
/// does not succeed, the next statement fails, and the caller tries again.
fn renew(connection: &mut PgConnection, failures: u32) {
    thread::sleep(pause(failures));
    match connect() {
        Ok(connected) => *connection = connected,
        Err(error) => eprintln!("no connection: {error}"),
    }
}

fn connect() -> Result<PgConnection, Box<dyn Error>> {
    Ok(PgConnection::establish(&env::var("DATABASE_URL")?)?)
}

/// Makes the next days of the inbox, and forgets old ones. What fails waits for the next call.
fn maintain(connection: &mut PgConnection, inbox: &Inbox) -> Result<(), Box<dyn Error>> {
    for problem in run_alone(connection, inbox.maintain())? {
        eprintln!("maintenance of the inbox: {problem}");
    }
    Ok(())
}

/// Begins again after each error: a lost session with the broker, or a database that refuses work.
fn consume_always(inbox: &Inbox) -> Result<(), Box<dyn Error>> {
    let queue = env::var("QUEUE").unwrap_or_else(|_| String::from("orders"));
    let mut config = Config::new(env::var("RABBITMQ_URL")?);
    config.prefetch = PREFETCH;
    let subscriber = Subscriber::new(&config, [queue])?;
    let runtime = Runtime::new()?;
    // A subscription may start a task when it is dropped.
    let _context = runtime.enter();
    loop {
        if let Err(error) = consume(&runtime, &subscriber, inbox) {
            eprintln!("begins again in a second: {error}");
        }
        thread::sleep(Duration::from_secs(1));
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let inbox = Inbox::new(ConsumerName::new("billing")?);
    let argument = env::args().nth(1).ok_or("which order? Give its number, or `consume`")?;
    if argument == "consume" {
        return consume_always(&inbox);
    }
    let order = OrderPlaced { order: argument.parse()?, customer: String::from("ann"), cents: 1250 };
    let mut connection = connect()?;

    let id = place(&mut connection, &order)?;
    println!("placed order {}: message {id}", order.order);

    maintain(&mut connection, &inbox)?;
    let message = order.delivered(id)?;
    for delivery in ["first", "second"] {
        let outcome = apply(&mut connection, &inbox, &message, |connection| bill(connection, &message))?;
        println!("{delivery} delivery: {outcome:?}");
    }
    Ok(())
}
