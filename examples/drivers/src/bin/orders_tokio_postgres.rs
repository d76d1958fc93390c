//! Places an order and bills it, with tokio-postgres:
//!
//! ```sh
//! DATABASE_URL=postgres://localhost/billing cargo run --bin orders_tokio_postgres 7
//! ```

use std::env;
use std::error::Error;

use drivers::orders::OrderPlaced;
use drivers::tokio_postgres::{apply, run, run_alone};
use statements::message::{Message, MessageId};
use statements::{ConsumerName, Inbox, Outbox, Outcome};
use tokio_postgres::{Client, NoTls, Transaction};

type Failure = statements::Failure<tokio_postgres::Error>;
type Billed = Result<Outcome, statements::Error<tokio_postgres::Error>>;

async fn place(client: &mut Client, order: &OrderPlaced) -> Result<MessageId, Box<dyn Error>> {
    let transaction = client.transaction().await?;
    let insert = "INSERT INTO orders VALUES ($1, $2, $3)";
    transaction.execute(insert, &[&order.order, &order.customer, &order.cents]).await?;
    let enqueued = run(&transaction, Outbox::new().enqueue(order)).await?;
    transaction.commit().await?;
    Ok(enqueued.id())
}

async fn bill(client: &mut Client, inbox: &Inbox, message: &Message) -> Billed {
    let id = message.id.to_string();
    let handler = async |transaction: &Transaction<'_>| {
        let order = OrderPlaced::read(message).map_err(|error| Failure::reject(error.to_string()))?;
        let insert =
            "INSERT INTO invoice (message_id, order_id, customer, cents) VALUES ($1::text::uuid, $2, $3, $4)";
        transaction.execute(insert, &[&id, &order.order, &order.customer, &order.cents]).await?;
        Ok(())
    };
    apply(client, inbox, message, handler).await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let order = order()?;
    let connected = tokio_postgres::connect(&env::var("DATABASE_URL")?, NoTls).await?;
    let mut client = connected.0;
    tokio::spawn(connected.1);

    let id = place(&mut client, &order).await?;
    println!("placed order {}: message {id}", order.order);

    let inbox = Inbox::new(ConsumerName::new("billing")?);
    for problem in run_alone(&client, inbox.maintain()).await? {
        eprintln!("maintenance of the inbox: {problem}");
    }
    let message = order.delivered(id)?;
    println!("first delivery: {:?}", bill(&mut client, &inbox, &message).await?);
    println!("second delivery: {:?}", bill(&mut client, &inbox, &message).await?);
    Ok(())
}

fn order() -> Result<OrderPlaced, Box<dyn Error>> {
    let number = env::args().nth(1).ok_or("which order? Give its number")?;
    Ok(OrderPlaced { order: number.parse()?, customer: String::from("ann"), cents: 1250 })
}
