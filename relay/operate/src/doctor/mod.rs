//! `relay doctor`: examines a pipeline's database, its broker and the inboxes behind it. Reports
//! for each check whether it passes, with the measured value and the remedy.
//!
//! Facts are gathered first, and then checked by pure functions. Nothing is written anywhere. The
//! command line prints the report; other interfaces can use it too.
//!
//! | module | what it holds |
//! |---|---|
//! | `report` | states, findings, and the report |
//! | `facts` | facts gathered from databases |
//! | `gather` | queries to databases and brokers |
//! | `postgres` (feature), `sqlite` | checks of databases |
//! | `common` | checks that several databases have in common |
//! | `clock` | the check of a server's clock |
//! | `grants` | checks of PostgreSQL's rights |
//! | `relays` | the checks of leases: whether a relay leads, and relays that no process runs |
//! | `scheduled` | the check of scheduled messages |
//! | `activity` | checks of transactions and slots that hold history back |
//! | `http`, `kafka`, `rabbitmq`, `sqs` (features) | checks of brokers |
//! | `transactions` (feature `kafka`) | checks of the prerequisites of Kafka transactions |
//! | `horizon` | how long a broker can redeliver, compared with what inboxes remember |
//! | `inbox_order` | the check of the order of dead letters |
//! | `schema` | the check of the schema's versions |
//! | `checklist` | the go-live checklist |
//! | `reach` | the quick checks: whether database and broker let the relay in |
//! | `examine` | one pipeline from end to end |

#[cfg(feature = "postgres")]
mod activity;
mod checklist;
#[cfg(any(feature = "postgres", feature = "kafka", feature = "rabbitmq", feature = "sqs"))]
mod clock;
mod common;
mod examine;
mod facts;
mod gather;
mod grants;
mod horizon;
#[cfg(feature = "http")]
mod http;
mod inbox_order;
#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
mod reach;
mod relays;
mod report;
mod scheduled;
mod schema;
mod sqlite;
#[cfg(feature = "sqs")]
mod sqs;
mod text;
#[cfg(feature = "kafka")]
mod transactions;

pub use checklist::{ChecklistItem, checklist};
pub use examine::{DoctorOptions, examine};
pub use facts::RoleNames;
pub use grants::examine_grants;
pub use inbox_order::examine_inbox_order;
pub use reach::{reach, reach_broker, reach_database, reach_inbox};
pub use report::{CheckState, Finding, PipelineReport};
