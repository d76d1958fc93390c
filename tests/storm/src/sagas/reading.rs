//! Reads the final state, and counts what is still in flight. Plain SQL.

use std::sync::Arc;

use checker::{Balance, SagaRun, SagaState, StepEffect};
use sqlx::{Postgres, Sqlite};

use super::services::{CHARGE, RESERVE, SHIP};
use super::shop::{CENTS, FREE, ITEMS, Shop};
use crate::Failure;
use crate::stage::Database;

const OPEN: &str = "SELECT count(*) FROM saga WHERE ended_at IS NULL";
/// Every message goes to one consumer.
const ON_THEIR_WAY: &str = "SELECT count(*) FROM outbox_message AS m WHERE NOT EXISTS \
     (SELECT 1 FROM inbox_message AS i WHERE i.message_id = m.message_id)";
const RUNS: &str = "SELECT id, state FROM saga ORDER BY started_at, id";
const ORDERS: &str = "SELECT id, id FROM shop_order ORDER BY id";
const STOCK: &str = "SELECT CAST(sum(free) AS bigint) FROM stock";
const CUSTOMERS: &str = "SELECT cents FROM bank_account WHERE name = 'customers'";
const SHOP: &str = "SELECT cents FROM bank_account WHERE name = 'shop'";

/// Counts the sagas that have not ended, and the messages between them and the shipping service.
///
/// # Errors
/// The database does not answer.
pub(crate) async fn open(database: &Database) -> Result<u64, Failure> {
    match outbox::connect::dialect_of(&database.sagas)? {
        migrations::Dialect::Postgres => open_in::<Postgres>(&database.sagas).await,
        migrations::Dialect::Sqlite => open_in::<Sqlite>(&database.sagas).await,
    }
}

async fn open_in<DB: Shop>(url: &str) -> Result<u64, Failure> {
    let mut connection = DB::connect(url).await?;
    let open = DB::number(&mut connection, OPEN).await? + DB::number(&mut connection, ON_THEIR_WAY).await?;
    Ok(open.unsigned_abs())
}

/// Reads all sagas, their effects, and the balances.
///
/// # Errors
/// A database does not answer, or its rows cannot be valid.
pub(crate) async fn read(database: &Database) -> Result<checker::Sagas, Failure> {
    match outbox::connect::dialect_of(&database.sagas)? {
        migrations::Dialect::Postgres => read_from::<Postgres>(database).await,
        migrations::Dialect::Sqlite => read_from::<Sqlite>(database).await,
    }
}

async fn read_from<DB: Shop>(database: &Database) -> Result<checker::Sagas, Failure> {
    let mut bank = DB::connect(&database.bank).await?;
    let mut sagas = DB::connect(&database.sagas).await?;
    let balance = |service: &str, account: &str, taken| Balance {
        service: service.into(),
        account: account.into(),
        taken,
    };
    let balances = vec![
        balance("bank", "customers", CENTS - DB::number(&mut bank, CUSTOMERS).await?),
        balance("bank", "shop", DB::number(&mut bank, SHOP).await?),
        balance("stock", "all items", FREE * ITEMS - DB::number(&mut sagas, STOCK).await?),
    ];
    let mut rows = DB::effects(&mut bank).await?;
    rows.extend(DB::effects(&mut sagas).await?);
    let effect = |(saga, step, service, is_undo, amount): (String, String, String, _, _)| StepEffect {
        saga: saga.into(),
        step: step.into(),
        service: service.into(),
        is_undo,
        amount,
    };
    let run = |(id, state): (String, String)| -> Result<SagaRun, Failure> {
        let state = match state.as_str() {
            "running" | "undoing" => SagaState::Open,
            "finished" => SagaState::Finished,
            "undone" => SagaState::Undone,
            other => return Err(format!("a saga in state {other:?}").into()),
        };
        Ok(SagaRun { id: id.into(), state })
    };
    let runs = DB::pairs(&mut sagas, RUNS).await?;
    let orders = DB::pairs(&mut sagas, ORDERS).await?;
    Ok(checker::Sagas {
        orders: orders.into_iter().map(|(id, _)| Arc::from(id)).collect(),
        runs: runs.into_iter().map(run).collect::<Result<_, _>>()?,
        steps: [RESERVE, CHARGE, SHIP].map(Arc::from).into(),
        effects: rows.into_iter().map(effect).collect(),
        balances,
    })
}
