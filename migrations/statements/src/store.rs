//! Dead letters.

use std::collections::BTreeMap;

use message::error_text::storable;
use message::{Committed, DeadLetterId, Delivery, Malformed, Message};
use serde::Deserialize;
use time::UtcOffset;
use time::format_description::well_known::Rfc3339;
use uuid::Uuid;

use crate::finish::Kept;
use crate::operation::{Alone, Next, Operation, then, values};
use crate::settings::InboxSettings;
use crate::statement::{Row, Statement, Value};

/// The maximum size of an error text, in bytes.
pub(crate) const ERROR_BYTES_MAX: usize = 4_096;

pub(crate) const STORE: &str =
    "SELECT jsonb_build_object('dead_letter', inbox_store_dead_letter($1::text, $2::text::uuid,
        $3::text, $4::text, $5::text, $6::bytea, $7::text, $8::text, $9::text, $10::text::jsonb, $11::text,
        $12::text, $13::text, $14::text, $15::text, $16::text)
    )::text AS answer, NULL::bytea AS payload";

/// Stores a delivery that is not a message
/// ([`Inbox::refuse_delivery`](crate::Inbox::refuse_delivery)).
#[derive(Debug)]
#[must_use = "a dead letter is stored when a driver runs the operation"]
pub struct Store {
    subject: Uuid,
    values: Vec<Value>,
}

/// A message or delivery that waits for an operator.
#[derive(Debug)]
#[must_use = "settle the delivery"]
pub struct DeadLetter {
    id: DeadLetterId,
    kept: Kept,
}

#[derive(Deserialize)]
struct Answer {
    dead_letter: Uuid,
}

impl Store {
    pub(crate) fn delivery(inbox: &InboxSettings, delivery: &Delivery, malformed: &Malformed) -> Self {
        let text = |text: &str| storable(text, usize::MAX);
        let pairs = malformed.headers.iter().chain(&malformed.properties);
        let headers: BTreeMap<String, String> =
            pairs.map(|(name, value)| (text(name), text(value))).collect();
        let values = values([
            Value::text(inbox.consumer.as_str()),
            Value::Text(None),
            Value::text(text(&malformed.topic)),
            Value::Text(None),
            Value::optional(malformed.header("content-type").map(text)),
            Value::Bytes(malformed.payload.clone()),
            Value::text("malformed"),
            Value::text(storable(&malformed.problem, ERROR_BYTES_MAX)),
            Value::optional(malformed.key.as_deref().map(text)),
            json(&headers),
            Value::Text(None),
            Value::Text(None),
            Value::Text(None),
            Value::Text(None),
            Value::text(text(&delivery.origin)),
            Value::text(inbox.tenant.as_str()),
        ]);
        Self { subject: delivery.subject(), values }
    }
}

/// The index of the origin among [`letter_values`].
const ORIGIN: usize = 14;

/// Sets the origin among [`letter_values`].
pub(crate) fn origin_value(values: &mut [Value], origin: &str) {
    if let Some(value) = values.get_mut(ORIGIN) {
        *value = Value::text(storable(origin, usize::MAX));
    }
}

/// Returns the parameters of `inbox_store_dead_letter`, in their order.
pub(crate) fn letter_values(
    inbox: &InboxSettings,
    message: &Message,
    reason: &str,
    error: &str,
) -> Vec<Value> {
    let made_at = message.time.to_offset(UtcOffset::UTC).format(&Rfc3339).ok();
    let trace = message.trace.as_ref();
    values([
        Value::text(inbox.consumer.as_str()),
        Value::text(message.id.to_string()),
        Value::text(message.topic.as_str()),
        Value::text(message.kind.as_str()),
        Value::text(message.content_type.as_str()),
        Value::Bytes(message.payload.clone()),
        Value::text(reason),
        Value::text(storable(error, ERROR_BYTES_MAX)),
        Value::optional(message.key.as_ref().map(|key| key.as_str())),
        json(&message.headers),
        Value::text(message.source.as_str()),
        Value::optional(made_at),
        Value::optional(trace.map(|trace| trace.parent())),
        Value::optional(trace.and_then(|trace| trace.state())),
        Value::text(""),
        Value::text(inbox.tenant.as_str()),
    ])
}

/// Returns a JSON object of texts. These types are always written.
fn json(headers: &impl serde::Serialize) -> Value {
    Value::optional(serde_json::to_string(headers).ok())
}

impl Operation for Store {
    type Output = DeadLetter;

    fn begin(&mut self) -> Next<DeadLetter> {
        Next::Send(Statement::new(STORE, std::mem::take(&mut self.values)))
    }

    fn read(&mut self, row: Option<Row>) -> Next<DeadLetter> {
        then(row.unwrap_or_default().read(), |Answer { dead_letter }| {
            Next::Done(Ok(DeadLetter::new(dead_letter, Kept::new(self.subject))))
        })
    }
}

impl Alone for Store {}

impl DeadLetter {
    pub(crate) fn new(id: Uuid, kept: Kept) -> Self {
        Self { id: DeadLetterId(id), kept }
    }

    /// Returns its id, as `relay dead` shows it.
    #[must_use]
    pub fn id(&self) -> DeadLetterId {
        self.id
    }

    /// Returns the proof that settles the delivery. Call it when the dead letter is committed: if
    /// the operation ran outside a transaction, at once.
    pub fn after_commit(self) -> Committed {
        self.kept.after_commit()
    }
}
