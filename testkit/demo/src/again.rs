//! Delivers copies of messages that have already taken effect, with the original ids, directly to
//! the broker.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use harness::payload::Payload;
use uuid::Uuid;

use crate::error::DemoError;
use crate::plain::{self, Copy};
use crate::plan::Plan;
use crate::progress::Progress;
use crate::target::{BrokerSpec, Databases, on};

/// Interval between checks for new effects.
const LOOK_INTERVAL: Duration = Duration::from_millis(150);
/// Maximum number of attempts to publish while the broker is unreachable.
const ATTEMPTS_MAX: u32 = 10;

/// Only messages that have taken effect are copied, because a copy must not be the first occurrence
/// of a message at the broker.
const EFFECTS: &str = "SELECT place, message_id FROM effect WHERE place > $1 ORDER BY place LIMIT 5000";
const MESSAGES: &str = "SELECT id, CAST(message_id AS text), key, payload FROM outbox_message WHERE id > $1 \
                        ORDER BY id LIMIT 5000";

/// Delivers a copy of every message that the plan names, soon after its effect. Returns all copied
/// ids after the last copy.
///
/// # Errors
/// [`DemoError::Unavailable`] if effects or messages cannot be read, or the broker refuses
/// repeatedly.
pub(crate) async fn deliver_again(
    broker: &BrokerSpec,
    databases: &Databases,
    plan: &Plan,
    progress: &Progress,
) -> Result<Vec<Uuid>, DemoError> {
    let mut unseen: BTreeSet<u64> = plan.copies.clone();
    let mut waiting: HashMap<String, Copy> = HashMap::new();
    let mut done = Vec::with_capacity(unseen.len());
    let (mut enqueued, mut applied) = (0, 0);
    while !unseen.is_empty() || !waiting.is_empty() {
        tokio::time::sleep(LOOK_INTERVAL).await;
        let rows: Vec<(i64, String, String, Vec<u8>)> =
            on!(&databases.producer_pool, pool => sqlx::query_as(MESSAGES).bind(enqueued).fetch_all(pool).await).map_err(DemoError::during("read the outbox"))?;
        // Rows may become visible out of the order of their positions, so the loop starts over
        // after the last row.
        enqueued = rows.last().map_or(0, |(id, ..)| *id);
        for (_, id, key, payload) in rows {
            let order = serde_json::from_slice(&payload).ok().and_then(|own: Payload| own.row.parse().ok());
            if order.is_some_and(|order| unseen.remove(&order)) {
                let uuid = Uuid::parse_str(&id).map_err(DemoError::during("read the outbox"))?;
                waiting.insert(id, Copy { id: uuid, key, payload });
            }
        }
        let rows: Vec<(i64, String)> =
            on!(&databases.consumer_pool, pool => sqlx::query_as(EFFECTS).bind(applied).fetch_all(pool).await).map_err(DemoError::during("read the effects"))?;
        applied = rows.last().map_or(0, |(place, _)| *place);
        let copies: Vec<Copy> = rows.iter().filter_map(|(_, id)| waiting.remove(id)).collect();
        if !copies.is_empty() {
            publish(broker, &copies).await?;
            done.extend(copies.iter().map(|copy| copy.id));
            progress.update(|counts| counts.copies += copies.len() as u64);
        }
    }
    Ok(done)
}

/// Publishes copies, with retries. It does no harm if a copy is published twice.
async fn publish(broker: &BrokerSpec, copies: &[Copy]) -> Result<(), DemoError> {
    let mut attempt = 1;
    loop {
        match plain::publish(broker, copies).await {
            Err(_) if attempt < ATTEMPTS_MAX => {
                attempt += 1;
                tokio::time::sleep(LOOK_INTERVAL * attempt).await;
            }
            outcome => return outcome,
        }
    }
}
