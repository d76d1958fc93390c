//! Messages that were not handled: failures are counted, and become dead letters.

use std::error::Error as StdError;

use message::Message;
use serde::Deserialize;
use uuid::Uuid;

use crate::failure::Failure;
use crate::finish::Kept;
use crate::operation::{Alone, Next, Operation, then};
use crate::settings::InboxSettings;
use crate::statement::{Row, Statement, Value};
use crate::store::{DeadLetter, STORE, letter_values, origin_value};

/// Counts and stores in one statement, so that no process can end between the two.
const COUNT: &str = "WITH counted AS MATERIALIZED (
        SELECT inbox_count_failure($1::text, $2::text::uuid, $8::text, $16::text) AS attempts)
    SELECT jsonb_build_object(
        'attempts', c.attempts,
        'dead_letter', CASE WHEN c.attempts >= $17::text::bigint THEN inbox_store_dead_letter($1::text,
            $2::text::uuid, $3::text, $4::text, $5::text, $6::bytea, $7::text, $8::text, $9::text,
            $10::text::jsonb, $11::text, $12::text, $13::text, $14::text, $15::text, $16::text) END
    )::text AS answer, NULL::bytea AS payload FROM counted AS c";

/// Counts a failure, or stores a dead letter ([`Inbox::fail`](crate::Inbox::fail)).
#[derive(Debug)]
#[must_use = "a failure is counted when a driver runs the operation"]
pub struct Fail {
    subject: Uuid,
    text: &'static str,
    values: Vec<Value>,
}

/// The fate of a message that was not handled.
#[derive(Debug)]
#[must_use = "try again, or settle the delivery"]
pub enum Failed {
    /// Try it again, after a pause.
    Again {
        /// How often it has failed.
        attempts: u32,
    },
    /// It is a dead letter: settle the delivery.
    DeadLetter(DeadLetter),
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    attempts: u32,
    dead_letter: Option<Uuid>,
}

impl Fail {
    pub(crate) fn new<D: StdError + 'static>(
        inbox: &InboxSettings,
        message: &Message,
        failure: &Failure<D>,
    ) -> Self {
        let subject = message.id.as_uuid();
        let values = |reason| letter_values(inbox, message, reason, &failure.text());
        match failure {
            Failure::Refused(refusal) => Self { subject, text: STORE, values: values(refusal.reason()) },
            Failure::Rejected(_) => Self { subject, text: STORE, values: values("rejected") },
            Failure::Failed(_) | Failure::Error(_) => {
                let mut values = values("poison");
                values.push(Value::text(inbox.attempts_max.to_string()));
                Self { subject, text: COUNT, values }
            }
        }
    }

    /// Sets the place in the broker that the delivery came from, for operators.
    pub fn origin(mut self, origin: &str) -> Self {
        origin_value(&mut self.values, origin);
        self
    }
}

impl Operation for Fail {
    type Output = Failed;

    fn begin(&mut self) -> Next<Failed> {
        Next::Send(Statement::new(self.text, std::mem::take(&mut self.values)))
    }

    fn read(&mut self, row: Option<Row>) -> Next<Failed> {
        then(row.unwrap_or_default().read(), |Answer { attempts, dead_letter }| {
            Next::Done(Ok(match dead_letter {
                Some(id) => Failed::DeadLetter(DeadLetter::new(id, Kept::new(self.subject))),
                None => Failed::Again { attempts },
            }))
        })
    }
}

impl Alone for Fail {}
