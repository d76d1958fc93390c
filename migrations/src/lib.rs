//! Schema migrations for outbox, inbox, idempotency keys and sagas, in versioned lines, and the one
//! place that renders dynamic SQL.
//!
//! | module | what it holds |
//! |---|---|
//! | `identifier` | [`Identifier`]: a validated name of a schema or table |
//! | `sql` | [`Template`], [`Statement`]: SQL whose names come from configuration |
//! | `line` | [`Line`], [`Migration`]: the ordered versions of one crate's tables |
//! | [`query`] | [`Query`](query::Query): statements and rows, the same for every database |
//! | `sql_error_kind` | [`SqlErrorKind`]: the meaning of a database client's error |
//! | `status` | [`Status`], [`check`](Status::check): a database's migrations compared with this build's |
//! | `migrator` | [`Migrator`]: brings a database up to date, prints the SQL, checks, describes |
//! | [`own_transaction`] | signs that a transaction has ended before its handle |
//! | [`rights`] | [`Rights`](rights::Rights): what the scripts of roles grant and revoke |
//! | `roles` | [`Roles`]: least privilege on PostgreSQL |
//! | `backend` | [`Backend`]: the differences between the dialects |
//! | `error` | [`MigrateError`], [`SchemaError`] |
//!
//! The toolkit never touches `_sqlx_migrations`: that table belongs to the application.

mod backend;
mod error;
mod identifier;
mod line;
mod migrator;
pub mod own_transaction;
mod patience;
#[cfg(feature = "postgres")]
mod postgres;
pub mod query;
pub mod rights;
mod roles;
mod snapshot;
mod sql;
mod sql_error_kind;
#[cfg(feature = "sqlite")]
mod sqlite;
mod status;
mod values;

pub use backend::{Backend, Dialect};
pub use error::{MigrateError, SchemaError};
pub use identifier::{
    ForeignIdentifier, IDENTIFIER_BYTES_MAX, Identifier, InvalidForeignIdentifier, InvalidIdentifier, SqlName,
};
pub use line::{Line, Migration, UnknownLine};
pub use migrator::Migrator;
pub use patience::Waiting;
pub use roles::Roles;
pub use sql::{Statement, Template};
pub use sql_error_kind::SqlErrorKind;
#[cfg(feature = "sqlite")]
#[doc(hidden)]
pub use sqlite::begin_durable;
pub use status::{Applied, Status};
