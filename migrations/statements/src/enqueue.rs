//! Enqueues a message in the caller's transaction.

use std::collections::BTreeMap;
use std::sync::Arc;

use message::token::MintError;
use message::{Fingerprint, MessageId, NewMessage, Prepared, Stored};
use serde::Deserialize;
use time::format_description::well_known::Rfc3339;
use time::{OffsetDateTime, UtcOffset};
use uuid::Uuid;

use crate::error::Refused;
use crate::operation::{Next, Operation, then, values};
use crate::settings::OutboxSettings;
use crate::statement::{Row, Statement, Value};

/// Reads what is stored under an id, as digests, and the clock by which its time is checked.
const LOOK: &str = "SELECT jsonb_build_object(
        'now', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
        'known', (SELECT jsonb_build_object('fingerprint', encode(s.fingerprint, 'hex'), 'topic', s.topic,
            'key', s.key, 'headers', coalesce(s.headers, '{}')) FROM outbox_stored(ARRAY[$1::text::uuid]) AS s)
    )::text AS answer, NULL::bytea AS payload";

const ENQUEUE: &str = "SELECT jsonb_build_object(
        'id', outbox_enqueue(topic => $1::text, payload => $2::bytea, key => $3::text, kind => $4::text,
            content_type => $5::text, headers => $6::text::jsonb, deliver_at => $7::text::timestamptz,
            message_id => $8::text::uuid, traceparent => $9::text, tracestate => $10::text),
        'transaction', pg_current_xact_id()::text
    )::text AS answer, NULL::bytea AS payload";

/// Enqueues a message ([`Outbox::enqueue`](crate::Outbox::enqueue)).
#[derive(Debug)]
#[must_use = "a message is enqueued when a driver runs the operation in a transaction"]
pub struct Enqueue {
    settings: Arc<OutboxSettings>,
    state: State,
}

#[derive(Debug)]
enum State {
    Given(Box<Result<Prepared, Refused>>),
    /// Its id is being looked up.
    Looked(Box<Prepared>),
    Stored,
}

/// The result of enqueueing a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enqueued {
    pub(crate) id: MessageId,
    /// The transaction that holds it; `None` if it was enqueued before.
    pub(crate) transaction: Option<String>,
}

#[derive(Deserialize)]
struct Look {
    /// Microseconds.
    now: i64,
    known: Option<Found>,
}

#[derive(Deserialize)]
struct Found {
    fingerprint: String,
    topic: String,
    key: Option<String>,
    headers: BTreeMap<String, Option<String>>,
}

#[derive(Deserialize)]
struct Answer {
    id: Uuid,
    transaction: String,
}

impl Enqueue {
    pub(crate) fn new(settings: Arc<OutboxSettings>, message: NewMessage) -> Self {
        let prepared = prepare(&settings, message);
        Self { settings, state: State::Given(Box::new(prepared)) }
    }

    /// Decides by what is stored under the id.
    fn decide(&self, look: Look, prepared: &Prepared) -> Result<Option<Enqueued>, Refused> {
        let message = &prepared.message;
        let now = OffsetDateTime::from_unix_timestamp_nanos(i128::from(look.now) * 1_000)
            .map_err(|error| unreadable(&error))?;
        let accepted = self.settings.ids_accepted.at(now).validate(message.id);
        accepted.map_err(|drift| Refused::Drift(Box::new(drift)))?;
        let Some(found) = look.known else { return Ok(None) };
        found.stored(message.id)?.check(message, &self.settings.varying)?;
        Ok(Some(Enqueued { id: message.id, transaction: None }))
    }

    fn store(&mut self, prepared: &Prepared) -> Next<Enqueued> {
        self.state = State::Stored;
        match statement(prepared) {
            Ok(statement) => Next::Send(statement),
            Err(refused) => Next::Done(Err(refused)),
        }
    }
}

impl Operation for Enqueue {
    type Output = Enqueued;

    fn begin(&mut self) -> Next<Enqueued> {
        match std::mem::replace(&mut self.state, State::Stored) {
            State::Given(prepared) => then(*prepared, |prepared| {
                if !prepared.is_supplied {
                    return self.store(&prepared);
                }
                let id = Value::text(prepared.message.id.to_string());
                self.state = State::Looked(Box::new(prepared));
                Next::Send(Statement::new(LOOK, [id]))
            }),
            State::Looked(_) | State::Stored => Next::Done(Err(twice())),
        }
    }

    fn read(&mut self, row: Option<Row>) -> Next<Enqueued> {
        let row = row.unwrap_or_default();
        if let State::Looked(prepared) = std::mem::replace(&mut self.state, State::Stored) {
            let decided = row.read().and_then(|look| self.decide(look, &prepared));
            return then(decided, |known| match known {
                Some(known) => Next::Done(Ok(known)),
                None => self.store(&prepared),
            });
        }
        let enqueued = row.read().and_then(|Answer { id, transaction }| {
            let id = MessageId::try_from(id).map_err(|error| unreadable(&error))?;
            Ok(Enqueued { id, transaction: Some(transaction) })
        });
        Next::Done(enqueued)
    }
}

impl Enqueued {
    /// Returns the message's id.
    #[must_use]
    pub fn id(&self) -> MessageId {
        self.id
    }

    /// Returns whether the same message had been enqueued before under this id. It is not enqueued
    /// again.
    #[must_use]
    pub fn is_duplicate(&self) -> bool {
        self.transaction.is_none()
    }
}

impl Found {
    fn stored(self, id: MessageId) -> Result<Stored, Refused> {
        let parse = |digits: &str| digits.parse::<Fingerprint>().map_err(|error| unreadable(&error));
        let headers = self.headers.into_iter().filter_map(|(name, digest)| Some((name, digest?)));
        let headers = headers.map(|(name, digest)| Ok((name, parse(&digest)?)));
        Ok(Stored {
            id,
            fingerprint: parse(&self.fingerprint)?,
            topic: self.topic,
            key: self.key,
            headers: headers.collect::<Result<_, Refused>>()?,
        })
    }
}

/// Checks a message as the library does.
fn prepare(settings: &OutboxSettings, message: NewMessage) -> Result<Prepared, Refused> {
    let mint = || settings.ids.mint().map_err(|error: MintError| Refused::from(error));
    let prepared = message.prepare(mint, || None)?;
    let limit = settings.topic_limits.get(&prepared.message.topic).unwrap_or(&settings.limit);
    limit.check_without_source(&prepared.message)?;
    if let Some(deliver_at) = prepared.deliver_at {
        settings.ids_accepted.check_delivery(prepared.message.id, deliver_at)?;
    }
    Ok(prepared)
}

fn statement(Prepared { message, deliver_at, .. }: &Prepared) -> Result<Statement, Refused> {
    let headers = (!message.headers.is_empty()).then(|| serde_json::to_string(&message.headers));
    let headers = headers.transpose().map_err(|error| unreadable(&error))?;
    let deliver_at = deliver_at.map(|at| at.to_offset(UtcOffset::UTC).format(&Rfc3339));
    let deliver_at = deliver_at.transpose().map_err(|error| unreadable(&error))?;
    let trace = message.trace.as_ref();
    let values = values([
        Value::text(message.topic.as_str()),
        Value::Bytes(message.payload.clone()),
        Value::optional(message.key.as_ref().map(|key| key.as_str())),
        Value::text(message.kind.as_str()),
        Value::text(message.content_type.as_str()),
        Value::optional(headers),
        Value::optional(deliver_at),
        Value::text(message.id.to_string()),
        Value::optional(trace.map(|trace| trace.parent())),
        Value::optional(trace.and_then(|trace| trace.state())),
    ]);
    Ok(Statement::new(ENQUEUE, values))
}

fn unreadable(error: &dyn std::error::Error) -> Refused {
    Refused::Answer { problem: error.to_string() }
}

/// `Call` begins an operation once.
fn twice() -> Refused {
    Refused::Answer { problem: String::from("the operation was begun twice") }
}
