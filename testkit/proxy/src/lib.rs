//! A TCP proxy whose network goes wrong on command.
//!
//! Clients connect to the [`Proxy`] instead of the server. [`Conditions`] say as data how its
//! network behaves: for each way latency, bandwidth, and whether bytes pass, wait, get lost, or
//! pass up to a place where the connection breaks. Events of one moment are methods:
//! [`Proxy::cut`], [`Proxy::abandon`]. [`Proxy::heal`] ends all of it.
//!
//! | fault | how |
//! |---|---|
//! | latency, jitter, bandwidth | [`Flow::delay`], [`Flow::jitter`], [`Flow::bytes_per_second`] |
//! | a cut, with RST on both ends | [`Proxy::cut`] |
//! | a cut in the middle of a frame | [`Pass::CutAfter`] |
//! | acknowledgements lost: requests arrive, answers do not | [`Pass::Lose`] for the answers |
//! | a partition, one way or both: bytes arrive once it is over | [`Pass::Hold`] |
//! | half-open: one end has gone and the other does not know | [`Proxy::abandon`] |
//! | no new connections | [`Conditions::refuse`] |
//!
//! | module | what it holds |
//! |---|---|
//! | `conditions` | [`Conditions`], [`Flow`], [`Pass`], [`Way`], [`End`]: what the network does |
//! | `server` | [`Proxy`]: the listener and its commands |
//! | `connection` | one client and its server, until either ends or the network says so |
//! | `pump` | one way of one connection |
//! | `counts` | [`Counts`]: what has happened so far |
//! | `amqp` | [`AmqpProxy`]: before RabbitMQ, keeps the confirms for one routing key back |

mod amqp;
mod conditions;
mod connection;
mod counts;
mod pump;
mod server;

pub use amqp::AmqpProxy;
pub use conditions::{Conditions, End, Flow, Pass, Way};
pub use counts::Counts;
pub use server::Proxy;
