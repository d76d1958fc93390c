//! Rows as records, the same for every database.

use bytes::Bytes;
use message::{Fingerprint, MessageId};
use migrations::Backend;
use migrations::query::Row;
use uuid::Uuid;

use crate::activity::{ActivityRow, ConsumerCounts, Counts, LetterRow};
use crate::attempts::{Attempt, InHand, NotedFailure};
use crate::chunks::Incomplete;
use crate::comparison::Stored;
use crate::dead_letters::{
    Action, ClosedCount, DeadLetter, DecidedLetter, Decision, FoundLetter, HeldFirst, HeldKey, KeyedLetter,
    LetterDecision, LetterGroup, Reason, Resolution, SeenLetter, Signature,
};
use crate::dialect::{Guards, Inserted, Reading};
use crate::ids::DeadLetterId;
use crate::known::{Known, KnownState};
use crate::reconcile::{Remembered, Unfinished};

type Result<T> = std::result::Result<T, sqlx::Error>;

fn unreadable(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> sqlx::Error {
    sqlx::Error::Decode(error.into())
}

/// Reads a fingerprint that may be null.
pub(crate) fn fingerprint_if_any<DB: Backend>(row: &Row<DB>, column: &str) -> Result<Option<Fingerprint>> {
    let bytes: Option<Vec<u8>> = row.get(column)?;
    bytes.map(|bytes| Fingerprint::try_from(&bytes[..]).map_err(unreadable)).transpose()
}

/// Reads the fingerprint of a row.
pub(crate) fn fingerprint<DB: Backend>(row: &Row<DB>) -> Result<Fingerprint> {
    let bytes: Vec<u8> = row.get("fingerprint")?;
    Fingerprint::try_from(&bytes[..]).map_err(unreadable)
}

/// Reads the id of a dead letter.
pub(crate) fn letter_id<DB: Backend>(row: &Row<DB>) -> Result<DeadLetterId> {
    row.get("id").map(DeadLetterId)
}

pub(crate) fn inserted<DB: Guards>(row: &Row<DB>) -> Result<Inserted> {
    Ok(Inserted::New { processed_at: row.get("processed_at")?, session: DB::session_of(row)? })
}

pub(crate) fn stored<DB: Backend>(row: &Row<DB>) -> Result<Stored> {
    Ok(Stored {
        fingerprint: fingerprint(row)?,
        source: row.get("source")?,
        result: row.get("result")?,
        processed_at: row.get("processed_at")?,
        dead_letter: row.get::<Option<Uuid>>("dead_letter")?.map(DeadLetterId),
    })
}

pub(crate) fn reading<DB: Backend>(row: &Row<DB>) -> Result<Reading> {
    Ok(Reading { now: row.get("now")?, retained_from: row.get("retained_from")? })
}

pub(crate) fn noted_failure<DB: Backend>(row: &Row<DB>) -> Result<NotedFailure> {
    Ok(NotedFailure {
        attempts: row.get("attempts")?,
        uncounted: row.get("uncounted")?,
        first_failed_at: row.get("first_failed_at")?,
        age: row.get("age")?,
    })
}

pub(crate) fn attempt<DB: Backend>(row: &Row<DB>) -> Result<Attempt> {
    Ok(Attempt {
        attempts: row.get("attempts")?,
        last_error: row.get("last_error")?,
        first_failed_at: row.get("first_failed_at")?,
        next_at: row.get("next_at")?,
    })
}

pub(crate) fn in_hand<DB: Backend>(row: &Row<DB>) -> Result<InHand> {
    Ok(InHand {
        failures: row.get("attempts")?,
        ends: row.get("ends")?,
        owner: row.get("owner")?,
        next_at: row.get("next_at")?,
    })
}

/// Reads a set of chunks, without its splits.
pub(crate) fn incomplete<DB: Backend>(row: &Row<DB>) -> Result<Incomplete> {
    Ok(Incomplete {
        consumer: row.get("consumer")?,
        tenant: row.get("scope")?,
        id: MessageId::try_from(row.get::<Uuid>("message_id")?).map_err(unreadable)?,
        fingerprint: fingerprint(row)?,
        topic: row.get("topic")?,
        key: row.get("key")?,
        kind: row.get("kind")?,
        source: row.get("source")?,
        time: row.get("time")?,
        content_type: row.get("content_type")?,
        bytes: row.get("bytes")?,
        begun_at: row.get("begun_at")?,
        splits: Vec::new(),
    })
}

pub(crate) fn letter<DB: Backend>(row: &Row<DB>) -> Result<DeadLetter> {
    let message_id: Option<Uuid> = row.get("message_id")?;
    let headers: String = row.get("headers")?;
    let traceparent: Option<String> = row.get("traceparent")?;
    let tracestate = row.get("tracestate")?;
    let payload: Vec<u8> = row.get("payload")?;
    let resolution: Option<String> = row.get("resolution")?;
    let resolution = resolution.as_deref().and_then(Resolution::from_word);
    Ok(DeadLetter {
        id: letter_id(row)?,
        consumer: row.get("consumer")?,
        tenant: row.get("scope")?,
        subject: row.get("subject")?,
        fingerprint: fingerprint(row)?,
        message_id: message_id.map(MessageId::try_from).transpose().map_err(unreadable)?,
        topic: row.get("topic")?,
        key: row.get("key")?,
        kind: row.get("kind")?,
        source: row.get("source")?,
        time: row.get("time")?,
        content_type: row.get("content_type")?,
        headers: serde_json::from_str(&headers).map_err(unreadable)?,
        trace: traceparent.map(|parent| (parent, tracestate)),
        payload: Bytes::from(payload),
        payload_bytes: row.get("payload_bytes")?,
        reason: reason(row)?,
        error: row.get("error")?,
        attempts: row.get("attempts")?,
        deliveries: row.get("deliveries")?,
        origin: row.get("origin")?,
        dead_at: row.get("dead_at")?,
        resolved: resolution.zip(row.get("resolved_at")?),
        seq: row.get("seq")?,
    })
}

pub(crate) fn decision<DB: Backend>(row: &Row<DB>) -> Result<Decision> {
    let letter = DecidedLetter {
        dead_letter: DeadLetterId(row.get("dead_letter")?),
        consumer: row.get("consumer")?,
        accept_late: row.get("accept_late")?,
        outcome: row.get("outcome")?,
        done_at: row.get("done_at")?,
        decision: row.get("decision")?,
    };
    Decision::read(row, Action::from_word, letter)
}

pub(crate) fn found_letter<DB: Backend>(row: &Row<DB>) -> Result<FoundLetter> {
    Ok(FoundLetter {
        id: letter_id(row)?,
        seq: row.get("seq")?,
        consumer: row.get("consumer")?,
        topic: row.get("topic")?,
        reason: reason(row)?,
        deliveries: row.get("deliveries")?,
        dead_at: row.get("dead_at")?,
        error: row.get("error")?,
    })
}

pub(crate) fn keyed_letter<DB: Backend>(row: &Row<DB>) -> Result<KeyedLetter> {
    Ok(KeyedLetter {
        seen: SeenLetter { id: letter_id(row)?, reason: reason(row)?, deliveries: row.get("deliveries")? },
        message_id: row.get("message_id")?,
        is_open: row.get("is_open")?,
    })
}

pub(crate) fn letter_group<DB: Backend>(row: &Row<DB>) -> Result<LetterGroup> {
    Ok(LetterGroup {
        topic: row.get("topic")?,
        reason: row.get("reason")?,
        error: row.get("error")?,
        count: row.get("letters")?,
        first: row.get("first")?,
        last: row.get("last")?,
    })
}

/// Reads a decision about many dead letters, and the number of each outcome.
pub(crate) fn letter_decision<DB: Backend>(head: &Row<DB>, now: &[Row<DB>]) -> Result<LetterDecision> {
    let mut decision = LetterDecision {
        signature: Signature::read(head)?,
        action: outbox::read_action(head, Action::from_word)?,
        count: head.get("letters")?,
        first: head.get("first")?,
        last: head.get("last")?,
        waiting: 0,
        failed: 0,
        replaced: 0,
        closed: Vec::new(),
    };
    for row in now {
        let outcome: Option<String> = row.get("outcome")?;
        let count: u64 = row.get("letters")?;
        match outcome.as_deref() {
            None => decision.waiting += count,
            Some("replaced") => decision.replaced += count,
            Some(word) => match Resolution::from_word(word) {
                Some(resolution) => decision.closed.push(ClosedCount { resolution, count }),
                None => decision.failed += count,
            },
        }
    }
    Ok(decision)
}

fn reason<DB: Backend>(row: &Row<DB>) -> Result<Reason> {
    let word: String = row.get("reason")?;
    Reason::from_word(&word).ok_or_else(|| unreadable("this build does not know the reason of a dead letter"))
}

/// Reads the key of a dead letter that has one.
pub(crate) fn held_key<DB: Backend>(row: &Row<DB>) -> Result<HeldKey> {
    Ok(HeldKey { tenant: row.get("scope")?, topic: row.get("topic")?, key: row.get("key")? })
}

pub(crate) fn held_first<DB: Backend>(row: &Row<DB>) -> Result<HeldFirst> {
    Ok(HeldFirst { letter: letter_id(row)?, key: held_key(row)?, is_in_turn: row.get("is_in_turn")? })
}

/// Reads a message that took effect, or became a dead letter.
pub(crate) fn known<DB: Backend>(row: &Row<DB>) -> Result<Known> {
    let letter: Option<Uuid> = row.get("dead_letter")?;
    let state = match letter {
        Some(letter) => KnownState::Dead(DeadLetterId(letter)),
        None => KnownState::Applied {
            at: row.get("processed_at")?,
            result_bytes: row.get::<Option<i64>>("result_bytes")?.map(i64::unsigned_abs),
        },
    };
    Ok(Known { consumer: row.get("consumer")?, tenant: row.get("scope")?, state })
}

/// Reads a message that failed.
pub(crate) fn known_attempt<DB: Backend>(row: &Row<DB>) -> Result<Known> {
    let state = KnownState::Retrying(attempt(row)?);
    Ok(Known { consumer: row.get("consumer")?, tenant: row.get("scope")?, state })
}

pub(crate) fn activity<DB: Backend>(row: &Row<DB>) -> Result<ActivityRow> {
    Ok(ActivityRow { consumer: row.get("consumer")?, count: row.get("counted")?, at: row.get("at")? })
}

pub(crate) fn letters<DB: Backend>(row: &Row<DB>) -> Result<LetterRow> {
    Ok(LetterRow {
        consumer: row.get("consumer")?,
        dead: row.get("counted")?,
        dead_since: row.get("at")?,
        held: row.get("held")?,
    })
}

pub(crate) fn counts<DB: Backend>(row: &Row<DB>) -> Result<ConsumerCounts> {
    let counts = Counts { applied: row.get("applied")?, duplicates: row.get("duplicates")? };
    let last_applied_at = row.get("last_applied")?;
    Ok(ConsumerCounts { consumer: row.get("consumer")?, counts, last_applied_at })
}

pub(crate) fn remembered<DB: Backend>(row: &Row<DB>) -> Result<Remembered> {
    Ok(Remembered { id: row.get("message_id")?, tenant: row.get("scope")?, fingerprint: fingerprint(row)? })
}

/// Reads an attempt, whose `is_open` is null, or a dead letter.
pub(crate) fn unfinished<DB: Backend>(row: &Row<DB>) -> Result<(Uuid, Unfinished)> {
    let state = match row.get::<Option<bool>>("is_open")? {
        None => Unfinished::Retrying,
        Some(false) => Unfinished::Closed,
        Some(true) => Unfinished::DeadLetter,
    };
    Ok((row.get("message_id")?, state))
}
