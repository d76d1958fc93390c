//! The business of the demo: customers place orders at the producer, the consumer charges them. Plain SQL, the
//! same for both databases but for the types.

use sqlx::{Database, Postgres, Sqlite};

use super::plan::OrderPlan;

/// The CloudEvents type of every message.
pub(crate) const KIND: &str = "order.placed";
/// The media type of every payload.
pub(crate) const CONTENT_TYPE: &str = "application/json";
/// The consumer's name in the inbox.
pub(crate) const CONSUMER: &str = "demo-charges";

/// The content of a message.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Facts {
    /// The order's number.
    pub(crate) order: u64,
    /// Who placed it.
    pub(crate) customer: String,
    /// Which of the customer's orders it is.
    pub(crate) seq: u64,
    /// The price.
    pub(crate) cents: u64,
}

impl Facts {
    /// Reads a payload; nothing when it is none of ours.
    pub(crate) fn read(payload: &[u8]) -> Option<Self> {
        serde_json::from_slice(payload).ok()
    }
}

/// The payload of an order's message.
pub(crate) fn payload_of(order: u64, customer: &str, seq: u64, cents: u64) -> Vec<u8> {
    // Written by hand, so that the bytes depend on nothing but this line.
    format!(r#"{{"order":{order},"customer":"{customer}","seq":{seq},"cents":{cents}}}"#).into_bytes()
}

/// The name of a customer, which is the ordering key of the messages.
pub(crate) fn customer(order: &OrderPlan) -> String {
    format!("customer-{}", order.customer)
}

/// The statements of the business.
pub(crate) trait Shop: Database {
    /// Makes the producer's tables.
    fn create_orders(connection: &mut Self::Connection) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// Makes the consumer's table.
    fn create_effects(connection: &mut Self::Connection) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// Places an order and tells which of the customer's it is. The customer's row stays locked until the
    /// transaction ends: the next order of this customer, and its message, come after this one.
    fn place(
        connection: &mut Self::Connection,
        order: &OrderPlan,
    ) -> impl Future<Output = sqlx::Result<u64>> + Send;

    /// Charges a customer: appends a row, without any check whether it was done before.
    fn charge(
        connection: &mut Self::Connection,
        id: uuid::Uuid,
        facts: &Facts,
        payload: &[u8],
    ) -> impl Future<Output = sqlx::Result<()>> + Send;
}

const CREATE_ORDERS: [&str; 2] = [
    "CREATE TABLE demo_customer (customer text PRIMARY KEY, orders bigint NOT NULL)",
    "CREATE TABLE demo_order (number bigint PRIMARY KEY, customer text NOT NULL, seq bigint NOT NULL, \
     cents bigint NOT NULL)",
];
const COUNT_ORDER: &str = "INSERT INTO demo_customer (customer, orders) VALUES ($1, 1) \
     ON CONFLICT (customer) DO UPDATE SET orders = demo_customer.orders + 1 RETURNING orders";
const INSERT_ORDER: &str = "INSERT INTO demo_order (number, customer, seq, cents) VALUES ($1, $2, $3, $4)";
const INSERT_EFFECT: &str = "INSERT INTO demo_effect (message_id, number, customer, seq, cents, payload) \
     VALUES ($1, $2, $3, $4, $5, $6)";

macro_rules! shop {
    ($database:ty, $create_effects:literal) => {
        impl Shop for $database {
            async fn create_orders(connection: &mut Self::Connection) -> sqlx::Result<()> {
                for statement in CREATE_ORDERS {
                    sqlx::query(statement).execute(&mut *connection).await?;
                }
                Ok(())
            }

            async fn create_effects(connection: &mut Self::Connection) -> sqlx::Result<()> {
                sqlx::query($create_effects).execute(connection).await.map(drop)
            }

            async fn place(connection: &mut Self::Connection, order: &OrderPlan) -> sqlx::Result<u64> {
                let customer = customer(order);
                let seq: i64 =
                    sqlx::query_scalar(COUNT_ORDER).bind(&customer).fetch_one(&mut *connection).await?;
                let insert = sqlx::query(INSERT_ORDER).bind(order.number as i64).bind(&customer).bind(seq);
                insert.bind(i64::from(order.cents)).execute(connection).await?;
                Ok(seq.unsigned_abs())
            }

            async fn charge(
                connection: &mut Self::Connection,
                id: uuid::Uuid,
                facts: &Facts,
                payload: &[u8],
            ) -> sqlx::Result<()> {
                let insert = sqlx::query(INSERT_EFFECT).bind(id.to_string()).bind(facts.order as i64);
                let insert = insert.bind(&facts.customer).bind(facts.seq as i64).bind(facts.cents as i64);
                insert.bind(payload).execute(connection).await.map(drop)
            }
        }
    };
}

shop!(
    Postgres,
    "CREATE TABLE demo_effect (place bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, message_id text NOT NULL, \
     number bigint NOT NULL, customer text NOT NULL, seq bigint NOT NULL, cents bigint NOT NULL, \
     payload bytea NOT NULL)"
);
shop!(
    Sqlite,
    "CREATE TABLE demo_effect (place INTEGER PRIMARY KEY AUTOINCREMENT, message_id text NOT NULL, \
     number bigint NOT NULL, customer text NOT NULL, seq bigint NOT NULL, cents bigint NOT NULL, \
     payload blob NOT NULL)"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_read_back() {
        let facts = Facts::read(&payload_of(7, "customer-2", 3, 1299)).unwrap();
        assert_eq!(facts, Facts { order: 7, customer: "customer-2".into(), seq: 3, cents: 1299 });
        assert_eq!(Facts::read(b"{}"), None);
    }
}
