//! A schema as text, from the database's own catalogs: what a migration really made, not what its
//! file says. Partitions are left out: they come and go with time.

#[cfg(feature = "postgres")]
pub(crate) mod postgres;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;
