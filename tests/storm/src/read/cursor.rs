//! The entries that the relay's stored cursor has passed. Plain SQL cannot find them, because the
//! format of the cursor belongs to the dialect, and only the toolkit can read it.

use std::collections::HashMap;

use checker::OutboxRow;
use outbox_log::RelayName;
use outbox_log::reconcile::{self, Rows};
use uuid::Uuid;

use crate::Failure;
use crate::setup::RELAY_NAME;
use crate::stage::Stage;
use harness::stores::Plain;

const ROWS_MAX: u32 = 2_000;

/// Sets on each row whether the cursor has passed it. Parked rows stay unset, because plain SQL
/// reads them.
pub(super) async fn mark(stage: &Stage, mut outbox: Vec<OutboxRow>) -> Result<Vec<OutboxRow>, Failure> {
    let relay = RelayName::new(RELAY_NAME)?;
    let mut rows = match Plain::open(&stage.database.producers).await? {
        Plain::Postgres(connection) => reconcile::postgres(connection, None, &relay).await?,
        Plain::Sqlite(connection) => reconcile::sqlite(connection, &relay).await?,
    };
    let passed = passed(rows.as_mut()).await?;
    for row in &mut outbox {
        row.passed = passed.get(&row.id).copied();
    }
    Ok(outbox)
}

async fn passed(rows: &mut dyn Rows) -> Result<HashMap<Uuid, bool>, Failure> {
    let mut passed = HashMap::new();
    let mut after = Uuid::nil();
    loop {
        let page = rows.page(after, Uuid::max(), ROWS_MAX).await?;
        let Some(last) = page.last() else { return Ok(passed) };
        after = last.id;
        for row in page {
            match row.stage {
                reconcile::Stage::Ahead => passed.insert(row.id, false),
                reconcile::Stage::Passed | reconcile::Stage::Discarded => passed.insert(row.id, true),
                reconcile::Stage::Beside(_) | reconcile::Stage::LeftOut => None,
            };
        }
    }
}
