//! The interface of `proto/orders.proto`, and what makes its calls idempotent.
//!
//! | module | contents |
//! |---|---|
//! | [`once`] | runs a unary call once for each idempotency key |
//! | [`received`] | compares the requests that come under one key |
//! | [`orders_server`] | the server, as `tonic` generates it |

pub mod once;
pub mod received;

pub use generated::orders_server;

#[allow(warnings, reason = "generated")]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/shop.Orders.rs"));
}

/// An order to place.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PlaceOrder {
    /// Its price, in cents.
    #[prost(int64, tag = "1")]
    pub cents: i64,
}

/// An order that was placed.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Placed {
    /// Its number.
    #[prost(int64, tag = "1")]
    pub order: i64,
    /// Its price, in cents.
    #[prost(int64, tag = "2")]
    pub cents: i64,
}
