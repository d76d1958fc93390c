//! Stock, bank and shipping: their work, and their failures.

use std::time::Duration;

use async_trait::async_trait;
use inbox::{Handler, HandlerError, Tx};
use message::Message;
use outbox::NewMessage;
use rand::Rng as _;
use saga::{KEY_HEADER, StepError, StepKey, TOKEN_HEADER};
use sqlx::Pool;
use time::OffsetDateTime;

use super::checkout::Order;
use super::shop::Shop;

const EFFECT: &str =
    "INSERT INTO saga_effect (saga, step, service, is_undo, amount) VALUES ($1, $2, $3, false, $4)";
const UNDO: &str =
    "INSERT INTO saga_effect (saga, step, service, is_undo, amount) VALUES ($1, $2, $3, true, $4)";

/// The step at the stock.
pub(super) const RESERVE: &str = "reserve";
/// The step at the bank.
pub(super) const CHARGE: &str = "charge";
/// The step at shipping.
pub(super) const SHIP: &str = "ship";

/// Takes one unit of an item.
pub(super) async fn reserve<DB: Shop>(
    connection: &mut DB::Connection,
    saga: &str,
    item: i64,
) -> Result<(), StepError> {
    let take = "UPDATE stock SET free = free - 1 WHERE item = $1 AND free > 0";
    if DB::execute(connection, take, &[&item.to_string()], None).await? == 0 {
        return Err(StepError::stop("nothing of this item is left"));
    }
    DB::execute(connection, EFFECT, &[saga, RESERVE, "stock"], Some(1)).await?;
    Ok(())
}

/// Returns the unit to the stock.
pub(super) async fn release<DB: Shop>(
    connection: &mut DB::Connection,
    saga: &str,
    item: i64,
) -> Result<(), StepError> {
    let give_back = "UPDATE stock SET free = free + 1 WHERE item = $1";
    DB::execute(connection, give_back, &[&item.to_string()], None).await?;
    DB::execute(connection, UNDO, &[saga, RESERVE, "stock"], Some(1)).await?;
    Ok(())
}

/// A bank that honours keys. Each key is charged at most once and refunded at most once. A key that
/// was refunded before it was charged is never charged.
pub(super) struct Bank<DB: Shop>(pub(super) Pool<DB>);

/// Percentage of requests that get lost on their way.
const LOST: u32 = 5;
/// Percentage of answers that get lost.
const ANSWERS_LOST: u32 = 12;

fn chance(percent: u32, what: &str) -> Result<(), StepError> {
    if rand::rng().random_range(0..100) < percent { Err(StepError::retry(what)) } else { Ok(()) }
}

impl<DB: Shop> Bank<DB> {
    /// Charges the customers.
    pub(super) async fn charge(&self, key: &StepKey, cents: i64) -> Result<(), StepError> {
        let (step, key) = (key, &*key.to_string());
        chance(LOST, "the request to charge was lost")?;
        let mut tx = <DB as migrations::Backend>::begin_marked(self.0.acquire().await?).await?;
        let insert = "INSERT INTO bank_ledger (key, state, cents) VALUES ($1, 'charged', $2) \
                      ON CONFLICT (key) DO NOTHING";
        if DB::execute(&mut tx, insert, &[key], Some(cents)).await? == 0 {
            let state = "SELECT state FROM bank_ledger WHERE key = $1";
            if DB::text(&mut tx, state, key).await?.as_deref() != Some("charged") {
                return Err(StepError::stop("the charge was taken back before"));
            }
        } else {
            self.book(&mut tx, step, EFFECT, cents).await?;
        }
        tx.commit().await?;
        chance(ANSWERS_LOST, "the answer of the charge was lost")
    }

    /// Refunds the charge, if there was one. Otherwise it refuses a later charge with this key.
    pub(super) async fn refund(&self, key: &StepKey, cents: i64) -> Result<(), StepError> {
        let (step, key) = (key, &*key.to_string());
        chance(LOST, "the request to refund was lost")?;
        let mut tx = <DB as migrations::Backend>::begin_marked(self.0.acquire().await?).await?;
        let never = "INSERT INTO bank_ledger (key, state, cents) VALUES ($1, 'refused', 0) \
                     ON CONFLICT (key) DO NOTHING";
        if DB::execute(&mut tx, never, &[key], None).await? == 0 {
            let refund = "UPDATE bank_ledger SET state = 'refunded' WHERE key = $1 AND state = 'charged'";
            if DB::execute(&mut tx, refund, &[key], None).await? > 0 {
                self.book(&mut tx, step, UNDO, -cents).await?;
            }
        }
        tx.commit().await?;
        chance(ANSWERS_LOST, "the answer of the refund was lost")
    }

    /// Moves cents from the customers to the shop, and records the effect.
    async fn book(
        &self,
        connection: &mut DB::Connection,
        key: &StepKey,
        effect: &'static str,
        cents: i64,
    ) -> Result<(), StepError> {
        // Concurrent bookings lock the two accounts in the same order.
        let take = "UPDATE bank_account SET cents = cents - $1 WHERE name = 'customers'";
        let give = "UPDATE bank_account SET cents = cents + $1 WHERE name = 'shop'";
        DB::execute(connection, take, &[], Some(cents)).await?;
        DB::execute(connection, give, &[], Some(cents)).await?;
        let texts = [key.saga.id(), &key.step, "bank"];
        DB::execute(connection, effect, &texts, Some(cents.abs())).await?;
        Ok(())
    }
}

/// The kind of a message that asks to ship.
pub(super) const SHIP_KIND: &str = "storm.ship";
/// The kind of a message that cancels a request to ship.
pub(super) const CANCEL_KIND: &str = "storm.ship.cancel";
/// The delay of an answer to a saga that does not wait for it.
const LATE: Duration = Duration::from_millis(1_500);

/// A handler that ships on request, and replies. It refuses a request that was cancelled before it
/// arrived.
pub(super) struct Shipping {
    /// The topic of the replies.
    pub(super) replies: String,
}

#[async_trait]
impl<DB: Shop> Handler<DB> for Shipping {
    async fn handle(&self, tx: &mut Tx<DB>, message: &Message) -> Result<Option<Vec<u8>>, HandlerError> {
        let key = message.headers.get(KEY_HEADER).ok_or_else(|| HandlerError::reject("no key"))?;
        let parsed: StepKey = key.parse().map_err(|_| HandlerError::reject("no key of a step"))?;
        let texts = [parsed.saga.id(), &parsed.step, "shipping"];
        let state = |state: &'static str| [parsed.saga.id().to_owned(), state.to_owned()];
        let insert = "INSERT INTO shipment (id, state) VALUES ($1, $2) ON CONFLICT (id) DO NOTHING";
        if message.kind.as_str() == CANCEL_KIND {
            let [id, cancelled] = state("cancelled");
            if DB::execute(tx, insert, &[&id, &cancelled], None).await? == 0 {
                let cancel = "UPDATE shipment SET state = 'cancelled' WHERE id = $1 AND state = 'shipped'";
                if DB::execute(tx, cancel, &[&id], None).await? > 0 {
                    DB::execute(tx, UNDO, &texts, Some(1)).await?;
                }
            }
            return Ok(None);
        }
        let token = message.headers.get(TOKEN_HEADER).ok_or_else(|| HandlerError::reject("no token"))?;
        let order: Order = serde_json::from_slice(&message.payload)?;
        let [id, new] = state(if order.flaw.refuses_shipping() { "refused" } else { "shipped" });
        // Locks the row. A request that has already been shipped would ship again, because only the
        // inbox prevents that.
        DB::execute(tx, insert, &[&id, &new], None).await?;
        let now = DB::text(tx, "SELECT state FROM shipment WHERE id = $1", &id).await?;
        let is_shipped = now.as_deref() == Some("shipped");
        if is_shipped {
            DB::execute(tx, EFFECT, &texts, Some(1)).await?;
        }
        let mut reply = NewMessage::new(&self.replies).kind("storm.shipped").key(&id);
        reply = reply.header(KEY_HEADER, key).header(TOKEN_HEADER, token).payload(is_shipped.to_string());
        if order.flaw.is_impatient() {
            reply = reply.deliver_at(OffsetDateTime::now_utc() + LATE);
        }
        tx.enqueue(reply).await?;
        Ok(None)
    }
}
