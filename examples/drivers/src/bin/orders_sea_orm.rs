//! Places an order and bills it, with SeaORM:
//!
//! ```sh
//! DATABASE_URL=postgres://localhost/billing cargo run --bin orders_sea_orm 7
//! ```

use std::env;
use std::error::Error;

use drivers::orders::OrderPlaced;
use drivers::sea_orm::{apply, run, run_alone};
use sea_orm::{ActiveModelTrait, Database, DatabaseConnection, DatabaseTransaction, Set, TransactionTrait};
use statements::message::{Message, MessageId};
use statements::{ConsumerName, Inbox, Outbox, Outcome};

type Failure = statements::Failure<sea_orm::DbErr>;
type Billed = Result<Outcome, statements::Error<sea_orm::DbErr>>;

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

async fn bill(connection: &DatabaseConnection, inbox: &Inbox, message: &Message) -> Billed {
    let handler = async |transaction: &DatabaseTransaction| {
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
    };
    apply(connection, inbox, message, handler).await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let order = order()?;
    let connection = Database::connect(env::var("DATABASE_URL")?).await?;

    let id = place(&connection, &order).await?;
    println!("placed order {}: message {id}", order.order);

    let inbox = Inbox::new(ConsumerName::new("billing")?);
    for problem in run_alone(&connection, inbox.maintain()).await? {
        eprintln!("maintenance of the inbox: {problem}");
    }
    let message = order.delivered(id)?;
    println!("first delivery: {:?}", bill(&connection, &inbox, &message).await?);
    println!("second delivery: {:?}", bill(&connection, &inbox, &message).await?);
    Ok(())
}

fn order() -> Result<OrderPlaced, Box<dyn Error>> {
    let number = env::args().nth(1).ok_or("which order? Give its number")?;
    Ok(OrderPlaced { order: number.parse()?, customer: String::from("ann"), cents: 1250 })
}
