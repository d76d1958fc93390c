//! Sagas over three services: stock in the sagas' database, a bank that is called, and shipping,
//! which gets requests as messages and replies with messages.
//!
//! | module | contents |
//! |---|---|
//! | `shop` | tables and statements, the same for both databases |
//! | `services` | stock, bank and shipping: their work, and their failures |
//! | `checkout` | the saga |
//! | `orders` | the process that starts sagas and cancels some |
//! | `worker` | the process that runs sagas, ships and receives replies |
//! | `reading` | reads the final state, and counts what is still in flight |
//!
//! Stock and shipping record each effect without checking for an earlier one. Only the promises of
//! sagas and of the inbox prevent a second effect. The bank alone honours keys, as every called
//! service must.

mod checkout;
mod orders;
mod reading;
mod services;
mod shop;
mod worker;

pub use orders::OrdersTask;
pub(crate) use orders::run as order;
pub(crate) use reading::{open, read};
pub use shop::SagaTopics;
pub(crate) use shop::{Shop, create_bank, create_shop};
pub use worker::WorkerTask;
pub(crate) use worker::run as work;

/// The type of the sagas.
const CHECKOUT: &str = "checkout";
/// The version of its code.
const VERSION: u16 = 1;
/// The consumer that ships.
pub(crate) const SHIPPING: &str = "shipping";
/// The consumer that receives replies.
pub(crate) const REPLIES: &str = "replies";
