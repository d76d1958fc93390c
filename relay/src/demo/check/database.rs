//! Business rows, outbox, inbox and effects, read with plain SQL.

use std::str::FromStr;

use uuid::Uuid;

use super::observations::{Effect, Order, OutboxRow};
use crate::demo::shop::CONSUMER;
use crate::demo::target::Pool;

/// The rows of the producer's database.
#[derive(Debug, Default)]
pub(crate) struct ProducerRows {
    pub(crate) orders: Vec<Order>,
    pub(crate) outbox: Vec<OutboxRow>,
    pub(crate) parked: u64,
}

/// The rows of the consumer's database.
#[derive(Debug, Default)]
pub(crate) struct ConsumerRows {
    pub(crate) inbox: Vec<Uuid>,
    pub(crate) effects: Vec<Effect>,
    pub(crate) dead_letters: u64,
}

const ORDERS: &str = "SELECT number, customer, seq, cents FROM demo_order ORDER BY number";
const OUTBOX: &str = "SELECT CAST(message_id AS text), payload FROM outbox_message ORDER BY id";
const PARKED: &str = "SELECT count(*) FROM outbox_exception";
const INBOX: &str =
    "SELECT CAST(message_id AS text) FROM inbox_message WHERE consumer = $1 AND dead_letter IS NULL";
const EFFECTS: &str = "SELECT message_id, cents, payload FROM demo_effect ORDER BY place";
const DEAD_LETTERS: &str = "SELECT count(*) FROM inbox_dead_letter";

type OrderTuple = (i64, String, i64, i64);
type OutboxTuple = (String, Vec<u8>);
type EffectTuple = (String, i64, Vec<u8>);

/// The same text for both databases; the types of pool and rows differ.
macro_rules! on {
    ($pool:expr, $pool_name:ident => $body:expr) => {
        match $pool {
            Pool::Postgres($pool_name) => $body,
            Pool::Sqlite($pool_name) => $body,
        }
    };
}

/// Reads the producer's database.
pub(crate) async fn read_producer(pool: &Pool) -> sqlx::Result<ProducerRows> {
    let (orders, outbox, parked): (Vec<OrderTuple>, Vec<OutboxTuple>, i64) = on!(pool, pool => (
        sqlx::query_as(ORDERS).fetch_all(pool).await?,
        sqlx::query_as(OUTBOX).fetch_all(pool).await?,
        sqlx::query_scalar(PARKED).fetch_one(pool).await?,
    ));
    let orders = orders.into_iter().map(|(number, customer, seq, cents)| Order {
        number: number.unsigned_abs(),
        customer,
        seq: seq.unsigned_abs(),
        cents: cents.unsigned_abs(),
    });
    let outbox = outbox.into_iter().map(|(id, payload)| Ok(OutboxRow { id: uuid(&id)?, payload }));
    let outbox = outbox.collect::<sqlx::Result<_>>()?;
    Ok(ProducerRows { orders: orders.collect(), outbox, parked: parked.unsigned_abs() })
}

/// Reads the consumer's database.
pub(crate) async fn read_consumer(pool: &Pool) -> sqlx::Result<ConsumerRows> {
    let (inbox, effects, dead_letters): (Vec<String>, Vec<EffectTuple>, i64) = on!(pool, pool => (
        sqlx::query_scalar(INBOX).bind(CONSUMER).fetch_all(pool).await?,
        sqlx::query_as(EFFECTS).fetch_all(pool).await?,
        sqlx::query_scalar(DEAD_LETTERS).fetch_one(pool).await?,
    ));
    let effects = effects
        .into_iter()
        .map(|(id, cents, payload)| Ok(Effect { id: uuid(&id)?, cents: cents.unsigned_abs(), payload }));
    let inbox = inbox.iter().map(|id| uuid(id));
    Ok(ConsumerRows {
        inbox: inbox.collect::<sqlx::Result<_>>()?,
        effects: effects.collect::<sqlx::Result<_>>()?,
        dead_letters: dead_letters.unsigned_abs(),
    })
}

fn uuid(text: &str) -> sqlx::Result<Uuid> {
    Uuid::from_str(text).map_err(|error| sqlx::Error::Decode(error.into()))
}
