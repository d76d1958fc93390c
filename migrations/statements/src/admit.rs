//! The guard: a message takes effect once.

use std::fmt;

use message::{Message, MessageId};
use serde::Deserialize;

use crate::error::Refused;
use crate::finish::{Finish, InboxRow, Kept};
use crate::operation::{Next, Operation, then, values};
use crate::settings::InboxSettings;
use crate::statement::{Row, Statement, Value};

const ADMIT: &str = "SELECT jsonb_build_object(
        'word', inbox_admit(consumer => $1::text, message_id => $2::text::uuid, kind => $3::text,
            content_type => $4::text, payload => $5::bytea, source => $6::text, scope => $7::text),
        'transaction', pg_current_xact_id()::text
    )::text AS answer, NULL::bytea AS payload";

/// Admits a message ([`Inbox::admit`](crate::Inbox::admit)).
#[derive(Debug)]
#[must_use = "a message is admitted when a driver runs the operation in a transaction"]
pub struct Admit {
    id: MessageId,
    consumer: String,
    scope: String,
    /// `None` for a chunk of a larger message.
    statement: Option<Statement>,
}

/// The answer of the inbox to a message.
#[derive(Debug)]
#[must_use = "handle a new message, skip a known one, and store a refused one"]
pub enum Admission {
    /// It has not taken effect: handle it in this transaction.
    New(Guard),
    /// It has taken effect, or is a dead letter: do nothing.
    Known(Known),
    /// It must not take effect. Roll back, and [store](crate::Inbox::fail) it.
    Refused(Refusal),
}

/// The right to have the effect of one message in the transaction that admitted it.
#[derive(Debug)]
#[must_use = "finish it before the commit"]
pub struct Guard {
    pub(crate) row: InboxRow,
}

/// A message whose fate is decided already.
#[derive(Debug)]
pub enum Known {
    /// It has taken effect.
    Applied(Kept),
    /// It is a dead letter.
    DeadLetter(Kept),
}

/// Why the inbox refuses a message. Trying again does not help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// Its id was used with another kind, content type, payload or source.
    KeyReused,
    /// It is older than the inbox remembers, so it is unknown whether it took effect.
    TooOld,
    /// Its time lies more than a day ahead of the database's clock.
    FromTheFuture,
    /// The database does not accept its id.
    Malformed,
    /// It is a chunk of a larger message, which these operations do not assemble.
    Chunk,
}

#[derive(Deserialize)]
struct Answer {
    word: String,
    transaction: String,
}

impl Admit {
    pub(crate) fn new(inbox: &InboxSettings, message: &Message) -> Self {
        let values = values([
            Value::text(inbox.consumer.as_str()),
            Value::text(message.id.to_string()),
            Value::text(message.kind.as_str()),
            Value::text(message.content_type.as_str()),
            Value::Bytes(message.payload.clone()),
            Value::text(message.source.as_str()),
            Value::text(inbox.tenant.as_str()),
        ]);
        let statement = message.chunk.is_none().then(|| Statement::new(ADMIT, values));
        let consumer = inbox.consumer.as_str().to_owned();
        Self { id: message.id, consumer, scope: inbox.tenant.as_str().to_owned(), statement }
    }

    fn admission(&self, Answer { word, transaction }: Answer) -> Result<Admission, Refused> {
        let kept = || Kept::new(self.id.as_uuid());
        let refusal = match word.as_str() {
            "new" => {
                let (consumer, scope) = (self.consumer.clone(), self.scope.clone());
                let row = InboxRow { id: self.id, consumer, scope, transaction };
                return Ok(Admission::New(Guard { row }));
            }
            "duplicate" => return Ok(Admission::Known(Known::Applied(kept()))),
            "dead_letter" => return Ok(Admission::Known(Known::DeadLetter(kept()))),
            "key_reused" => Refusal::KeyReused,
            "too_old" => Refusal::TooOld,
            "from_the_future" => Refusal::FromTheFuture,
            "malformed" => Refusal::Malformed,
            _ => return Err(Refused::Answer { problem: format!("{word:?} is unknown") }),
        };
        Ok(Admission::Refused(refusal))
    }
}

impl Operation for Admit {
    type Output = Admission;

    fn begin(&mut self) -> Next<Admission> {
        match self.statement.take() {
            Some(statement) => Next::Send(statement),
            None => Next::Done(Ok(Admission::Refused(Refusal::Chunk))),
        }
    }

    fn read(&mut self, row: Option<Row>) -> Next<Admission> {
        then(row.unwrap_or_default().read(), |answer| Next::Done(self.admission(answer)))
    }
}

impl Guard {
    /// Returns the id of the message.
    #[must_use]
    pub fn id(&self) -> MessageId {
        self.row.id
    }

    /// Checks, right before the commit, that the transaction is alive and still contains the
    /// inbox's row. Without it, a handler that ignored an error of the database would lose its
    /// effect: some drivers report success for a COMMIT that rolled back.
    pub fn finish(self) -> Finish {
        Finish::new(self.row)
    }
}

impl Known {
    /// Returns the proof that settles the delivery. Call it when the transaction has ended.
    pub fn after_commit(self) -> message::Committed {
        match self {
            Self::Applied(kept) | Self::DeadLetter(kept) => kept.after_commit(),
        }
    }
}

impl Refusal {
    /// Returns the reason of its dead letter.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::KeyReused => "key_reused",
            Self::TooOld => "too_old",
            Self::FromTheFuture => "from_the_future",
            Self::Malformed | Self::Chunk => "malformed",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::KeyReused => {
                "its id was used before with another kind, content type, payload or source: correct the producer, \
                 then send this message with a new id"
            }
            Self::TooOld => {
                "it is older than the inbox remembers, so it is unknown whether it took effect: find out, then \
                 requeue or discard it"
            }
            Self::FromTheFuture => {
                "its time lies more than a day ahead of the database's clock: correct the producer's clock, and \
                 requeue it when its time has come"
            }
            Self::Malformed => "the database does not accept its id; send a version 7 UUID (RFC 9562)",
            Self::Chunk => {
                "it is a chunk of a larger message, which this consumer does not assemble: do not set \
                 `oversize = \"chunk\"` for its topic"
            }
        })
    }
}
