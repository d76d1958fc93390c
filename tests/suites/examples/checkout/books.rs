//! The books of shop, bank and shipping, and the check that they add up.

use sqlx::Postgres;
use tests::{Database, Failure, Outcome};

use super::orders::{Order, Refusal};
use super::services::Services;

/// Query for the money that moved under each key, in order.
pub(super) const MOVEMENTS: &str =
    "SELECT key || ' ' || string_agg(cents::text, ' ' ORDER BY id) FROM movement GROUP BY key";

/// Queries for messages and the parts that must not change under their ids, as both sides see them.
const SENT: &str = "SELECT message_id || ' ' || encode(sha256(
    int8send(octet_length(kind)) || convert_to(kind, 'UTF8') || int8send(octet_length(content_type))
    || convert_to(content_type, 'UTF8') || int8send(octet_length(payload)) || payload), 'hex')
    FROM outbox_message ORDER BY message_id";
const APPLIED: &str =
    "SELECT message_id || ' ' || encode(fingerprint, 'hex') FROM inbox_message ORDER BY message_id";

/// The initial stock.
const STOCK: i64 = 1_050;

async fn sorted(database: &Database<Postgres>, sql: &str) -> Result<Vec<String>, Failure> {
    let mut rows = database.texts(sql).await?;
    rows.sort();
    Ok(rows)
}

/// Checks that every order is shipped once and charged once, or leaves no trace.
pub(super) async fn add_up(services: &Services, orders: &[Order]) -> Outcome {
    let Services { shop, bank_book, shipping, .. } = services;
    let told = |of: &dyn Fn(&Order) -> Option<String>| {
        let mut told: Vec<String> = orders.iter().filter_map(of).collect();
        told.sort();
        told
    };
    let by_state = |shipped: &str, refused: &str| {
        told(&|order| {
            let state = if order.refused_by.is_none() { shipped } else { refused };
            Some(format!("{} {state}", order.id))
        })
    };
    let shipped =
        |state: &str| told(&|order| order.refused_by.is_none().then(|| format!("{} {state}", order.id)));

    let states = sorted(shop, "SELECT id || ' ' || state FROM orders").await?;
    assert_eq!(states, by_state("confirmed", "cancelled"), "orders");
    let sagas = sorted(shop, "SELECT id || ' ' || state FROM saga").await?;
    assert_eq!(sagas, by_state("finished", "undone"), "sagas");

    let holds = sorted(shop, "SELECT order_id || ' held' FROM hold").await?;
    assert_eq!(holds, shipped("held"), "one item for each order that is shipped");
    let free = shop.integer("SELECT sum(free)::bigint FROM stock").await?;
    assert_eq!(free + i64::try_from(holds.len())?, STOCK, "nothing is lost from the stock");

    let moved = sorted(bank_book, MOVEMENTS).await?;
    let expected = told(&|order| {
        let charged = format!("checkout/{}/charge {}", order.id, order.cents);
        match order.refused_by {
            None => Some(charged),
            Some(Refusal::Shipping) => Some(format!("{charged} -{}", order.cents)),
            Some(Refusal::Bank | Refusal::Stock) => None,
        }
    });
    assert_eq!(moved, expected, "charged once; given back once where shipping refused");

    let parcels = sorted(shipping, "SELECT order_id || ' ' || state FROM parcel").await?;
    assert_eq!(parcels, shipped("packed"), "one parcel for each order that is shipped");
    let numbers =
        shop.texts("SELECT id || ' ' || parcel FROM orders WHERE parcel IS NOT NULL ORDER BY id").await?;
    let sent = shipping.texts("SELECT order_id || ' ' || id FROM parcel ORDER BY order_id").await?;
    assert_eq!(numbers, sent, "the shop knows the parcels by their numbers");

    for (database, given_up) in [(shop, "inbox_dead_letter"), (shipping, "parked")] {
        let count = database.integer(&format!("SELECT count(*) FROM {given_up}")).await?;
        assert_eq!(count, 0, "{given_up}");
    }
    // Exactly the sent messages took effect, unchanged.
    for (from, to) in [(shop, shipping), (shipping, shop)] {
        assert_eq!(from.texts(SENT).await?, to.texts(APPLIED).await?, "messages");
    }
    Ok(())
}
