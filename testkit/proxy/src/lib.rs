//! A TCP proxy with network faults on command.
//!
//! Clients connect to the [`Proxy`] instead of the server. [`Conditions`] describe its network as
//! data: for each direction latency and bandwidth, and whether bytes pass, wait, get lost, or pass
//! up to a point at which the connection breaks. Events are methods: [`Proxy::cut`],
//! [`Proxy::abandon`]. [`Proxy::heal`] ends all faults.
//!
//! | fault | command |
//! |---|---|
//! | latency, jitter, bandwidth | [`Flow::delay`], [`Flow::jitter`], [`Flow::bytes_per_second`] |
//! | a cut, with RST on both ends | [`Proxy::cut`] |
//! | a cut in the middle of a frame | [`Pass::CutAfter`] |
//! | acknowledgements lost: requests arrive, but answers do not | [`Pass::Lose`] for the answers |
//! | a partition, one way or both: bytes arrive once it is over | [`Pass::Hold`] |
//! | half-open: one end has gone, but the other does not notice | [`Proxy::abandon`] |
//! | no new connections | [`Conditions::refuse`] |
//!
//! | module | contents |
//! |---|---|
//! | `conditions` | [`Conditions`], [`Flow`], [`Pass`], [`Way`], [`End`]: the state of the network |
//! | `server` | [`Proxy`]: the listener and its commands |
//! | `connection` | one client and its server, until either of them or the network ends it |
//! | `pump` | one direction of one connection |
//! | `counts` | [`Counts`] of connections and bytes so far |
//! | `amqp` | [`AmqpProxy`]: in front of RabbitMQ, withholds the confirms for one routing key |

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
