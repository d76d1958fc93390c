//! Places an order and bills it, with tokio-postgres:
//!
//! ```sh
//! DATABASE_URL=postgres://localhost/billing cargo run --bin orders_tokio_postgres 7
//! ```
//!
//! With `consume` instead of a number and `RABBITMQ_URL=amqp://localhost`, it bills what a relay
//! publishes.

use std::env;
use std::error::Error;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use brokers::rabbitmq::{Config, Subscriber};
use drivers::orders::{OrderPlaced, pause};
use drivers::tokio_postgres::{apply, redrive, run, run_alone};
use statements::message::{Committed, Delivery, Message, MessageId, Settlement};
use statements::{ConsumerName, Inbox, Outbox, Outcome};
use tokio::time::sleep;
use tokio_postgres::{Client, NoTls, Transaction};

/// How often the days of the inbox are made: at least once a day.
const HOUR: Duration = Duration::from_secs(3_600);

type Failure = statements::Failure<tokio_postgres::Error>;

async fn place(client: &mut Client, order: &OrderPlaced) -> Result<MessageId, Box<dyn Error>> {
    let transaction = client.transaction().await?;
    let insert = "INSERT INTO orders VALUES ($1, $2, $3)";
    transaction.execute(insert, &[&order.order, &order.customer, &order.cents]).await?;
    let enqueued = run(&transaction, Outbox::new().enqueue(order)).await?;
    transaction.commit().await?;
    Ok(enqueued.id())
}

async fn bill(transaction: &Transaction<'_>, message: &Message) -> Result<(), Failure> {
    let order = OrderPlaced::read(message).map_err(|error| Failure::reject(error.to_string()))?;
    let id = message.id.to_string();
    let insert =
        "INSERT INTO invoice (message_id, order_id, customer, cents) VALUES ($1::text::uuid, $2, $3, $4)";
    transaction.execute(insert, &[&id, &order.order, &order.customer, &order.cents]).await?;
    Ok(())
}

/// Bills what is delivered, one message after the other. An error ends the session. Nothing is lost
/// then: what is not settled comes again.
async fn consume(subscriber: &Subscriber, inbox: &Inbox) -> Result<(), Box<dyn Error>> {
    let connected = tokio_postgres::connect(&env::var("DATABASE_URL")?, NoTls).await?;
    let mut client = connected.0;
    tokio::spawn(connected.1);
    let mut subscription = subscriber.subscribe().await?;
    let mut days_at = None;
    loop {
        if days_at.is_none_or(|at: Instant| at.elapsed() > HOUR) {
            make_days(&client, inbox).await?;
            days_at = Some(Instant::now());
        }
        for delivery in subscription.receive(NonZeroUsize::MIN, Duration::from_secs(5)).await? {
            let proof = handled(&mut client, inbox, &delivery).await?;
            subscription.settle(vec![Settlement::done(&delivery, proof)?]).await?;
        }
        while redrive(&mut client, inbox, bill).await? {}
    }
}

/// Handles a delivery until its outcome is final. Returns the proof that settles it.
async fn handled(
    client: &mut Client,
    inbox: &Inbox,
    delivery: &Delivery,
) -> Result<Committed, Box<dyn Error>> {
    let message = match &delivery.message {
        Ok(message) => message,
        Err(malformed) => {
            let letter = run_alone(client, inbox.refuse_delivery(delivery, malformed)).await?;
            return Ok(letter.after_commit());
        }
    };
    loop {
        let handler = async |transaction: &Transaction<'_>| bill(transaction, message).await;
        match apply(client, inbox, message, handler).await? {
            Outcome::Applied(proof) | Outcome::Known(proof) | Outcome::DeadLetter(proof) => return Ok(proof),
            Outcome::Again { attempts } => sleep(pause(attempts)).await,
        }
    }
}

/// Forgets the old days of the inbox, and makes the next ones.
async fn make_days(client: &Client, inbox: &Inbox) -> Result<(), Box<dyn Error>> {
    run_alone(client, inbox.expire_days()).await?;
    run_alone(client, inbox.create_days()).await?;
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
    let connected = tokio_postgres::connect(&env::var("DATABASE_URL")?, NoTls).await?;
    let mut client = connected.0;
    tokio::spawn(connected.1);

    let id = place(&mut client, &order).await?;
    println!("placed order {}: message {id}", order.order);

    make_days(&client, &inbox).await?;
    let message = order.delivered(id)?;
    for delivery in ["first", "second"] {
        let handler = async |transaction: &Transaction<'_>| bill(transaction, &message).await;
        let outcome = apply(&mut client, &inbox, &message, handler).await?;
        println!("{delivery} delivery: {outcome:?}");
    }
    Ok(())
}
