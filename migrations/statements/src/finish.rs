//! Checks that a transaction still holds an effect, and the proof after its commit.

use message::{Committed, MessageId};
use serde::Deserialize;
use uuid::Uuid;

use crate::error::Refused;
use crate::operation::{Next, Operation, then, values};
use crate::statement::{Row, Statement, Value};

/// Fails in a transaction that PostgreSQL has aborted.
const FINISH: &str = "SELECT jsonb_build_object(
        'is_held', pg_current_xact_id()::text = $4::text AND EXISTS (SELECT FROM inbox_message AS m
            WHERE m.message_id = $1::text::uuid AND m.consumer = $2::text AND m.scope = $3::text
                AND m.dead_letter IS NULL)
    )::text AS answer, NULL::bytea AS payload";

/// Checks that the transaction still holds the effect of a message
/// ([`Guard::finish`](crate::Guard::finish)).
#[derive(Debug)]
#[must_use = "nothing is checked until a driver runs the operation"]
pub struct Finish {
    row: InboxRow,
}

/// Something that lasts if the transaction that contains it is committed.
#[derive(Debug)]
#[must_use = "after the commit it becomes the proof that settles the delivery"]
pub struct Kept {
    subject: Uuid,
}

/// A row of the inbox, and the transaction that wrote it.
#[derive(Debug, Clone)]
pub(crate) struct InboxRow {
    pub(crate) id: MessageId,
    pub(crate) consumer: String,
    pub(crate) scope: String,
    pub(crate) transaction: String,
}

#[derive(Deserialize)]
struct Answer {
    is_held: bool,
}

impl Finish {
    pub(crate) fn new(row: InboxRow) -> Self {
        Self { row }
    }
}

impl Operation for Finish {
    type Output = Kept;

    fn begin(&mut self) -> Next<Kept> {
        let InboxRow { id, consumer, scope, transaction } = &self.row;
        let values = values([
            Value::text(id.to_string()),
            Value::text(consumer),
            Value::text(scope),
            Value::text(transaction),
        ]);
        Next::Send(Statement::new(FINISH, values))
    }

    fn read(&mut self, row: Option<Row>) -> Next<Kept> {
        then(row.unwrap_or_default().read(), |Answer { is_held }| {
            let id = self.row.id;
            let kept = if is_held { Ok(Kept::new(id.as_uuid())) } else { Err(Refused::Ended { id }) };
            Next::Done(kept)
        })
    }
}

impl Kept {
    pub(crate) fn new(subject: Uuid) -> Self {
        Self { subject }
    }

    /// Returns the proof that settles the delivery (`message::Settlement::done`). Call it only when
    /// the commit has succeeded: a delivery that is acknowledged before may lose its effect.
    pub fn after_commit(self) -> Committed {
        Committed::attest(self.subject)
    }
}
