//! Places an order and bills it, with Diesel:
//!
//! ```sh
//! DATABASE_URL=postgres://localhost/billing cargo run --bin orders_diesel 7
//! ```

use std::env;
use std::error::Error;

use diesel::connection::Connection;
use diesel::pg::PgConnection;
use diesel::prelude::*;
use drivers::diesel::{apply, run, run_alone};
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

fn place(connection: &mut PgConnection, order: &OrderPlaced) -> Result<MessageId, Failure> {
    connection.transaction(|connection| {
        let row =
            (orders::id.eq(order.order), orders::customer.eq(&order.customer), orders::cents.eq(order.cents));
        diesel::insert_into(orders::table).values(row).execute(connection)?;
        Ok(run(connection, Outbox::new().enqueue(order))?.id())
    })
}

fn bill(connection: &mut PgConnection, inbox: &Inbox, message: &Message) -> Billed {
    let handler = |connection: &mut PgConnection| {
        let order = OrderPlaced::read(message).map_err(|error| Failure::reject(error.to_string()))?;
        let row = (
            invoice::message_id.eq(message.id.as_uuid()),
            invoice::order_id.eq(order.order),
            invoice::customer.eq(&order.customer),
            invoice::cents.eq(order.cents),
        );
        diesel::insert_into(invoice::table).values(row).execute(connection)?;
        Ok(())
    };
    apply(connection, inbox, message, handler)
}

fn main() -> Result<(), Box<dyn Error>> {
    let order = order()?;
    let mut connection = PgConnection::establish(&env::var("DATABASE_URL")?)?;

    let id = place(&mut connection, &order)?;
    println!("placed order {}: message {id}", order.order);

    let inbox = Inbox::new(ConsumerName::new("billing")?);
    for problem in run_alone(&mut connection, inbox.maintain())? {
        eprintln!("maintenance of the inbox: {problem}");
    }
    let message = order.delivered(id)?;
    println!("first delivery: {:?}", bill(&mut connection, &inbox, &message)?);
    println!("second delivery: {:?}", bill(&mut connection, &inbox, &message)?);
    Ok(())
}

fn order() -> Result<OrderPlaced, Box<dyn Error>> {
    let number = env::args().nth(1).ok_or("which order? Give its number")?;
    Ok(OrderPlaced { order: number.parse()?, customer: String::from("ann"), cents: 1250 })
}
