//! Places an order and bills it, with diesel-async:
//!
//! ```sh
//! DATABASE_URL=postgres://localhost/billing cargo run --bin orders_diesel_async 7
//! ```

use std::env;
use std::error::Error;

use diesel::prelude::*;
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl};
use drivers::diesel_async::{apply, run, run_alone};
use drivers::orders::OrderPlaced;
use statements::message::{Message, MessageId};
use statements::{ConsumerName, Inbox, Outbox, Outcome};

diesel::table! {
    orders (id) { id -> BigInt, customer -> Text, cents -> BigInt, }
}
diesel::table! {
    invoice (order_id) { message_id -> Uuid, order_id -> BigInt, customer -> Text, cents -> BigInt, }
}

type Failure = statements::Failure<diesel::result::Error>;
type Billed = Result<Outcome, statements::Error<diesel::result::Error>>;

async fn place(connection: &mut AsyncPgConnection, order: &OrderPlaced) -> Result<MessageId, Failure> {
    let work = async |connection: &mut AsyncPgConnection| {
        let row =
            (orders::id.eq(order.order), orders::customer.eq(&order.customer), orders::cents.eq(order.cents));
        diesel::insert_into(orders::table).values(row).execute(connection).await?;
        Ok(run(connection, Outbox::new().enqueue(order)).await?.id())
    };
    connection.transaction(work).await
}

async fn bill(connection: &mut AsyncPgConnection, inbox: &Inbox, message: &Message) -> Billed {
    let handler = async |connection: &mut AsyncPgConnection| {
        let order = OrderPlaced::read(message).map_err(|error| Failure::reject(error.to_string()))?;
        let row = (
            invoice::message_id.eq(message.id.as_uuid()),
            invoice::order_id.eq(order.order),
            invoice::customer.eq(&order.customer),
            invoice::cents.eq(order.cents),
        );
        diesel::insert_into(invoice::table).values(row).execute(connection).await?;
        Ok(())
    };
    apply(connection, inbox, message, handler).await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let order = order()?;
    let mut connection = AsyncPgConnection::establish(&env::var("DATABASE_URL")?).await?;

    let id = place(&mut connection, &order).await?;
    println!("placed order {}: message {id}", order.order);

    let inbox = Inbox::new(ConsumerName::new("billing")?);
    for problem in run_alone(&mut connection, inbox.maintain()).await? {
        eprintln!("maintenance of the inbox: {problem}");
    }
    let message = order.delivered(id)?;
    println!("first delivery: {:?}", bill(&mut connection, &inbox, &message).await?);
    println!("second delivery: {:?}", bill(&mut connection, &inbox, &message).await?);
    Ok(())
}

fn order() -> Result<OrderPlaced, Box<dyn Error>> {
    let number = env::args().nth(1).ok_or("which order? Give its number")?;
    Ok(OrderPlaced { order: number.parse()?, customer: String::from("ann"), cents: 1250 })
}
