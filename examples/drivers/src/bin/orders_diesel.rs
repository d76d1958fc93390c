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

/// How often the days of the inbox are made: at least once a day.
const HOUR: Duration = Duration::from_secs(3_600);

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

/// Bills what is delivered, one message after the other. An error ends the session. Nothing is lost
/// then: what is not settled comes again.
fn consume(runtime: &Runtime, subscriber: &Subscriber, inbox: &Inbox) -> Result<(), Box<dyn Error>> {
    let mut connection = PgConnection::establish(&env::var("DATABASE_URL")?)?;
    let mut subscription = runtime.block_on(subscriber.subscribe())?;
    let mut days_at = None;
    loop {
        if days_at.is_none_or(|at: Instant| at.elapsed() > HOUR) {
            make_days(&mut connection, inbox)?;
            days_at = Some(Instant::now());
        }
        for delivery in runtime.block_on(subscription.receive(NonZeroUsize::MIN, Duration::from_secs(5)))? {
            let proof = handled(&mut connection, inbox, &delivery)?;
            runtime.block_on(subscription.settle(vec![Settlement::done(&delivery, proof)?]))?;
        }
        while redrive(&mut connection, inbox, bill)? {}
    }
}

/// Handles a delivery until its outcome is final. Returns the proof that settles it.
fn handled(
    connection: &mut PgConnection,
    inbox: &Inbox,
    delivery: &Delivery,
) -> Result<Committed, Box<dyn Error>> {
    let message = match &delivery.message {
        Ok(message) => message,
        Err(malformed) => {
            let letter = run_alone(connection, inbox.refuse_delivery(delivery, malformed))?;
            return Ok(letter.after_commit());
        }
    };
    loop {
        match apply(connection, inbox, message, |connection| bill(connection, message))? {
            Outcome::Applied(proof) | Outcome::Known(proof) | Outcome::DeadLetter(proof) => return Ok(proof),
            Outcome::Again { attempts } => thread::sleep(pause(attempts)),
        }
    }
}

/// Forgets the old days of the inbox, and makes the next ones.
fn make_days(connection: &mut PgConnection, inbox: &Inbox) -> Result<(), Box<dyn Error>> {
    run_alone(connection, inbox.expire_days())?;
    run_alone(connection, inbox.create_days())?;
    Ok(())
}

/// Begins again after each error: a lost session or connection, or a conflict with another
/// transaction.
fn consume_always(inbox: &Inbox) -> Result<(), Box<dyn Error>> {
    let queue = env::var("QUEUE").unwrap_or_else(|_| String::from("orders"));
    let subscriber = Subscriber::new(&Config::new(env::var("RABBITMQ_URL")?), [queue])?;
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
    let mut connection = PgConnection::establish(&env::var("DATABASE_URL")?)?;

    let id = place(&mut connection, &order)?;
    println!("placed order {}: message {id}", order.order);

    make_days(&mut connection, &inbox)?;
    let message = order.delivered(id)?;
    for delivery in ["first", "second"] {
        let outcome = apply(&mut connection, &inbox, &message, |connection| bill(connection, &message))?;
        println!("{delivery} delivery: {outcome:?}");
    }
    Ok(())
}
