//! Worlds on PostgreSQL, for services whose handlers speak its SQL (feature `postgres`).
//!
//! ```no_run
//! # async fn test() -> Result<(), testkit::Failure> {
//! use testkit::World;
//!
//! let world = World::postgres(testkit::postgres::url()?).await?;
//! world.execute("CREATE TABLE account (id bigint PRIMARY KEY, cents bigint NOT NULL)").await?;
//! # Ok(()) }
//! ```
//!
//! A world has its own schema, so tests and test processes run side by side in one database. Its
//! sessions find the schema by their `search_path`, which contains no other schema. So a test never
//! touches the tables of a service that has its own in `public`. If the URL has a `search_path`
//! (`?options[search_path]=extensions`), its schemas follow that of the world: name the schema of
//! an extension there.
//!
//! The role needs the right to create schemas in the database (`GRANT CREATE ON DATABASE test TO
//! tester`), and no other. Connect to the server itself, or through a pooler in session mode. A
//! world has up to 10 connections of its pool and 5 others. To a server on another machine that has
//! no TLS, connect with `?sslmode=disable`.
//!
//! When a world is dropped, so is its schema, even after a panic. A process that is killed leaves
//! its schemas: `testkit_`, the time in UTC, and a number. The next process that makes a world in
//! this database removes them, and so does [`remove_leftovers`]. The schemas of running tests stay,
//! because each is locked by a session of its world.
//!
//! | module | contents |
//! |---|---|
//! | `server` | [`url`], [`URL_VARIABLE`]: the server, and connections to it |
//! | `name` | the name of a schema |
//! | `schema` | the schema of a world |
//! | `removal` | [`remove_leftovers`]: removes schemas |

mod name;
mod removal;
mod schema;
mod server;

use std::sync::Arc;

use sqlx::{Postgres, Sqlite};

use crate::failure::Failure;
use crate::home::Open;
use crate::world::{World, WorldBuilder};

pub use removal::remove_leftovers;
pub use server::{URL_VARIABLE, url};

impl World<Postgres> {
    /// Creates a world with the defaults on PostgreSQL, in its own schema in the database of this
    /// URL. See [`postgres`](crate::postgres).
    ///
    /// # Errors
    /// The server cannot be reached, or the role may not create a schema; the text names the
    /// remedy.
    pub async fn postgres(url: impl Into<String>) -> Result<Self, Failure> {
        World::builder().postgres(url).build().await
    }
}

impl WorldBuilder<Sqlite> {
    /// Builds the world on PostgreSQL instead, in its own schema in the database of this URL. See
    /// [`postgres`](crate::postgres).
    #[must_use]
    pub fn postgres(self, url: impl Into<String>) -> WorldBuilder<Postgres> {
        let Self { settings, inbox, patience, .. } = self;
        WorldBuilder { open: home(url.into()), settings, inbox, patience }
    }
}

/// Returns a function that creates a schema in the database of this URL.
pub(crate) fn home(url: String) -> Open<Postgres> {
    Arc::new(move || Box::pin(schema::open(url.clone())))
}
