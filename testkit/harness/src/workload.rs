//! The business: accounts for whose rows producers contend, rows with one message each, effects of
//! consumers. Plain SQL, as similar as possible for both databases.

#[cfg(feature = "postgres")]
use sqlx::Postgres;
use sqlx::Sqlite;

/// The statements of the business.
pub trait Workload: outbox::Dialect + inbox::Dialect {
    /// Creates the producers' tables.
    fn create_business(connection: &mut Self::Connection) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// Creates the consumers' table.
    fn create_effects(connection: &mut Self::Connection) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// Locks an account until the transaction ends, and returns its next number.
    fn next_number(
        connection: &mut Self::Connection,
        account: &str,
    ) -> impl Future<Output = sqlx::Result<u64>> + Send;

    /// Writes a business row, or keeps an existing one.
    fn insert_row(
        connection: &mut Self::Connection,
        row: &str,
        account: &str,
        number: u64,
        cents: u64,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// Sets the savepoint.
    fn savepoint(connection: &mut Self::Connection) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// Rolls back to the savepoint.
    fn undo(connection: &mut Self::Connection) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// Applies a message by appending a row, without checking for an earlier one.
    fn apply(
        connection: &mut Self::Connection,
        effect: &Effect<'_>,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;
}

/// An effect of a message.
#[derive(Debug)]
pub struct Effect<'a> {
    /// The consumer's name.
    pub consumer: &'a str,
    /// The scope, such as a tenant.
    pub scope: &'a str,
    /// The message.
    pub id: uuid::Uuid,
    /// The ordering key of the message.
    pub key: &'a str,
    /// The amount.
    pub cents: u64,
    /// Digest of the payload, hexadecimal.
    pub payload: &'a str,
    /// Digest of the headers, hexadecimal.
    pub headers: &'a str,
}

const CREATE_BUSINESS: [&str; 2] = [
    "CREATE TABLE account (name text PRIMARY KEY, numbers bigint NOT NULL)",
    "CREATE TABLE business (row text PRIMARY KEY, account text NOT NULL, number bigint NOT NULL, \
     cents bigint NOT NULL)",
];
const COUNT: &str = "INSERT INTO account (name, numbers) VALUES ($1, 1) \
     ON CONFLICT (name) DO UPDATE SET numbers = account.numbers + 1 RETURNING numbers";
const INSERT_ROW: &str =
    "INSERT INTO business (row, account, number, cents) VALUES ($1, $2, $3, $4) ON CONFLICT (row) DO NOTHING";
const APPLY: &str = "INSERT INTO effect (consumer, scope, message_id, key, cents, payload, headers) \
     VALUES ($1, $2, $3, $4, $5, $6, $7)";

macro_rules! workload {
    ($database:ty, $place:literal) => {
        impl Workload for $database {
            async fn create_business(connection: &mut Self::Connection) -> sqlx::Result<()> {
                for statement in CREATE_BUSINESS {
                    sqlx::query(statement).execute(&mut *connection).await?;
                }
                Ok(())
            }

            async fn create_effects(connection: &mut Self::Connection) -> sqlx::Result<()> {
                let create = concat!(
                    "CREATE TABLE effect (place ",
                    $place,
                    ", consumer text NOT NULL, scope text NOT NULL, message_id text NOT NULL, key text NOT NULL, \
                     cents bigint NOT NULL, payload text NOT NULL, headers text NOT NULL)"
                );
                sqlx::query(create).execute(connection).await.map(drop)
            }

            async fn next_number(connection: &mut Self::Connection, account: &str) -> sqlx::Result<u64> {
                let number: i64 = sqlx::query_scalar(COUNT).bind(account).fetch_one(connection).await?;
                Ok(number.unsigned_abs())
            }

            async fn insert_row(
                connection: &mut Self::Connection,
                row: &str,
                account: &str,
                number: u64,
                cents: u64,
            ) -> sqlx::Result<()> {
                let insert = sqlx::query(INSERT_ROW).bind(row).bind(account).bind(number.cast_signed());
                insert.bind(cents.cast_signed()).execute(connection).await.map(drop)
            }

            async fn savepoint(connection: &mut Self::Connection) -> sqlx::Result<()> {
                sqlx::query("SAVEPOINT before").execute(connection).await.map(drop)
            }

            async fn undo(connection: &mut Self::Connection) -> sqlx::Result<()> {
                sqlx::query("ROLLBACK TO SAVEPOINT before").execute(connection).await.map(drop)
            }

            async fn apply(connection: &mut Self::Connection, effect: &Effect<'_>) -> sqlx::Result<()> {
                let Effect { consumer, scope, id, key, cents, payload, headers } = effect;
                let insert = sqlx::query(APPLY).bind(*consumer).bind(*scope).bind(id.to_string());
                let insert = insert.bind(*key).bind(cents.cast_signed()).bind(*payload).bind(*headers);
                insert.execute(connection).await.map(drop)
            }
        }
    };
}

#[cfg(feature = "postgres")]
workload!(Postgres, "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY");
workload!(Sqlite, "INTEGER PRIMARY KEY AUTOINCREMENT");
