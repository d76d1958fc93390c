//! Dead letters and decisions, as they are shown: no payload, no header's value.

use ::inbox::{DeadLetter, Decision};
use serde::Serialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::super::exit::Exit;
use super::super::failure::Failure;
use super::super::output::{Format, or_dash, table};

/// A dead letter as it is shown.
#[derive(Debug, Serialize)]
struct Letter {
    id: String,
    consumer: String,
    scope: String,
    message_id: Option<String>,
    topic: String,
    key: Option<String>,
    event_type: Option<String>,
    reason: &'static str,
    error: String,
    attempts: u32,
    deliveries: u32,
    origin: String,
    header_names: Vec<String>,
    payload_bytes: usize,
    dead_at: String,
    resolution: Option<&'static str>,
    resolved_at: Option<String>,
}

/// A line of the audit.
#[derive(Debug, Serialize)]
struct Audited {
    at: String,
    actor: String,
    action: &'static str,
    dead_letter: String,
    consumer: String,
    accept_late: bool,
    note: String,
    outcome: Option<String>,
    done_at: Option<String>,
}

pub(crate) fn list(letters: &[DeadLetter], format: Format) -> Result<Exit, Failure> {
    let letters: Vec<Letter> = letters.iter().map(Letter::of).collect();
    format.print(&letters, |letters| {
        if letters.is_empty() {
            return String::from("no dead letter");
        }
        let rows = letters.iter().map(|letter| {
            let Letter { id, consumer, topic, reason, dead_at, error, .. } = letter;
            let state = letter.resolution.unwrap_or("open");
            [id, consumer, topic, *reason, state, dead_at, error].map(ToString::to_string)
        });
        table(["id", "consumer", "topic", "reason", "state", "dead at", "error"], rows)
    })?;
    Ok(Exit::Success)
}

pub(crate) fn each(letters: &[DeadLetter], format: Format) -> Result<Exit, Failure> {
    let letters: Vec<Letter> = letters.iter().map(Letter::of).collect();
    format.print(&letters, |letters| letters.iter().map(card).collect::<Vec<_>>().join("\n\n"))?;
    Ok(Exit::Success)
}

pub(crate) fn audit(decisions: &[Decision], format: Format) -> Result<Exit, Failure> {
    let lines: Vec<Audited> = decisions.iter().map(Audited::of).collect();
    format.print(&lines, |lines| {
        if lines.is_empty() {
            return String::from("nothing was decided so far");
        }
        let rows = lines.iter().map(|line| {
            let Audited { at, actor, dead_letter, note, .. } = line;
            let outcome = or_dash(line.outcome.as_ref());
            [at.clone(), actor.clone(), line.action.to_owned(), dead_letter.clone(), outcome, note.clone()]
        });
        table(["at", "actor", "action", "dead letter", "outcome", "note"], rows)
    })?;
    Ok(Exit::Success)
}

fn card(letter: &Letter) -> String {
    let lines = [
        ("id", letter.id.clone()),
        ("consumer", letter.consumer.clone()),
        ("scope", letter.scope.clone()),
        ("message id", or_dash(letter.message_id.as_ref())),
        ("topic", letter.topic.clone()),
        ("key", or_dash(letter.key.as_ref())),
        ("event type", or_dash(letter.event_type.as_ref())),
        ("reason", letter.reason.to_owned()),
        ("error", letter.error.clone()),
        ("attempts", letter.attempts.to_string()),
        ("deliveries", letter.deliveries.to_string()),
        ("origin", letter.origin.clone()),
        ("headers", letter.header_names.join(", ")),
        ("payload", format!("{} bytes", letter.payload_bytes)),
        ("dead at", letter.dead_at.clone()),
        ("closed", letter.resolution.unwrap_or("no").to_owned()),
        ("closed at", or_dash(letter.resolved_at.as_ref())),
    ];
    lines.map(|(name, value)| format!("{name:<12}{value}")).join("\n")
}

impl Letter {
    fn of(letter: &DeadLetter) -> Self {
        Self {
            id: letter.id.to_string(),
            consumer: letter.consumer.clone(),
            scope: letter.scope.clone(),
            message_id: letter.message_id.map(|id| id.to_string()),
            topic: letter.topic.clone(),
            key: letter.key.clone(),
            event_type: letter.kind.clone(),
            reason: letter.reason.as_str(),
            error: letter.error.clone(),
            attempts: letter.attempts,
            deliveries: letter.deliveries,
            origin: letter.origin.clone(),
            header_names: letter.headers.iter().map(|(name, _)| name.clone()).collect(),
            payload_bytes: letter.payload.len(),
            dead_at: at(letter.dead_at),
            resolution: letter.resolved.map(|(resolution, _)| resolution.as_str()),
            resolved_at: letter.resolved.map(|(_, time)| at(time)),
        }
    }
}

impl Audited {
    fn of(decision: &Decision) -> Self {
        Self {
            at: at(decision.at),
            actor: decision.signature.actor.clone(),
            action: decision.action.as_str(),
            dead_letter: decision.dead_letter.to_string(),
            consumer: decision.consumer.clone(),
            accept_late: decision.accept_late,
            note: decision.signature.note.clone(),
            outcome: decision.outcome.clone(),
            done_at: decision.done_at.map(at),
        }
    }
}

/// A time to the second, in UTC.
fn at(time: OffsetDateTime) -> String {
    let seconds = time.replace_nanosecond(0).unwrap_or(time);
    seconds.format(&Rfc3339).unwrap_or_else(|_| seconds.to_string())
}
