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

/// How often the days of the inbox are made: at least once a day.
const HOUR: Duration = Duration::from_secs(3_600);

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

/// Bills what is delivered, one message after the other. An error ends the session. Nothing is lost
/// then: what is not settled comes again.
async fn consume(subscriber: &Subscriber, inbox: &Inbox) -> Result<(), Box<dyn Error>> {
    let connection = Database::connect(env::var("DATABASE_URL")?).await?;
    let mut subscription = subscriber.subscribe().await?;
    let mut days_at = None;
    loop {
        if days_at.is_none_or(|at: Instant| at.elapsed() > HOUR) {
            make_days(&connection, inbox).await?;
            days_at = Some(Instant::now());
        }
        for delivery in subscription.receive(NonZeroUsize::MIN, Duration::from_secs(5)).await? {
            let proof = handled(&connection, inbox, &delivery).await?;
            subscription.settle(vec![Settlement::done(&delivery, proof)?]).await?;
        }
        while redrive(&connection, inbox, bill).await? {}
    }
}

/// Handles a delivery until its outcome is final. Returns the proof that settles it.
async fn handled(
    connection: &DatabaseConnection,
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
        let handler = async |transaction: &DatabaseTransaction| bill(transaction, message).await;
        match apply(connection, inbox, message, handler).await? {
            Outcome::Applied(proof) | Outcome::Known(proof) | Outcome::DeadLetter(proof) => return Ok(proof),
            Outcome::Again { attempts } => sleep(pause(attempts)).await,
        }
    }
}

/// Forgets the old days of the inbox, and makes the next ones.
async fn make_days(connection: &DatabaseConnection, inbox: &Inbox) -> Result<(), Box<dyn Error>> {
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
    let connection = Database::connect(env::var("DATABASE_URL")?).await?;

    let id = place(&connection, &order).await?;
    println!("placed order {}: message {id}", order.order);

    make_days(&connection, &inbox).await?;
    let message = order.delivered(id)?;
    for delivery in ["first", "second"] {
        let handler = async |transaction: &DatabaseTransaction| bill(transaction, &message).await;
        let outcome = apply(&connection, &inbox, &message, handler).await?;
        println!("{delivery} delivery: {outcome:?}");
    }
    Ok(())
}
