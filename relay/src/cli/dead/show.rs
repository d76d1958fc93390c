//! Parked messages and decisions, listed.

use outbox::admin::{AuditRecord, ListedEntry};
use serde::Serialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::super::database;
use super::super::exit::Exit;
use super::super::failure::Failure;
use super::super::output::{Format, age, or_dash, table};
use super::State;
use super::select::Selection;
use crate::config::PipelineConfig;

/// A parked message.
#[derive(Debug, Serialize)]
struct Entry {
    id: i64,
    state: &'static str,
    message_id: String,
    topic: String,
    key: Option<String>,
    attempts: u32,
    due_in_seconds: Option<f64>,
    fault: Option<String>,
    error: Option<String>,
    parked_at: String,
    changed_at: String,
    payload_bytes: u64,
    edited: bool,
}

impl Entry {
    fn new(state: State, entry: ListedEntry) -> Self {
        Self {
            id: entry.id.0,
            state: state.of_log().as_str(),
            message_id: entry.message_id,
            topic: entry.topic,
            key: entry.key,
            attempts: entry.attempts,
            due_in_seconds: entry.due_in.map(|due_in| due_in.as_secs_f64()),
            fault: entry.fault,
            error: entry.error,
            parked_at: at(entry.created_at),
            changed_at: at(entry.updated_at),
            payload_bytes: entry.payload_bytes,
            edited: entry.edited,
        }
    }
}

/// Lists what is parked in one state.
pub(super) async fn list(
    pipeline: &PipelineConfig,
    state: State,
    selection: &Selection,
    limit: usize,
    format: Format,
) -> Result<Exit, Failure> {
    let log = database::administration(pipeline)?;
    let found = selection.read(log.as_ref(), &pipeline.name, state.of_log(), limit.saturating_add(1)).await?;
    let more = found.len() > limit;
    let entries: Vec<Entry> = found.into_iter().take(limit).map(|entry| Entry::new(state, entry)).collect();
    format.print(&entries, |entries| rows(entries))?;
    if more {
        eprintln!("there are more than {limit}; show more with --limit");
    }
    Ok(Exit::Success)
}

/// Shows single messages, in whatever state they are.
pub(super) async fn each(
    pipeline: &PipelineConfig,
    selection: &Selection,
    format: Format,
) -> Result<Exit, Failure> {
    let log = database::administration(pipeline)?;
    let mut found = Vec::new();
    for state in State::ALL {
        let listed = selection.read(log.as_ref(), &pipeline.name, state.of_log(), usize::MAX).await?;
        found.extend(listed.into_iter().map(|entry| (state, entry)));
    }
    selection.check_found(found.iter().map(|(_, entry)| entry), "parked")?;
    let entries: Vec<Entry> = found.into_iter().map(|(state, entry)| Entry::new(state, entry)).collect();
    format.print(&entries, |entries| entries.iter().map(card).collect::<Vec<_>>().join("\n\n"))?;
    Ok(Exit::Success)
}

/// Lists decisions.
pub(super) async fn audit(pipeline: &PipelineConfig, limit: u32, format: Format) -> Result<Exit, Failure> {
    let log = database::administration(pipeline)?;
    let records: Vec<Record> =
        log.audit(&pipeline.name, limit).await?.into_iter().map(Record::from).collect();
    format.print(&records, |records| {
        let rows = records.iter().map(|record| {
            let Record { at, actor, id, message_id, action, note, .. } = record;
            [at.clone(), actor.clone(), action.clone(), id.to_string(), message_id.clone(), note.clone()]
        });
        table(["at", "actor", "action", "id", "message id", "note"], rows)
    })?;
    Ok(Exit::Success)
}

/// A decision.
#[derive(Debug, Serialize)]
struct Record {
    at: String,
    actor: String,
    action: String,
    id: i64,
    message_id: String,
    note: String,
    digest_before: Option<String>,
    digest_after: Option<String>,
}

impl From<AuditRecord> for Record {
    fn from(record: AuditRecord) -> Self {
        Self {
            at: at(record.at),
            actor: record.actor,
            action: record.action,
            id: record.id.0,
            message_id: record.message_id,
            note: record.note,
            digest_before: record.digest_before,
            digest_after: record.digest_after,
        }
    }
}

fn rows(entries: &[Entry]) -> String {
    let rows = entries.iter().map(|entry| {
        [
            entry.id.to_string(),
            entry.message_id.clone(),
            entry.topic.clone(),
            or_dash(entry.key.as_ref()),
            entry.attempts.to_string(),
            entry.parked_at.clone(),
            or_dash(entry.error.as_ref()),
        ]
    });
    table(["id", "message id", "topic", "key", "attempts", "parked at", "error"], rows)
}

/// One message, a line for each thing known of it.
fn card(entry: &Entry) -> String {
    let due_in = entry.due_in_seconds.map(|seconds| age(std::time::Duration::from_secs_f64(seconds)));
    let payload = format!("{} bytes{}", entry.payload_bytes, if entry.edited { ", edited" } else { "" });
    let lines = [
        ("id", entry.id.to_string()),
        ("message id", entry.message_id.clone()),
        ("state", entry.state.to_owned()),
        ("topic", entry.topic.clone()),
        ("key", or_dash(entry.key.as_ref())),
        ("attempts", entry.attempts.to_string()),
        ("due in", or_dash(due_in)),
        ("fault", or_dash(entry.fault.as_ref())),
        ("error", or_dash(entry.error.as_ref())),
        ("parked at", entry.parked_at.clone()),
        ("changed at", entry.changed_at.clone()),
        ("payload", payload),
    ];
    lines.map(|(name, value)| format!("{name:<12}{value}")).join("\n")
}

/// A time to the second, in UTC.
fn at(time: OffsetDateTime) -> String {
    let seconds = time.replace_nanosecond(0).unwrap_or(time);
    seconds.format(&Rfc3339).unwrap_or_else(|_| seconds.to_string())
}
