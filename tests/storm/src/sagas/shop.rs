//! Tables and statements, the same for both databases.

use std::num::NonZeroU32;

use sqlx::pool::PoolOptions;
use sqlx::{Connection as _, PgConnection, Pool, Postgres, Sqlite, SqliteConnection};

use crate::Failure;

/// The topics of requests and replies.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SagaTopics {
    /// Requests to ship, and their cancellations.
    pub ship: String,
    /// The answers of shipping.
    pub replies: String,
}

/// Number of items in stock: few, so that sagas contend for them.
pub(super) const ITEMS: i64 = 12;
/// Units of each item.
pub(super) const FREE: i64 = 1_000_000_000;
/// The customers' money, in cents.
pub(super) const CENTS: i64 = 1_000_000_000_000;

/// The effect of a step or of its undo (saga, step, service, whether it is an undo, amount).
pub(super) type EffectRow = (String, String, String, bool, i64);

/// The database of a service.
pub(crate) trait Shop: saga::Dialect {
    /// The statement that creates the table of effects, whose rows are numbered.
    const CREATE_EFFECTS: &'static str;

    /// Returns a pool that connects on demand, with this maximum number of connections.
    fn pool(url: &str, connections_max: NonZeroU32) -> Result<Pool<Self>, Failure>;

    /// Connects without a pool.
    fn connect(url: &str) -> impl Future<Output = Result<Self::Connection, Failure>> + Send;

    /// Runs a statement with these texts and, as the last parameter, this number. Returns the
    /// number of affected rows.
    fn execute(
        connection: &mut Self::Connection,
        sql: &'static str,
        texts: &[&str],
        number: Option<i64>,
    ) -> impl Future<Output = sqlx::Result<u64>> + Send;

    /// Reads one text.
    fn text(
        connection: &mut Self::Connection,
        sql: &'static str,
        text: &str,
    ) -> impl Future<Output = sqlx::Result<Option<String>>> + Send;

    /// Reads a number.
    fn number(
        connection: &mut Self::Connection,
        sql: &'static str,
    ) -> impl Future<Output = sqlx::Result<i64>> + Send;

    /// Reads pairs of texts.
    fn pairs(
        connection: &mut Self::Connection,
        sql: &'static str,
    ) -> impl Future<Output = sqlx::Result<Vec<(String, String)>>> + Send;

    /// Reads the effects, in their order.
    fn effects(
        connection: &mut Self::Connection,
    ) -> impl Future<Output = sqlx::Result<Vec<EffectRow>>> + Send;
}

const EFFECTS: &str = "SELECT saga, step, service, is_undo, amount FROM saga_effect ORDER BY place";
const CREATE_SHOP: [&str; 3] = [
    "CREATE TABLE shop_order (id text PRIMARY KEY)",
    "CREATE TABLE stock (item text PRIMARY KEY, free bigint NOT NULL)",
    "CREATE TABLE shipment (id text PRIMARY KEY, state text NOT NULL)",
];
const CREATE_BANK: [&str; 2] = [
    "CREATE TABLE bank_account (name text PRIMARY KEY, cents bigint NOT NULL)",
    "CREATE TABLE bank_ledger (key text PRIMARY KEY, state text NOT NULL, cents bigint NOT NULL)",
];
const ITEM: &str = "INSERT INTO stock (item, free) VALUES ($1, $2)";
const ACCOUNT: &str = "INSERT INTO bank_account (name, cents) VALUES ($1, $2)";

/// Creates and fills the tables that the shop needs in addition to those of the sagas.
pub(crate) async fn create_shop<DB: Shop>(connection: &mut DB::Connection) -> Result<(), Failure> {
    DB::execute(connection, DB::CREATE_EFFECTS, &[], None).await?;
    for statement in CREATE_SHOP {
        DB::execute(connection, statement, &[], None).await?;
    }
    for item in 0..ITEMS {
        DB::execute(connection, ITEM, &[&item.to_string()], Some(FREE)).await?;
    }
    Ok(())
}

/// Creates and fills the tables of the bank.
pub(crate) async fn create_bank<DB: Shop>(connection: &mut DB::Connection) -> Result<(), Failure> {
    DB::execute(connection, DB::CREATE_EFFECTS, &[], None).await?;
    for statement in CREATE_BANK {
        DB::execute(connection, statement, &[], None).await?;
    }
    DB::execute(connection, ACCOUNT, &["customers"], Some(CENTS)).await?;
    DB::execute(connection, ACCOUNT, &["shop"], Some(0)).await?;
    Ok(())
}

/// Timeout for a connection from the pool.
const ACQUIRE: std::time::Duration = std::time::Duration::from_secs(5);

macro_rules! shop {
    ($database:ty, $connection:ty, $place:literal, $options:expr) => {
        impl Shop for $database {
            const CREATE_EFFECTS: &'static str = concat!(
                "CREATE TABLE saga_effect (place ",
                $place,
                ", saga text NOT NULL, step text NOT NULL, service text NOT NULL, is_undo boolean NOT NULL, \
                 amount bigint NOT NULL)"
            );

            fn pool(url: &str, connections_max: NonZeroU32) -> Result<Pool<Self>, Failure> {
                let options: PoolOptions<Self> = outbox::pool_options::<Self>();
                let options = options.acquire_timeout(ACQUIRE).max_connections(connections_max.get());
                Ok(options.connect_lazy_with($options(url)?))
            }

            async fn connect(url: &str) -> Result<$connection, Failure> {
                Ok(<$connection>::connect_with(&$options(url)?).await?)
            }

            async fn execute(
                connection: &mut $connection,
                sql: &'static str,
                texts: &[&str],
                number: Option<i64>,
            ) -> sqlx::Result<u64> {
                let mut query = sqlx::query(sql);
                for text in texts {
                    query = query.bind((*text).to_owned());
                }
                if let Some(number) = number {
                    query = query.bind(number);
                }
                Ok(query.execute(connection).await?.rows_affected())
            }

            async fn text(
                connection: &mut $connection,
                sql: &'static str,
                text: &str,
            ) -> sqlx::Result<Option<String>> {
                sqlx::query_scalar(sql).bind(text.to_owned()).fetch_optional(connection).await
            }

            async fn number(connection: &mut $connection, sql: &'static str) -> sqlx::Result<i64> {
                sqlx::query_scalar(sql).fetch_one(connection).await
            }

            async fn pairs(
                connection: &mut $connection,
                sql: &'static str,
            ) -> sqlx::Result<Vec<(String, String)>> {
                sqlx::query_as(sql).fetch_all(connection).await
            }

            async fn effects(connection: &mut $connection) -> sqlx::Result<Vec<EffectRow>> {
                sqlx::query_as(EFFECTS).fetch_all(connection).await
            }
        }
    };
}

shop!(Postgres, PgConnection, "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY", |url| {
    outbox::connect::postgres_options(url, false)
});
shop!(Sqlite, SqliteConnection, "INTEGER PRIMARY KEY AUTOINCREMENT", outbox::connect::sqlite_options);
