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

/// How often the inbox is maintained.
const HOUR: Duration = Duration::from_secs(3_600);

/// Deliveries that the broker hands out ahead. The loop takes one at a time, and a quorum queue
/// counts all of them when their session ends.
const PREFETCH: u16 = 16;

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

/// Bills what is delivered, one message after the other. An error of the session with the broker
/// ends it. Nothing is lost then: what is not settled comes again.
async fn consume(subscriber: &Subscriber, inbox: &Inbox) -> Result<(), Box<dyn Error>> {
    let mut client = connect().await?;
    // A database that refuses work ends this before there are deliveries: a quorum queue counts
    // those of a session that ends, and drops a message at its limit.
    maintain(&client, inbox).await?;
    redrive(&mut client, inbox, bill).await?;
    let mut maintained_at = Instant::now();
    let mut subscription = subscriber.subscribe().await?;
    loop {
        for delivery in subscription.receive(NonZeroUsize::MIN, Duration::from_secs(5)).await? {
            let proof = handled(&mut client, inbox, &delivery).await;
            subscription.settle(vec![Settlement::done(&delivery, proof)?]).await?;
        }
        if let Err(error) = between(&mut client, inbox, &mut maintained_at).await {
            eprintln!("tries again on a new connection: {error}");
            renew(&mut client, 1).await;
        }
    }
}

/// Handles a delivery until its outcome is final. Returns the proof that settles it. An error of
/// the database does not end the session with the broker.
async fn handled(client: &mut Client, inbox: &Inbox, delivery: &Delivery) -> Committed {
    let mut errors = 0;
    loop {
        match attempt(client, inbox, delivery).await {
            Ok(Outcome::Applied(proof) | Outcome::Known(proof) | Outcome::DeadLetter(proof)) => return proof,
            Ok(Outcome::Again { attempts }) => renew(client, attempts).await,
            Err(error) => {
                errors += 1;
                eprintln!("tries again on a new connection: {error}");
                renew(client, errors).await;
            }
        }
    }
}

async fn attempt(
    client: &mut Client,
    inbox: &Inbox,
    delivery: &Delivery,
) -> Result<Outcome, statements::Error<tokio_postgres::Error>> {
    match &delivery.message {
        Ok(message) => {
            let handler = async |transaction: &Transaction<'_>| bill(transaction, message).await;
            apply(client, inbox, message, handler).await
        }
        Err(malformed) => {
            let letter = run_alone(client, inbox.refuse_delivery(delivery, malformed)).await?;
            Ok(Outcome::DeadLetter(letter.after_commit()))
        }
    }
}

/// Maintains the inbox every hour, and carries out redrives.
async fn between(
    client: &mut Client,
    inbox: &Inbox,
    maintained_at: &mut Instant,
) -> Result<(), Box<dyn Error>> {
    if maintained_at.elapsed() > HOUR {
        maintain(client, inbox).await?;
        *maintained_at = Instant::now();
    }
    while redrive(client, inbox, bill).await? {}
    Ok(())
}

/// Waits, and connects again, so that a broken session does not fail every attempt. If this
/// does not succeed, the next statement fails, and the caller tries again.
async fn renew(client: &mut Client, failures: u32) {
    sleep(pause(failures)).await;
    match connect().await {
        Ok(connected) => *client = connected,
        Err(error) => eprintln!("no connection: {error}"),
    }
}

async fn connect() -> Result<Client, Box<dyn Error>> {
    let connected = tokio_postgres::connect(&env::var("DATABASE_URL")?, NoTls).await?;
    tokio::spawn(connected.1);
    Ok(connected.0)
}

/// Makes the next days of the inbox, and forgets old ones. What fails waits for the next call.
async fn maintain(client: &Client, inbox: &Inbox) -> Result<(), Box<dyn Error>> {
    for problem in run_alone(client, inbox.maintain()).await? {
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
    let mut client = connect().await?;

    let id = place(&mut client, &order).await?;
    println!("placed order {}: message {id}", order.order);

    maintain(&client, &inbox).await?;
    let message = order.delivered(id)?;
    for delivery in ["first", "second"] {
        let handler = async |transaction: &Transaction<'_>| bill(transaction, &message).await;
        let outcome = apply(&mut client, &inbox, &message, handler).await?;
        println!("{delivery} delivery: {outcome:?}");
    }
    Ok(())
}
