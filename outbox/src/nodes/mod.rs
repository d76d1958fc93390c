//! Ids that identify the node that generated them. They are unique among all nodes of one database,
//! without a round trip for each id.
//!
//! A node is a process. It leases a number in the table `outbox_node`, by the database's clock, and
//! renews the lease after each third of its length. Number and epoch are bits of every id
//! ([`NodeIdGenerator`](message::token::NodeIdGenerator) has the layout and the proof).
//!
//! | event | result |
//! |---|---|
//! | the lease is not renewed in time | the node stops making ids ([`Stale::Expired`](message::token::Stale)), by its own monotonic clock and a tenth of the lease before the database may reassign the number |
//! | a node is suspended, its number goes to another node, and it resumes | its ids carry the old epoch and equal no other node's; its next renewal fails, and it takes another number |
//! | the clock steps back | ids continue from the latest time, up to a minute ahead; then [`Stale::Behind`](message::token::Stale) |
//! | the database is unavailable | ids are made until the lease ends; a new number is taken when the database is back |
//! | the database is restored from a backup | epochs may repeat: 14 random bits of each term and the time still keep ids apart, but without certainty |
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

use message::token::NodeTerm;

pub use error::NodeError;
pub use handle::{BATCH_MAX, NodeIds};
pub use options::{NODE_LEASE_DEFAULT, NODE_LEASE_MAX, NODE_LEASE_MIN, NodeOptions};

/// A number that a node holds, as stored in the database.
#[doc(hidden)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldNumber {
    /// The number.
    pub number: i64,
    /// How many times it has been leased.
    pub epoch: i64,
    /// The node that holds it.
    pub holder: String,
}

impl HeldNumber {
    pub(crate) fn of(term: NodeTerm, holder: &str) -> Self {
        Self { number: i64::from(term.number), epoch: i64::from(term.epoch), holder: holder.to_owned() }
    }
}
