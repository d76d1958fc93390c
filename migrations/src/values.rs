//! Values of statements and columns of rows, as each database has them.

use std::future::Future;
use std::time::Duration;

use futures_util::TryStreamExt as _;
use sqlx::database::HasStatementCache;
use sqlx::error::BoxDynError;
use sqlx::types::Uuid;
use sqlx::types::time::OffsetDateTime;
#[cfg(feature = "sqlite")]
use sqlx::types::uuid::fmt::Hyphenated;
use sqlx::{Database, SqlStr};

type Result<T> = std::result::Result<T, sqlx::Error>;

/// A value that a statement takes. Databases differ in how they store times and ids: PostgreSQL has
/// types, SQLite has microseconds since 1970 and lower-case text.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Value<'q> {
    /// A text, or NULL.
    Text(Option<&'q str>),
    /// Bytes, or NULL.
    Bytes(Option<&'q [u8]>),
    /// A 64-bit integer, or NULL. PostgreSQL needs a cast where a function takes a smaller one.
    Integer(Option<i64>),
    /// True or false.
    Flag(bool),
    /// A time, or NULL.
    Time(Option<OffsetDateTime>),
    /// A UUID, or NULL.
    Id(Option<Uuid>),
    /// UUIDs: an array on PostgreSQL, a text with a JSON array on SQLite.
    Ids(&'q [Uuid]),
}

macro_rules! values {
    ($($type:ty: $value:ident => $made:expr;)*) => {
        $(impl<'q> From<$type> for Value<'q> {
            fn from($value: $type) -> Self {
                $made
            }
        })*
    };
}

values! {
    &'q str: text => Self::Text(Some(text));
    &'q String: text => Self::Text(Some(text));
    Option<&'q str>: text => Self::Text(text);
    &'q [u8]: bytes => Self::Bytes(Some(bytes));
    Option<&'q [u8]>: bytes => Self::Bytes(bytes);
    u16: number => Self::Integer(Some(number.into()));
    i32: number => Self::Integer(Some(number.into()));
    u32: number => Self::Integer(Some(number.into()));
    i64: number => Self::Integer(Some(number));
    Option<i64>: number => Self::Integer(number);
    bool: flag => Self::Flag(flag);
    OffsetDateTime: at => Self::Time(Some(at));
    Option<OffsetDateTime>: at => Self::Time(at);
    Uuid: id => Self::Id(Some(id));
    Option<Uuid>: id => Self::Id(id);
    &'q [Uuid]: ids => Self::Ids(ids);
    // In microseconds, at most 292,000 years.
    Duration: span => Self::Integer(Some(micros(span)));
    Option<Duration>: span => Self::Integer(span.map(micros));
}

/// Returns a duration in microseconds, capped at `i64::MAX`.
#[doc(hidden)]
#[must_use]
pub fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

/// A statement with its arguments, for the client library.
#[doc(hidden)]
#[derive(Debug)]
pub struct Prepared<A> {
    pub(crate) sql: SqlStr,
    pub(crate) arguments: A,
    pub(crate) is_kept: bool,
}

impl<A> Prepared<A> {
    fn query<DB>(self) -> sqlx::query::Query<'static, DB, A>
    where
        DB: Database<Arguments = A> + HasStatementCache,
        A: sqlx::IntoArguments<DB>,
    {
        sqlx::query_with(self.sql, self.arguments).persistent(self.is_kept)
    }
}

/// How one database takes values and returns rows.
#[doc(hidden)]
pub trait Values: Database {
    /// Adds a value to the arguments of a statement.
    fn add_value(arguments: &mut Self::Arguments, value: Value<'_>) -> std::result::Result<(), BoxDynError>;

    /// Runs a statement; returns how many rows it changed.
    fn run_statement(
        connection: &mut Self::Connection,
        statement: Prepared<Self::Arguments>,
    ) -> impl Future<Output = Result<u64>> + Send;

    /// Runs a statement; returns its rows.
    fn read_rows(
        connection: &mut Self::Connection,
        statement: Prepared<Self::Arguments>,
    ) -> impl Future<Output = Result<Vec<Self::Row>>> + Send;

    /// Runs a statement; returns its first row.
    fn read_first_row(
        connection: &mut Self::Connection,
        statement: Prepared<Self::Arguments>,
    ) -> impl Future<Output = Result<Option<Self::Row>>> + Send;

    /// Runs a statement; passes on each row as it arrives, until one of them is an error.
    fn read_each(
        connection: &mut Self::Connection,
        statement: Prepared<Self::Arguments>,
        each: impl FnMut(Self::Row) -> Result<()> + Send,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Reads a column.
    fn read_text(row: &Self::Row, column: &str) -> Result<Option<String>>;
    /// Reads a column.
    fn read_bytes(row: &Self::Row, column: &str) -> Result<Option<Vec<u8>>>;
    /// Reads a column of integers of any size.
    fn read_integer(row: &Self::Row, column: &str) -> Result<Option<i64>>;
    /// Reads a column of floating-point numbers.
    fn read_number(row: &Self::Row, column: &str) -> Result<Option<f64>>;
    /// Reads a text that may not be UTF-8.
    fn read_raw_text(row: &Self::Row, column: &str) -> Result<Option<RawText>>;
    /// Reads a column.
    fn read_flag(row: &Self::Row, column: &str) -> Result<Option<bool>>;
    /// Reads a column.
    fn read_time(row: &Self::Row, column: &str) -> Result<Option<OffsetDateTime>>;
    /// Reads a column.
    fn read_id(row: &Self::Row, column: &str) -> Result<Option<Uuid>>;
}

/// The bytes of a text that may not be UTF-8.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawText(pub Vec<u8>);

macro_rules! implement {
    (
        $database:ty,
        times: $encode_time:expr, $decode_time:expr;
        ids: $encode_id:expr, $decode_id:expr;
        lists: $encode_ids:expr;
    ) => {
        impl Values for $database {
            fn add_value(
                arguments: &mut Self::Arguments,
                value: Value<'_>,
            ) -> std::result::Result<(), BoxDynError> {
                use sqlx::Arguments as _;
                match value {
                    Value::Text(text) => arguments.add(text),
                    Value::Bytes(bytes) => arguments.add(bytes),
                    Value::Integer(number) => arguments.add(number),
                    Value::Flag(flag) => arguments.add(flag),
                    Value::Time(at) => arguments.add(at.map($encode_time)),
                    Value::Id(id) => arguments.add(id.map($encode_id)),
                    Value::Ids(ids) => arguments.add($encode_ids(ids)),
                }
            }

            async fn run_statement(
                connection: &mut Self::Connection,
                statement: Prepared<Self::Arguments>,
            ) -> Result<u64> {
                Ok(statement.query::<Self>().execute(connection).await?.rows_affected())
            }

            async fn read_rows(
                connection: &mut Self::Connection,
                statement: Prepared<Self::Arguments>,
            ) -> Result<Vec<Self::Row>> {
                statement.query::<Self>().fetch_all(connection).await
            }

            async fn read_first_row(
                connection: &mut Self::Connection,
                statement: Prepared<Self::Arguments>,
            ) -> Result<Option<Self::Row>> {
                statement.query::<Self>().fetch_optional(connection).await
            }

            async fn read_each(
                connection: &mut Self::Connection,
                statement: Prepared<Self::Arguments>,
                mut each: impl FnMut(Self::Row) -> Result<()> + Send,
            ) -> Result<()> {
                let mut rows = statement.query::<Self>().fetch(connection);
                while let Some(row) = rows.try_next().await? {
                    each(row)?;
                }
                Ok(())
            }

            fn read_text(row: &Self::Row, column: &str) -> Result<Option<String>> {
                sqlx::Row::try_get(row, column)
            }

            fn read_bytes(row: &Self::Row, column: &str) -> Result<Option<Vec<u8>>> {
                sqlx::Row::try_get(row, column)
            }

            fn read_integer(row: &Self::Row, column: &str) -> Result<Option<i64>> {
                // Unchecked, because the client takes integers of other sizes for another type.
                sqlx::Row::try_get_unchecked(row, column)
            }

            fn read_number(row: &Self::Row, column: &str) -> Result<Option<f64>> {
                sqlx::Row::try_get(row, column)
            }

            fn read_raw_text(row: &Self::Row, column: &str) -> Result<Option<RawText>> {
                // Unchecked, because the client takes bytes for another type.
                let bytes: Option<Vec<u8>> = sqlx::Row::try_get_unchecked(row, column)?;
                Ok(bytes.map(RawText))
            }

            fn read_flag(row: &Self::Row, column: &str) -> Result<Option<bool>> {
                sqlx::Row::try_get(row, column)
            }

            fn read_time(row: &Self::Row, column: &str) -> Result<Option<OffsetDateTime>> {
                sqlx::Row::try_get::<Option<_>, _>(row, column)?.map($decode_time).transpose()
            }

            fn read_id(row: &Self::Row, column: &str) -> Result<Option<Uuid>> {
                Ok(sqlx::Row::try_get::<Option<_>, _>(row, column)?.map($decode_id))
            }
        }
    };
}

#[cfg(feature = "postgres")]
implement! {
    sqlx::Postgres,
    times: |at: OffsetDateTime| at, |at: OffsetDateTime| Ok::<_, sqlx::Error>(at);
    ids: |id: Uuid| id, |id: Uuid| id;
    lists: std::convert::identity;
}
#[cfg(feature = "sqlite")]
implement! {
    sqlx::Sqlite,
    times: micros_of, at_micros;
    ids: Uuid::hyphenated, Hyphenated::into_uuid;
    lists: json_array;
}

/// Returns ids as a JSON array of lower-case texts.
#[cfg(feature = "sqlite")]
fn json_array(ids: &[Uuid]) -> String {
    let ids: Vec<String> = ids.iter().map(|id| format!("\"{}\"", id.hyphenated())).collect();
    format!("[{}]", ids.join(","))
}

/// Returns a time as microseconds since 1970.
#[cfg(feature = "sqlite")]
#[doc(hidden)]
#[must_use]
pub fn micros_of(at: OffsetDateTime) -> i64 {
    i64::try_from(at.unix_timestamp_nanos() / 1_000).unwrap_or(if at < OffsetDateTime::UNIX_EPOCH {
        i64::MIN
    } else {
        i64::MAX
    })
}

/// Returns the time that is this number of microseconds after 1970.
///
/// # Errors
/// `Decode` for a time beyond the year 9999.
#[cfg(feature = "sqlite")]
#[doc(hidden)]
pub fn at_micros(micros: i64) -> Result<OffsetDateTime> {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(micros) * 1_000)
        .map_err(|error| sqlx::Error::Decode(error.into()))
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use super::*;

    #[test]
    fn ids_are_lower_case_texts_in_json() {
        let id = Uuid::from_u128(0x0190_ABCD_0000_7000_8000_0000_0000_00EF);
        assert_eq!(json_array(&[]), "[]");
        let text = "0190abcd-0000-7000-8000-0000000000ef";
        assert_eq!(json_array(&[id, id]), format!("[\"{text}\",\"{text}\"]"));
    }
}
