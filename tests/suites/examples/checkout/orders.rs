//! Orders, and their expected outcomes.

use axum::body::Body;
use axum::http::Request;
use tests::Failure;

/// An order, and the service that refuses it, if any.
#[derive(Debug, Clone)]
pub(super) struct Order {
    pub(super) id: i64,
    pub(super) cents: i64,
    item: &'static str,
    grams: i64,
    pub(super) refused_by: Option<Refusal>,
}

/// The service that refuses an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    Stock,
    Bank,
    Shipping,
}

/// Returns `count` orders. Shipping, the bank or the stock refuses every second one.
pub(super) fn orders(count: i64) -> Vec<Order> {
    let order = |id| {
        let fine = Order { id, cents: 1_000 + id, item: "book", grams: 400, refused_by: None };
        match id % 8 {
            2 | 6 => Order { item: "anvil", grams: 40_000, refused_by: Some(Refusal::Shipping), ..fine },
            4 => Order { cents: 100_001, refused_by: Some(Refusal::Bank), ..fine },
            0 => Order { item: "first edition", refused_by: Some(Refusal::Stock), ..fine },
            _ => fine,
        }
    };
    (1..=count).map(order).collect()
}

impl Order {
    pub(super) fn request(&self) -> Result<Request<Body>, Failure> {
        let Self { id, cents, item, grams, .. } = self;
        let body = serde_json::json!({"item": item, "cents": cents, "grams": grams});
        let request = Request::put(format!("/orders/{id}")).header("host", "shop");
        Ok(request.header("content-type", "application/json").body(Body::from(body.to_string()))?)
    }
}
