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

use std::time::Duration;

use sqlx::error::BoxDynError;
use sqlx::types::Uuid;
use sqlx::types::time::OffsetDateTime;
use sqlx::{SqlSafeStr as _, SqlStr};

use crate::backend::Backend;
use crate::sql::Statement;
use crate::values::Prepared;
pub use crate::values::{RawText, Value, Values, micros};
#[cfg(feature = "sqlite")]
pub use crate::values::{at_micros, micros_of};

type Result<T> = std::result::Result<T, sqlx::Error>;

/// A statement with its values.
#[must_use = "a query does nothing until it is run"]
pub struct Query<DB: Backend> {
    sql: SqlStr,
    arguments: std::result::Result<DB::Arguments, BoxDynError>,
    is_kept: bool,
}

impl<DB: Backend> Query<DB> {
    /// A statement without values yet.
    pub fn new(statement: &Statement) -> Self {
        Self { sql: statement.into_sql_str(), arguments: Ok(DB::Arguments::default()), is_kept: true }
    }

    /// Sets whether the session keeps the prepared statement, and with it a plan on PostgreSQL. It
    /// does by default; otherwise each run costs one more round trip.
    pub fn persistent(mut self, is_kept: bool) -> Self {
        self.is_kept = is_kept;
        self
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
        DB::run_statement(connection, self.prepared()?).await
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
        Ok(DB::read_rows(connection, self.prepared()?).await?.into_iter().map(Row).collect())
    }

    /// Runs the statement; returns its first row. As cancel-safe as [`run`](Self::run).
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub async fn first(self, connection: &mut DB::Connection) -> Result<Option<Row<DB>>> {
        Ok(DB::read_first_row(connection, self.prepared()?).await?.map(Row))
    }

    /// Runs the statement; returns its first row. As cancel-safe as [`run`](Self::run).
    ///
    /// # Errors
    /// As [`run`](Self::run), and `RowNotFound` without a row.
    pub async fn one(self, connection: &mut DB::Connection) -> Result<Row<DB>> {
        self.first(connection).await?.ok_or(sqlx::Error::RowNotFound)
    }

    /// Runs the statement; passes on each row as it arrives, so that only one is in memory. As
    /// cancel-safe as [`run`](Self::run).
    ///
    /// # Errors
    /// As [`run`](Self::run), and the first error of `each`, which ends the statement.
    pub async fn each(
        self,
        connection: &mut DB::Connection,
        mut each: impl FnMut(Row<DB>) -> Result<()> + Send,
    ) -> Result<()> {
        DB::read_each(connection, self.prepared()?, |row| each(Row(row))).await
    }

    fn prepared(self) -> Result<Prepared<DB::Arguments>> {
        let arguments = self.arguments.map_err(sqlx::Error::Encode)?;
        Ok(Prepared { sql: self.sql, arguments, is_kept: self.is_kept })
    }
}

/// A row of a result.
pub struct Row<DB: Backend>(DB::Row);

impl<DB: Backend> Row<DB> {
    /// Wraps a row of the client library, returned by a statement that [`Query`] cannot run.
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

smaller_integers! { u16 i32 u32 u64 }

impl sealed::Sealed for Duration {}

/// From microseconds; a negative duration, as after a step of a clock, is zero.
impl Column for Duration {
    fn read<DB: Values>(row: &DB::Row, column: &str) -> Result<Self> {
        Ok(Self::from_micros(u64::try_from(i64::read::<DB>(row, column)?).unwrap_or_default()))
    }
}

/// Returns a pattern of `LIKE` for texts that contain these parts in their order; `None` without
/// parts. The escape character is the backslash, which SQLite needs in the statement.
#[doc(hidden)]
#[must_use]
pub fn like_pattern(parts: &[String]) -> Option<String> {
    if parts.is_empty() {
        return None;
    }
    let mut pattern = String::from("%");
    for part in parts {
        for c in part.chars() {
            if matches!(c, '%' | '_' | '\\') {
                pattern.push('\\');
            }
            pattern.push(c);
        }
        pattern.push('%');
    }
    Some(pattern)
}

fn wrong(column: &str, source: BoxDynError) -> sqlx::Error {
    sqlx::Error::ColumnDecode { index: format!("{column:?}"), source }
}
