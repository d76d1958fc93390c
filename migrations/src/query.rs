//! Statements and rows, the same for every database: a store is written once, and each database
//! adds the text of its statements.
//!
//! ```
//! # async fn at<DB: migrations::Backend>(connection: &mut DB::Connection) -> Result<(), sqlx::Error> {
//! # let statement = migrations::Template::new("SELECT type, attempts FROM saga WHERE id = $1").render();
//! use migrations::query::Query;
//! for row in Query::<DB>::new(&statement).bind("order-7").rows(connection).await? {
//!     let (name, attempts): (String, u32) = (row.get("type")?, row.get("attempts")?);
//!     println!("{name} was tried {attempts} times");
//! }
//! # Ok(())
//! # }
//! ```

use std::future::Future;
use std::time::Duration;

use sqlx::error::BoxDynError;
use sqlx::types::Uuid;
use sqlx::types::time::OffsetDateTime;
use sqlx::{Database, SqlSafeStr as _, SqlStr};

use crate::backend::Backend;
use crate::sql::Statement;

type Result<T> = std::result::Result<T, sqlx::Error>;

/// A value that a statement takes. Databases differ in how they store times: PostgreSQL has a type,
/// SQLite has microseconds since 1970.
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
    /// A moment, or NULL.
    Time(Option<OffsetDateTime>),
    /// A UUID, or NULL.
    Id(Option<Uuid>),
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

/// Values and rows of one database.
#[doc(hidden)]
pub trait Values: Database {
    /// Adds a value to those of a statement.
    fn add_value(arguments: &mut Self::Arguments, value: Value<'_>) -> std::result::Result<(), BoxDynError>;

    /// Runs a statement; returns how many rows it changed.
    fn run_statement(
        connection: &mut Self::Connection,
        sql: SqlStr,
        arguments: Self::Arguments,
    ) -> impl Future<Output = Result<u64>> + Send;

    /// Runs a statement; returns its rows.
    fn read_rows(
        connection: &mut Self::Connection,
        sql: SqlStr,
        arguments: Self::Arguments,
    ) -> impl Future<Output = Result<Vec<Self::Row>>> + Send;

    /// Runs a statement; returns its first row.
    fn read_first_row(
        connection: &mut Self::Connection,
        sql: SqlStr,
        arguments: Self::Arguments,
    ) -> impl Future<Output = Result<Option<Self::Row>>> + Send;

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

/// A statement with its values.
#[must_use = "a query does nothing until it is run"]
pub struct Query<DB: Backend> {
    sql: SqlStr,
    arguments: std::result::Result<DB::Arguments, BoxDynError>,
}

impl<DB: Backend> Query<DB> {
    /// A statement without values yet.
    pub fn new(statement: &Statement) -> Self {
        Self { sql: statement.into_sql_str(), arguments: Ok(DB::Arguments::default()) }
    }

    /// Adds the value of the next placeholder.
    pub fn bind<'q>(mut self, value: impl Into<Value<'q>>) -> Self {
        self.arguments = self.arguments.and_then(|mut arguments| {
            DB::add_value(&mut arguments, value.into())?;
            Ok(arguments)
        });
        self
    }

    /// Runs the statement; returns how many rows it changed. Not cancel-safe: the statement may or
    /// may not have taken effect.
    ///
    /// # Errors
    /// The client library's errors; `Encode` for a value that the database cannot take.
    pub async fn run(self, connection: &mut DB::Connection) -> Result<u64> {
        DB::run_statement(connection, self.sql, self.arguments.map_err(sqlx::Error::Encode)?).await
    }

    /// Runs the statement; returns whether it changed exactly one row. As cancel-safe as
    /// [`run`](Self::run).
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub async fn changes_one(self, connection: &mut DB::Connection) -> Result<bool> {
        Ok(self.run(connection).await? == 1)
    }

    /// Runs the statement; returns its rows. As cancel-safe as [`run`](Self::run).
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub async fn rows(self, connection: &mut DB::Connection) -> Result<Vec<Row<DB>>> {
        let rows = DB::read_rows(connection, self.sql, self.arguments.map_err(sqlx::Error::Encode)?).await?;
        Ok(rows.into_iter().map(Row).collect())
    }

    /// Runs the statement; returns its first row. As cancel-safe as [`run`](Self::run).
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub async fn first(self, connection: &mut DB::Connection) -> Result<Option<Row<DB>>> {
        let row =
            DB::read_first_row(connection, self.sql, self.arguments.map_err(sqlx::Error::Encode)?).await?;
        Ok(row.map(Row))
    }
}

/// A row of a result.
pub struct Row<DB: Backend>(DB::Row);

/// The bytes of a text that may not be UTF-8.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawText(pub Vec<u8>);

impl<DB: Backend> Row<DB> {
    /// Wraps a row of the client library, of a statement that [`Query`] cannot run.
    #[doc(hidden)]
    pub fn of(row: DB::Row) -> Self {
        Self(row)
    }

    /// Reads a column by its name. Numbers are checked: one that does not fit is an error.
    ///
    /// # Errors
    /// `ColumnNotFound` without such a column, `ColumnDecode` for a NULL or a value that the type
    /// does not hold.
    pub fn get<T: Column>(&self, column: &str) -> Result<T> {
        T::read::<DB>(&self.0, column)
    }
}

/// A type that a column is read as. Sealed.
pub trait Column: Sized + sealed::Sealed {
    #[doc(hidden)]
    fn read<DB: Values>(row: &DB::Row, column: &str) -> Result<Self>;
}

mod sealed {
    pub trait Sealed {}
    impl<T: Sealed> Sealed for Option<T> {}
}

macro_rules! columns {
    ($($type:ty: $read:ident;)*) => {
        $(impl sealed::Sealed for $type {}

        impl Column for Option<$type> {
            fn read<DB: Values>(row: &DB::Row, column: &str) -> Result<Self> {
                DB::$read(row, column)
            }
        }

        impl Column for $type {
            fn read<DB: Values>(row: &DB::Row, column: &str) -> Result<Self> {
                DB::$read(row, column)?.ok_or_else(|| wrong(column, sqlx::error::UnexpectedNullError.into()))
            }
        })*
    };
}

columns! {
    String: read_text;
    Vec<u8>: read_bytes;
    i64: read_integer;
    f64: read_number;
    RawText: read_raw_text;
    bool: read_flag;
    OffsetDateTime: read_time;
    Uuid: read_id;
}

macro_rules! smaller_integers {
    ($($type:ty)*) => {
        $(impl sealed::Sealed for $type {}

        impl Column for $type {
            fn read<DB: Values>(row: &DB::Row, column: &str) -> Result<Self> {
                <Self>::try_from(i64::read::<DB>(row, column)?).map_err(|error| wrong(column, error.into()))
            }
        })*
    };
}

smaller_integers! { u16 u32 u64 }

impl sealed::Sealed for Duration {}

/// From microseconds; a negative duration, as after a step of a clock, is zero.
impl Column for Duration {
    fn read<DB: Values>(row: &DB::Row, column: &str) -> Result<Self> {
        Ok(Self::from_micros(u64::try_from(i64::read::<DB>(row, column)?).unwrap_or_default()))
    }
}

fn wrong(column: &str, source: BoxDynError) -> sqlx::Error {
    sqlx::Error::ColumnDecode { index: format!("{column:?}"), source }
}

macro_rules! implement {
    ($database:ty, $encode_time:expr, $decode_time:expr) => {
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
                    Value::Id(id) => arguments.add(id),
                }
            }

            async fn run_statement(
                connection: &mut Self::Connection,
                sql: SqlStr,
                arguments: Self::Arguments,
            ) -> Result<u64> {
                Ok(sqlx::query_with(sql, arguments).execute(connection).await?.rows_affected())
            }

            async fn read_rows(
                connection: &mut Self::Connection,
                sql: SqlStr,
                arguments: Self::Arguments,
            ) -> Result<Vec<Self::Row>> {
                sqlx::query_with(sql, arguments).fetch_all(connection).await
            }

            async fn read_first_row(
                connection: &mut Self::Connection,
                sql: SqlStr,
                arguments: Self::Arguments,
            ) -> Result<Option<Self::Row>> {
                sqlx::query_with(sql, arguments).fetch_optional(connection).await
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
                sqlx::Row::try_get(row, column)
            }
        }
    };
}

#[cfg(feature = "postgres")]
implement!(sqlx::Postgres, |at: OffsetDateTime| at, |at: OffsetDateTime| Ok::<_, sqlx::Error>(at));
#[cfg(feature = "sqlite")]
implement!(sqlx::Sqlite, micros_of, at_micros);

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
