//! The saga: reserve, charge, ship, wait a little.

use std::sync::Arc;
use std::time::Duration;

use outbox::NewMessage;
use rand::Rng as _;
use saga::{KEY_HEADER, Retry, Run, Stop};

use super::services::{Bank, CANCEL_KIND, CHARGE, RESERVE, SHIP, SHIP_KIND, release, reserve};
use super::shop::{ITEMS, Shop};

/// The input of a saga.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Order {
    /// The item.
    pub(super) item: i64,
    /// Its price.
    pub(super) cents: i64,
    /// Its flaw.
    pub(super) flaw: Flaw,
}

/// The way in which an order fails on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Flaw {
    /// No failure.
    None,
    /// The bank refuses.
    BankRefuses,
    /// Shipping refuses.
    ShippingRefuses,
    /// The saga does not wait long enough for shipping.
    Impatient,
    /// The saga stops after everything is done.
    StopsAtTheEnd,
}

impl Flaw {
    pub(super) fn refuses_shipping(self) -> bool {
        self == Self::ShippingRefuses
    }

    pub(super) fn is_impatient(self) -> bool {
        self == Self::Impatient
    }
}

impl Order {
    /// Returns a random order.
    pub(super) fn random() -> Self {
        let mut rng = rand::rng();
        let flaw = match rng.random_range(0..100) {
            0..8 => Flaw::BankRefuses,
            8..16 => Flaw::ShippingRefuses,
            16..28 => Flaw::Impatient,
            28..38 => Flaw::StopsAtTheEnd,
            _ => Flaw::None,
        };
        Self { item: rng.random_range(0..ITEMS), cents: rng.random_range(1..10_000), flaw }
    }
}

/// Time for which an impatient saga waits for shipping.
const PATIENCE: Duration = Duration::from_millis(600);
/// Time for which a charge is retried.
const CHARGING: Duration = Duration::from_secs(30);

/// Reserves, charges and ships one item. Returns the price in cents.
pub(super) async fn checkout<DB: Shop>(
    saga: &mut Run<DB>,
    order: Order,
    bank: Arc<Bank<DB>>,
    ship: Arc<str>,
) -> Result<i64, Stop> {
    let id = saga.id().to_owned();
    saga.step(RESERVE, async |tx| reserve::<DB>(tx.connection(), &id, order.item).await)
        .undo(async |tx, (): &()| release::<DB>(tx.connection(), &id, order.item).await)
        .await?;
    saga.call(CHARGE, async |key| {
        if order.flaw == Flaw::BankRefuses {
            return Err(saga::StepError::stop("the bank refuses"));
        }
        bank.charge(key, order.cents).await
    })
    .undo(async |key, _: Option<&()>| bank.refund(key, order.cents).await)
    .retry(Retry::times(20).within(CHARGING))
    .await?;
    let key = saga.key(SHIP);
    let payload = serde_json::to_vec(&order).unwrap_or_default();
    let request = NewMessage::new(&*ship).kind(SHIP_KIND).key(&id).payload(payload);
    let patience = if order.flaw.is_impatient() { PATIENCE } else { saga::SPAN_MAX };
    let is_shipped: bool = saga
        .request(SHIP, request)
        .within(patience)
        .undo(async |tx, _: Option<&bool>| {
            let cancel = NewMessage::new(&*ship).kind(CANCEL_KIND).key(&id).header(KEY_HEADER, &key);
            tx.enqueue(cancel).await?;
            Ok(())
        })
        .await?;
    if !is_shipped {
        return Err(Stop::because("shipping refuses"));
    }
    saga.sleep("grace", Duration::from_millis(order.cents.unsigned_abs() % 500)).await?;
    if order.flaw == Flaw::StopsAtTheEnd {
        return Err(Stop::because("the customer has changed their mind"));
    }
    Ok(order.cents)
}
