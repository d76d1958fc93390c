//! A directory of append-only files as a broker: one file for each topic, one small file for each
//! group that reads it.
//!
//! # What it promises
//!
//! * `Ok` for a message means that it is in the topic's file and that the file was synced to disk.
//! * Messages of a topic are in the file in the order in which they were submitted, whatever their
//!   keys.
//! * A topic must exist: a missing file is the operator's to repair, and stops nobody else.
//! * A group knows one place in the file up to which everything is settled. What is settled behind
//!   an unsettled message may come again after the member is gone; the inbox knows it.
//! * A group has one member at a time; others are told to come again. So work is not shared.
//! * Several processes of one machine may use a directory; locks of the operating system keep them
//!   apart. Network file systems are not supported. Nothing is ever removed from a topic.
//!
//! | file | what it holds |
//! |---|---|
//! | `topic.rs` | which names are topics, and their files |
//! | `record.rs` | a message as a line of JSON, and back; pure |
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
