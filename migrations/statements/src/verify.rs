//! Checks that a transaction still holds a message.

use serde::Deserialize;

use crate::enqueue::Enqueued;
use crate::error::Refused;
use crate::operation::{Next, Operation, then, values};
use crate::statement::{Row, Statement, Value};

/// If the message was enqueued before, its row belongs to another transaction: then the statement
/// checks only that this transaction is alive. Fails in a transaction that PostgreSQL has aborted.
const VERIFY: &str = "SELECT jsonb_build_object(
        'is_held', $2::text IS NULL OR (pg_current_xact_id()::text = $2::text AND EXISTS (
            SELECT FROM outbox_message AS m WHERE m.message_id = $1::text::uuid AND m.xid = $2::text::xid8))
    )::text AS answer, NULL::bytea AS payload";

/// Checks that the transaction is alive and still holds a message
/// ([`Outbox::verify`](crate::Outbox::verify)).
#[derive(Debug)]
#[must_use = "nothing is checked until a driver runs the operation"]
pub struct Verify {
    enqueued: Enqueued,
}

#[derive(Deserialize)]
struct Answer {
    is_held: bool,
}

impl Verify {
    pub(crate) fn new(enqueued: &Enqueued) -> Self {
        Self { enqueued: enqueued.clone() }
    }
}

impl Operation for Verify {
    type Output = ();

    fn begin(&mut self) -> Next<()> {
        let Enqueued { id, transaction } = &self.enqueued;
        let values = values([Value::text(id.to_string()), Value::Text(transaction.clone())]);
        Next::Send(Statement::new(VERIFY, values))
    }

    fn read(&mut self, row: Option<Row>) -> Next<()> {
        then(row.unwrap_or_default().read(), |Answer { is_held }| {
            let held = if is_held { Ok(()) } else { Err(Refused::Ended { id: self.enqueued.id }) };
            Next::Done(held)
        })
    }
}
