//! Delivers messages once more that have taken effect already, with their own ids, straight to the broker.

use std::collections::BTreeSet;
use std::time::Duration;

use uuid::Uuid;

use crate::demo::error::DemoError;
use crate::demo::plain::{self, Copy};
use crate::demo::plan::Plan;
use crate::demo::progress::Progress;
use crate::demo::target::{BrokerSpec, Pool};

/// How often to look for new effects.
const LOOK_INTERVAL: Duration = Duration::from_millis(150);
/// How often a broker that is away is asked again.
const ATTEMPTS_MAX: u32 = 10;

/// Only what has taken effect is copied: a copy must not be a message's first occurrence in the broker.
const EFFECTS: &str = "SELECT place, number, message_id, customer, payload FROM demo_effect WHERE place > $1 \
                       ORDER BY place LIMIT 5000";

type Row = (i64, i64, String, String, Vec<u8>);

/// Delivers every message of the plan's copies once more, soon after its effect; returns the ids after the last.
///
/// # Errors
/// [`DemoError::Unavailable`] when the effects cannot be read, or the broker refuses again and again.
pub(crate) async fn deliver_again(
    broker: &BrokerSpec,
    effects: &Pool,
    plan: &Plan,
    progress: &Progress,
) -> Result<Vec<Uuid>, DemoError> {
    let mut waiting: BTreeSet<u64> = plan.copies.clone();
    let mut done = Vec::with_capacity(waiting.len());
    let mut after = 0;
    while !waiting.is_empty() {
        tokio::time::sleep(LOOK_INTERVAL).await;
        let rows = read(effects, after).await.map_err(DemoError::during("read the effects"))?;
        // Rows may become visible out of the order of their places: at the end, look again from the start.
        after = rows.last().map_or(0, |(place, ..)| *place);
        let mut copies = Vec::new();
        for (_, number, id, key, payload) in rows {
            if waiting.remove(&number.unsigned_abs()) {
                let id = Uuid::parse_str(&id).map_err(DemoError::during("read the effects"))?;
                copies.push(Copy { id, key, payload });
            }
        }
        if !copies.is_empty() {
            publish(broker, &copies).await?;
            done.extend(copies.iter().map(|copy| copy.id));
            progress.update(|counts| counts.copies += copies.len() as u64);
        }
    }
    Ok(done)
}

/// A copy that is published twice is two copies, which is as good.
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

async fn read(effects: &Pool, after: i64) -> sqlx::Result<Vec<Row>> {
    match effects {
        Pool::Postgres(pool) => sqlx::query_as(EFFECTS).bind(after).fetch_all(pool).await,
        Pool::Sqlite(pool) => sqlx::query_as(EFFECTS).bind(after).fetch_all(pool).await,
    }
}
