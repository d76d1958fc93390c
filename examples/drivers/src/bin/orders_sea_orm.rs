//! Places an order and bills it, with SeaORM:
//!
//! ```sh
//! DATABASE_URL=postgres://localhost/billing cargo run --bin orders_sea_orm 7
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
use drivers::sea_orm::{apply, redrive, run, run_alone};
use sea_orm::{ActiveModelTrait, Database, DatabaseConnection, DatabaseTransaction, Set, TransactionTrait};
use statements::message::{Committed, Delivery, Message, MessageId, Settlement};
use statements::{ConsumerName, Inbox, Outbox, Outcome};
use tokio::time::sleep;

/// How often the inbox is maintained.
const HOUR: Duration = Duration::from_secs(3_600);

/// Deliveries that the broker hands out ahead. The loop takes one at a time, and a quorum queue
/// counts all of them when their session ends.
const PREFETCH: u16 = 16;

type Failure = statements::Failure<sea_orm::DbErr>;

mod orders {
    use sea_orm::entity::prelude::*;

    #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    #[sea_orm(table_name = "orders")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub id: i64,
        pub customer: String,
        pub cents: i64,
    }

    #[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
    pub enum Relation {}

    impl ActiveModelBehavior for ActiveModel {}
}

mod invoice {
    use sea_orm::entity::prelude::*;

    #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    #[sea_orm(table_name = "invoice")]
    pub struct Model {
        #[sea_orm(primary_key)]
        pub id: i64,
        pub message_id: Uuid,
        pub order_id: i64,
        pub customer: String,
        pub cents: i64,
    }

    #[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
    pub enum Relation {}

    impl ActiveModelBehavior for ActiveModel {}
}

async fn place(connection: &DatabaseConnection, order: &OrderPlaced) -> Result<MessageId, Box<dyn Error>> {
    let transaction = connection.begin().await?;
    let row = orders::ActiveModel {
        id: Set(order.order),
        customer: Set(order.customer.clone()),
        cents: Set(order.cents),
    };
    row.insert(&transaction).await?;
    let enqueued = run(&transaction, Outbox::new().enqueue(order)).await?;
    transaction.commit().await?;
    Ok(enqueued.id())
}

async fn bill(transaction: &DatabaseTransaction, message: &Message) -> Result<(), Failure> {
    let order = OrderPlaced::read(message).map_err(|error| Failure::reject(error.to_string()))?;
    let row = invoice::ActiveModel {
        message_id: Set(message.id.as_uuid()),
        order_id: Set(order.order),
        customer: Set(order.customer.clone()),
        cents: Set(order.cents),
        ..Default::default()
    };
    row.insert(transaction).await?;
    Ok(())
}

/// Bills what is delivered, one message after the other. An error of the session with the broker
/// ends it. Nothing is lost then: what is not settled comes again.
async fn consume(subscriber: &Subscriber, inbox: &Inbox) -> Result<(), Box<dyn Error>> {
    let mut connection = connect().await?;
    // A database that refuses work ends this before there are deliveries: a quorum queue counts
    // those of a session that ends, and drops a message at its limit.
    maintain(&connection, inbox).await?;
    redrive(&connection, inbox, bill).await?;
    let mut maintained_at = Instant::now();
    let mut subscription = subscriber.subscribe().await?;
    loop {
        for delivery in subscription.receive(NonZeroUsize::MIN, Duration::from_secs(5)).await? {
            let proof = handled(&mut connection, inbox, &delivery).await;
            subscription.settle(vec![Settlement::done(&delivery, proof)?]).await?;
        }
        if let Err(error) = between(&connection, inbox, &mut maintained_at).await {
            eprintln!("tries again on new connections: {error}");
            renew(&mut connection, 1).await;
        }
    }
}

/// Handles a delivery until its outcome is final. Returns the proof that settles it. An error of
/// the database does not end the session with the broker.
async fn handled(connection: &mut DatabaseConnection, inbox: &Inbox, delivery: &Delivery) -> Committed {
    let mut errors = 0;
    loop {
        match attempt(connection, inbox, delivery).await {
            Ok(Outcome::Applied(proof) | Outcome::Known(proof) | Outcome::DeadLetter(proof)) => return proof,
            Ok(Outcome::Again { attempts }) => renew(connection, attempts).await,
            Err(error) => {
                errors += 1;
                eprintln!("tries again on new connections: {error}");
                renew(connection, errors).await;
            }
        }
    }
}

async fn attempt(
    connection: &DatabaseConnection,
    inbox: &Inbox,
    delivery: &Delivery,
) -> Result<Outcome, statements::Error<sea_orm::DbErr>> {
    match &delivery.message {
        Ok(message) => {
            let handler = async |transaction: &DatabaseTransaction| bill(transaction, message).await;
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
    connection: &DatabaseConnection,
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

/// Waits, and makes a new pool, so that a broken session does not fail every attempt. If this
/// does not succeed, the next statement fails, and the caller tries again.
async fn renew(connection: &mut DatabaseConnection, failures: u32) {
    sleep(pause(failures)).await;
    match connect().await {
        Ok(connected) => *connection = connected,
        Err(error) => eprintln!("no connection: {error}"),
    }
}

async fn connect() -> Result<DatabaseConnection, Box<dyn Error>> {
    Ok(Database::connect(env::var("DATABASE_URL")?).await?)
}

/// Makes the next days of the inbox, and forgets old ones. What fails waits for the next call.
async fn maintain(connection: &DatabaseConnection, inbox: &Inbox) -> Result<(), Box<dyn Error>> {
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
    let connection = connect().await?;

    let id = place(&connection, &order).await?;
    println!("placed order {}: message {id}", order.order);

    maintain(&connection, &inbox).await?;
    let message = order.delivered(id)?;
    for delivery in ["first", "second"] {
        let handler = async |transaction: &DatabaseTransaction| bill(transaction, &message).await;
        let outcome = apply(&connection, &inbox, &message, handler).await?;
        println!("{delivery} delivery: {outcome:?}");
    }
    Ok(())
}
