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

/// How often the days of the inbox are made: at least once a day.
const HOUR: Duration = Duration::from_secs(3_600);

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

/// Bills what is delivered, one message after the other. An error ends the session. Nothing is lost
/// then: what is not settled comes again.
async fn consume(subscriber: &Subscriber, inbox: &Inbox) -> Result<(), Box<dyn Error>> {
    let mut connection = AsyncPgConnection::establish(&env::var("DATABASE_URL")?).await?;
    let mut subscription = subscriber.subscribe().await?;
    let mut days_at = None;
    loop {
        if days_at.is_none_or(|at: Instant| at.elapsed() > HOUR) {
            make_days(&mut connection, inbox).await?;
            days_at = Some(Instant::now());
        }
        for delivery in subscription.receive(NonZeroUsize::MIN, Duration::from_secs(5)).await? {
            let proof = handled(&mut connection, inbox, &delivery).await?;
            subscription.settle(vec![Settlement::done(&delivery, proof)?]).await?;
        }
        while redrive(&mut connection, inbox, bill).await? {}
    }
}

/// Handles a delivery until its outcome is final. Returns the proof that settles it.
async fn handled(
    connection: &mut AsyncPgConnection,
    inbox: &Inbox,
    delivery: &Delivery,
) -> Result<Committed, Box<dyn Error>> {
    let message = match &delivery.message {
        Ok(message) => message,
        Err(malformed) => {
            let letter = run_alone(connection, inbox.refuse_delivery(delivery, malformed)).await?;
            return Ok(letter.after_commit());
        }
    };
    loop {
        let handler = async |connection: &mut AsyncPgConnection| bill(connection, message).await;
        match apply(connection, inbox, message, handler).await? {
            Outcome::Applied(proof) | Outcome::Known(proof) | Outcome::DeadLetter(proof) => return Ok(proof),
            Outcome::Again { attempts } => sleep(pause(attempts)).await,
        }
    }
}

/// Forgets the old days of the inbox, and makes the next ones.
async fn make_days(connection: &mut AsyncPgConnection, inbox: &Inbox) -> Result<(), Box<dyn Error>> {
    run_alone(connection, inbox.expire_days()).await?;
    run_alone(connection, inbox.create_days()).await?;
    Ok(())
}

/// Begins again after each error: a lost session or connection, or a conflict with another
/// transaction.
async fn consume_always(inbox: &Inbox) -> Result<(), Box<dyn Error>> {
    let queue = env::var("QUEUE").unwrap_or_else(|_| String::from("orders"));
    let subscriber = Subscriber::new(&Config::new(env::var("RABBITMQ_URL")?), [queue])?;
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
    let mut connection = AsyncPgConnection::establish(&env::var("DATABASE_URL")?).await?;

    let id = place(&mut connection, &order).await?;
    println!("placed order {}: message {id}", order.order);

    make_days(&mut connection, &inbox).await?;
    let message = order.delivered(id)?;
    for delivery in ["first", "second"] {
        let handler = async |connection: &mut AsyncPgConnection| bill(connection, &message).await;
        let outcome = apply(&mut connection, &inbox, &message, handler).await?;
        println!("{delivery} delivery: {outcome:?}");
    }
    Ok(())
}
