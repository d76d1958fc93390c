//! Places an order and bills it, with diesel-async:
//!
//! ```sh
//! DATABASE_URL=postgres://localhost/billing cargo run --bin orders_diesel_async 7
//! ```
//!
//! With `consume` instead of a number and `RABBITMQ_URL=amqp://localhost`, it bills what a relay
//! publishes.

use std::env;
use std::error::Error;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use brokers::rabbitmq::{Config, Subscriber};
use diesel::prelude::*;
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl};
use drivers::diesel_async::{apply, redrive, run, run_alone};
use drivers::orders::{OrderPlaced, pause};
use statements::message::{Committed, Delivery, Message, MessageId, Settlement};
use statements::{ConsumerName, Inbox, Outbox, Outcome};
use tokio::time::sleep;

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

async fn place(connection: &mut AsyncPgConnection, order: &OrderPlaced) -> Result<MessageId, Failure> {
    let work = async |connection: &mut AsyncPgConnection| {
        let row =
            (orders::id.eq(order.order), orders::customer.eq(&order.customer), orders::cents.eq(order.cents));
        diesel::insert_into(orders::table).values(row).execute(connection).await?;
        Ok(run(connection, Outbox::new().enqueue(order)).await?.id())
    };
    connection.transaction(work).await
}

async fn bill(connection: &mut AsyncPgConnection, message: &Message) -> Result<(), Failure> {
    let order = OrderPlaced::read(message).map_err(|error| Failure::reject(error.to_string()))?;
    let row = (
        invoice::message_id.eq(message.id.as_uuid()),
        invoice::order_id.eq(order.order),
        invoice::customer.eq(&order.customer),
        invoice::cents.eq(order.cents),
    );
    diesel::insert_into(invoice::table).values(row).execute(connection).await?;
    Ok(())
}

/// Bills what is delivered, one message after the other. An error of the session with the broker
/// ends it. Nothing is lost then: what is not settled comes again.
async fn consume(subscriber: &Subscriber, inbox: &Inbox) -> Result<(), Box<dyn Error>> {
    let mut connection = connect().await?;
    // A database that refuses work ends this before there are deliveries: a quorum queue counts
    // those of a session that ends, and drops a message at its limit.
    maintain(&mut connection, inbox).await?;
    redrive(&mut connection, inbox, bill).await?;
    let mut maintained_at = Instant::now();
    let mut subscription = subscriber.subscribe().await?;
    loop {
        for delivery in subscription.receive(NonZeroUsize::MIN, Duration::from_secs(5)).await? {
            let proof = handled(&mut connection, inbox, &delivery).await;
            subscription.settle(vec![Settlement::done(&delivery, proof)?]).await?;
        }
        if let Err(error) = between(&mut connection, inbox, &mut maintained_at).await {
            eprintln!("tries again on a new connection: {error}");
            renew(&mut connection, 1).await;
        }
    }
}

/// Handles a delivery until its outcome is final. Returns the proof that settles it. An error of
/// the database does not end the session with the broker.
async fn handled(connection: &mut AsyncPgConnection, inbox: &Inbox, delivery: &Delivery) -> Committed {
    let mut errors = 0;
    loop {
        match attempt(connection, inbox, delivery).await {
            Ok(Outcome::Applied(proof) | Outcome::Known(proof) | Outcome::DeadLetter(proof)) => return proof,
            Ok(Outcome::Again { attempts }) => renew(connection, attempts).await,
            Err(error) => {
                errors += 1;
                eprintln!("tries again on a new connection: {error}");
                renew(connection, errors).await;
            }
        }
    }
}

async fn attempt(
    connection: &mut AsyncPgConnection,
    inbox: &Inbox,
    delivery: &Delivery,
) -> Result<Outcome, statements::Error<diesel::result::Error>> {
    match &delivery.message {
        Ok(message) => {
            let handler = async |connection: &mut AsyncPgConnection| bill(connection, message).await;
            apply(connection, inbox, message, handler).await
        }
        Err(malformed) => {
            let letter = run_alone(connection, inbox.refuse_delivery(delivery, malformed)).await?;
            Ok(Outcome::DeadLetter(letter.after_commit()))
        }
    }
}

/// Maintains the inbox every hour, and carries out redrives.
async fn between(
    connection: &mut AsyncPgConnection,
    inbox: &Inbox,
    maintained_at: &mut Instant,
) -> Result<(), Box<dyn Error>> {
    if maintained_at.elapsed() > HOUR {
        maintain(connection, inbox).await?;
        *maintained_at = Instant::now();
    }
    while redrive(connection, inbox, bill).await? {}
    Ok(())
}

/// Waits, and connects again, so that a broken session does not fail every attempt. If this
/// does not succeed, the next statement fails, and the caller tries again.
async fn renew(connection: &mut AsyncPgConnection, failures: u32) {
    sleep(pause(failures)).await;
    match connect().await {
        Ok(connected) => *connection = connected,
        Err(error) => eprintln!("no connection: {error}"),
    }
}

async fn connect() -> Result<AsyncPgConnection, Box<dyn Error>> {
    Ok(AsyncPgConnection::establish(&env::var("DATABASE_URL")?).await?)
}

/// Makes the next days of the inbox, and forgets old ones. What fails waits for the next call.
async fn maintain(connection: &mut AsyncPgConnection, inbox: &Inbox) -> Result<(), Box<dyn Error>> {
    for problem in run_alone(connection, inbox.maintain()).await? {
        eprintln!("maintenance of the inbox: {problem}");
    }
    Ok(())
}

/// Begins again after each error: a lost session with the broker, or a database that refuses work.
async fn consume_always(inbox: &Inbox) -> Result<(), Box<dyn Error>> {
    let queue = env::var("QUEUE").unwrap_or_else(|_| String::from("orders"));
    let mut config = Config::new(env::var("RABBITMQ_URL")?);
    config.prefetch = PREFETCH;
    let subscriber = Subscriber::new(&config, [queue])?;
    loop {
        if let Err(error) = consume(&subscriber, inbox).await {
            eprintln!("begins again in a second: {error}");
        }
        sleep(Duration::from_secs(1)).await;
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let inbox = Inbox::new(ConsumerName::new("billing")?);
    let argument = env::args().nth(1).ok_or("which order? Give its number, or `consume`")?;
    if argument == "consume" {
        return consume_always(&inbox).await;
    }
    let order = OrderPlaced { order: argument.parse()?, customer: String::from("ann"), cents: 1250 };
    let mut connection = connect().await?;

    let id = place(&mut connection, &order).await?;
    println!("placed order {}: message {id}", order.order);

    maintain(&mut connection, &inbox).await?;
    let message = order.delivered(id)?;
    for delivery in ["first", "second"] {
        let handler = async |connection: &mut AsyncPgConnection| bill(connection, &message).await;
        let outcome = apply(&mut connection, &inbox, &message, handler).await?;
        println!("{delivery} delivery: {outcome:?}");
    }
    Ok(())
}
