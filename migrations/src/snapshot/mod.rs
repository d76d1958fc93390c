//! A schema as text, read from the database's own catalogs: it shows the real result of a
//! migration. Partitions are left out, because they are created and dropped over time.

#[cfg(feature = "postgres")]
pub(crate) mod postgres;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;
