//! Ids that name the node which made them: unique in the region of one database without asking it
//! for each.
//!
//! A node is a process. It leases a number in the table `outbox_node`, on the database's clock, and
//! renews the lease every third of its length. Number and epoch are bits of every id
//! ([`message::token::node`] has the layout and the proof).
//!
//! | when | what happens |
//! |---|---|
//! | the lease is not renewed in time | no more ids, by the node's own measuring clock and a tenth of the lease before the database may give the number away; [`Stale::Expired`](message::token::Stale) |
//! | a node is stopped, its number is given away, and it goes on | its ids carry the epoch of before, and equal nobody's; its next renewal tells it, and it takes another number |
//! | the clock steps back | ids go on from the latest time, up to a minute ahead; then [`Stale::Behind`](message::token::Stale) |
//! | the database is away | ids are made until the lease ends; a number is taken when it is back |
//! | the database is restored from a backup | epochs may come again: 14 random bits of each term and the time still tell ids apart, with no certainty |
//!
//! ```no_run
//! # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! use outbox::nodes::{NodeIds, NodeOptions};
//! let ids = NodeIds::open(pool.clone(), NodeOptions::default()).await?;
//! let outbox = outbox::Outbox::<sqlx::Postgres>::builder().ids(ids.clone()).build();
//! let id = ids.next()?; // or by hand
//! # drop((outbox, id)); Ok(()) }
//! ```

mod error;
mod handle;
mod options;
mod renewal;

pub use error::NodeError;
pub use handle::{BATCH_MAX, NodeIds};
pub use options::{NODE_LEASE_DEFAULT, NODE_LEASE_MAX, NODE_LEASE_MIN, NodeOptions};
