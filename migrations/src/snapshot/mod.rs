//! A schema as text, from the database's own catalogs: what a migration really made, not what its file says.
//! Partitions are left out: they come and go with time.

pub(crate) mod postgres;
pub(crate) mod sqlite;
