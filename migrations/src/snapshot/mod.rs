//! A schema as text, read from the database's own catalogs: it shows what a migration really made.
//! Partitions are left out, because they come and go with time.

#[cfg(feature = "postgres")]
pub(crate) mod postgres;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;
