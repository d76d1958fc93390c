//! Sagas over three services of their own: stock in the sagas' database, a bank that is called, and
//! shipping that is asked by a message and answers with one.
//!
//! | module | what it holds |
//! |---|---|
//! | `shop` | tables and statements, the same for both databases |
//! | `services` | stock, bank and shipping: what they do, and how they fail |
//! | `checkout` | the saga |
//! | `orders` | the process that starts sagas and cancels some |
//! | `worker` | the process that runs sagas, ships and takes replies |
//! | `reading` | what is there in the end, and what is still on its way |
//!
//! Services write down what they did without a look at what was done before: nothing but the
//! promises of sagas and of the inbox keeps them from doing it twice. The bank alone honours keys,
//! as a service that is called must.

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
/// The consumer that takes replies.
pub(crate) const REPLIES: &str = "replies";
