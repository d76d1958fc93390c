//! A directory of append-only files as a broker: one file for each topic, one small file for each
//! group that reads it.
//!
//! # What it promises
//!
//! * `Ok` for a message means that it is in the topic's file and that the file was synced to disk.
//! * Messages of a topic are in the file in the order in which they were submitted, whatever their
//!   keys.
//! * A topic must exist: an operator has to create a missing file; other topics continue.
//! * A group has one position in the file, up to which everything is settled. Messages settled
//!   after an unsettled one may be redelivered after the member has ended; the inbox recognises
//!   them.
//! * A group has one member at a time; others are refused and try again. So members do not share
//!   work.
//! * Several processes on one machine may use a directory; locks of the operating system keep them
//!   apart. Network file systems are not supported. Messages are never removed from a topic.
//!
//! | file | what it holds |
//! |---|---|
//! | `topic.rs` | valid names of topics, and their files |
//! | `record.rs` | conversion between a message and a line of JSON; pure |
//! | `connector.rs`, `publisher.rs` | publishing sessions |
//! | `subscriber.rs`, `subscription.rs` | consuming sessions |
//! | `tail.rs` | a thread that reads a topic's file as it grows |

mod connector;
mod publisher;
mod record;
mod subscriber;
mod subscription;
mod tail;
mod topic;

pub use connector::DirectoryConnector;
pub use record::MAX_PAYLOAD;
pub use subscriber::DirectorySubscriber;
pub use topic::create_topic;
