//! Redrives that operators asked for (`relay dead requeue`).

use std::collections::BTreeMap;
use std::error::Error as StdError;

use message::error_text::storable;
use message::{
    ContentType, DeadLetterId, EventType, InvalidText, Message, MessageId, OrderingKey, Source, Topic,
};
use serde::Deserialize;
use uuid::Uuid;

use crate::failure::Failure;
use crate::finish::{Finish, InboxRow};
use crate::operation::{Alone, Next, Operation, then, values};
use crate::settings::InboxSettings;
use crate::statement::{Row, Statement, Value};
use crate::store::ERROR_BYTES_MAX;

const BEGIN: &str = "SELECT coalesce(to_jsonb(inbox_begin_redrive($1::text)), 'null')::text AS answer,
    NULL::bytea AS payload";

const TAKE: &str = "SELECT jsonb_build_object('dead_letter', r.dead_letter, 'message_id', r.message_id,
        'topic', r.topic, 'key', r.key, 'kind', r.kind, 'content_type', r.content_type, 'headers', r.headers,
        'source', r.source, 'scope', r.scope, 'transaction', pg_current_xact_id()::text
    )::text AS answer, r.payload AS payload FROM inbox_take_redrive($1::text, $2::text::bigint) AS r";

const FAIL: &str =
    "SELECT to_jsonb(inbox_fail_redrive($1::text, $2::text::bigint, $3::text))::text AS answer,
    NULL::bytea AS payload";

/// An operator's request for a redrive, which this process has in hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RedriveRequest(i64);

/// Begins the next redrive ([`Inbox::begin_redrive`](crate::Inbox::begin_redrive)).
#[derive(Debug)]
#[must_use = "a redrive begins when a driver runs the operation"]
pub struct BeginRedrive {
    consumer: String,
}

/// Takes the message of a redrive ([`Inbox::take_redrive`](crate::Inbox::take_redrive)).
#[derive(Debug)]
#[must_use = "a redrive is taken when a driver runs the operation in a transaction"]
pub struct TakeRedrive {
    consumer: String,
    request: RedriveRequest,
}

/// A dead letter that is to take effect in this transaction.
#[derive(Debug)]
#[must_use = "have its effect, then finish it before the commit"]
pub struct Redrive {
    /// The dead letter.
    pub dead_letter: DeadLetterId,
    message: Result<Message, InvalidText>,
    row: InboxRow,
}

/// Ends a redrive that failed ([`Inbox::fail_redrive`](crate::Inbox::fail_redrive)).
#[derive(Debug)]
#[must_use = "a redrive fails when a driver runs the operation"]
pub struct FailRedrive {
    values: Vec<Value>,
}

#[derive(Deserialize)]
struct Answer {
    dead_letter: Uuid,
    message_id: MessageId,
    topic: String,
    key: Option<String>,
    kind: String,
    content_type: String,
    headers: BTreeMap<String, String>,
    source: Option<String>,
    scope: String,
    transaction: String,
}

impl BeginRedrive {
    pub(crate) fn new(inbox: &InboxSettings) -> Self {
        Self { consumer: inbox.consumer.to_string() }
    }
}

impl Operation for BeginRedrive {
    /// The request; `None` if no redrive is asked for.
    type Output = Option<RedriveRequest>;

    fn begin(&mut self) -> Next<Self::Output> {
        Next::Send(Statement::new(BEGIN, [Value::text(&self.consumer)]))
    }

    fn read(&mut self, row: Option<Row>) -> Next<Self::Output> {
        then(row.unwrap_or_default().read::<Option<i64>>(), |request| {
            Next::Done(Ok(request.map(RedriveRequest)))
        })
    }
}

impl Alone for BeginRedrive {}

impl TakeRedrive {
    pub(crate) fn new(inbox: &InboxSettings, request: RedriveRequest) -> Self {
        Self { consumer: inbox.consumer.to_string(), request }
    }
}

impl Operation for TakeRedrive {
    type Output = Option<Redrive>;

    fn begin(&mut self) -> Next<Option<Redrive>> {
        let values = [Value::text(&self.consumer), Value::text(self.request.0.to_string())];
        Next::Send(Statement::new(TAKE, values))
    }

    fn read(&mut self, row: Option<Row>) -> Next<Option<Redrive>> {
        let Some(row) = row else { return Next::Done(Ok(None)) };
        then(row.read::<Answer>(), |answer| {
            let inbox_row = InboxRow {
                id: answer.message_id,
                consumer: self.consumer.clone(),
                scope: answer.scope.clone(),
                transaction: answer.transaction.clone(),
            };
            let dead_letter = DeadLetterId(answer.dead_letter);
            let message = answer.message(row.payload.unwrap_or_default());
            Next::Done(Ok(Some(Redrive { dead_letter, message, row: inbox_row })))
        })
    }
}

impl Answer {
    fn message(self, payload: Vec<u8>) -> Result<Message, InvalidText> {
        let mut message = Message::new(Topic::new(self.topic)?, EventType::new(self.kind)?, payload);
        message.id = self.message_id;
        message.time = self.message_id.generated_at();
        message.key = self.key.map(OrderingKey::new).transpose()?;
        message.content_type = ContentType::new(self.content_type)?;
        message.source = Source::new(self.source.unwrap_or_else(|| String::from("/unknown")))?;
        for (name, value) in self.headers {
            message.headers.insert(name, value)?;
        }
        Ok(message)
    }
}

impl Redrive {
    /// Returns the message.
    ///
    /// # Errors
    /// [`Failure::Rejected`] if a part of it breaks a rule. Roll back, and
    /// [fail](crate::Inbox::fail_redrive) the redrive.
    pub fn message<D: StdError + 'static>(&self) -> Result<&Message, Failure<D>> {
        self.message.as_ref().map_err(|error| Failure::reject(error.to_string()))
    }

    /// Does what [`Guard::finish`](crate::Guard::finish) does.
    pub fn finish(self) -> Finish {
        Finish::new(self.row)
    }
}

impl FailRedrive {
    pub(crate) fn new(inbox: &InboxSettings, request: RedriveRequest, error: &str) -> Self {
        let error = storable(error, ERROR_BYTES_MAX);
        let values = values([
            Value::text(inbox.consumer.as_str()),
            Value::text(request.0.to_string()),
            Value::text(error),
        ]);
        Self { values }
    }
}

impl Operation for FailRedrive {
    /// Whether the redrive was open.
    type Output = bool;

    fn begin(&mut self) -> Next<bool> {
        Next::Send(Statement::new(FAIL, std::mem::take(&mut self.values)))
    }

    fn read(&mut self, row: Option<Row>) -> Next<bool> {
        Next::Done(row.unwrap_or_default().read())
    }
}

impl Alone for FailRedrive {}
