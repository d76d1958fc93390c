//! `relay show`: the whole story of a message.

use clap::Args;
use operate::dead::MessageRef;
use operate::failures::FailedAttempts;
use operate::seconds;
use operate::story::{InboxPart, OutboxPart, Story, story};

use super::exit::Exit;
use super::failure::{Failure, first};
use super::operator::viewer;
use super::output::{Format, Table, age, card, or_dash};
use super::places::Where;
use super::progress::during;

/// The arguments of `relay show`.
#[derive(Debug, Args)]
pub struct Show {
    #[command(flatten)]
    place: Where,

    /// Message id, position in the log, or id of the dead letter.
    #[arg(value_name = "ID")]
    id: MessageRef,
}

impl Show {
    pub(crate) async fn execute(self, format: Format) -> Result<Exit, Failure> {
        let places = during("connecting", self.place.open()).await?;
        let told = during("searching", story(&places, &viewer(), &self.id)).await;
        let away = places.away().to_vec();
        places.close().await;
        let told = told?;
        format.print(&told, text)?;
        // An unreachable database does not hide the findings of the others.
        let failure = away.into_iter().map(Failure::from).fold(None, first);
        failure.map_or(Ok(Exit::Success), Err)
    }
}

/// Width of the longest name of a value.
const NAMES: usize = "content type".len();

fn text(story: &Story) -> String {
    let mut parts = vec![card(NAMES, [("message id", Some(or_dash(story.message_id.as_ref())))])];
    for part in &story.outboxes {
        parts.push(in_outbox(part));
        // One error is in the card already.
        if part.failures.len() > 1 {
            parts.push(failed(&part.failures));
        }
    }
    if story.outboxes.is_empty() {
        parts.push(story.no_outbox_text().to_owned());
    }
    if story.inboxes.is_empty() {
        parts.push(story.no_inbox_text().to_owned());
    } else {
        parts.push(at_consumers(&story.inboxes));
    }
    if !story.decisions.is_empty() {
        let rows = story.decisions.iter().map(|line| {
            [
                seconds::text(line.at),
                line.actor.clone(),
                line.action.clone(),
                line.owner.clone(),
                or_dash(line.outcome.as_ref()),
                line.note.clone(),
            ]
        });
        let decisions = Table::new(["at", "actor", "action", "of", "outcome", "note"], rows);
        parts.push(decisions.optional(&["of", "outcome"]).cut("note").shown());
    }
    parts.join("\n\n")
}

/// Note on content that was published before an edit.
const BEFORE_EDIT: &str = "before an operator edited it";

fn in_outbox(part: &OutboxPart) -> String {
    let time = |at: &Option<time::OffsetDateTime>| at.map(seconds::text);
    let state = match &part.published_by {
        Some(by) => format!("{} before {}", part.state, seconds::text(*by)),
        None => part.state.to_string(),
    };
    let payload = match part.payload_bytes {
        Some(bytes) if part.is_before_edit() => format!("{bytes} bytes, {BEFORE_EDIT}"),
        Some(bytes) => format!("{bytes} bytes{}", if part.edited { ", edited" } else { "" }),
        None => String::from("gone"),
    };
    let headers = (!part.header_names.is_empty()).then(|| {
        if part.is_before_edit() {
            format!("{}; {BEFORE_EDIT}", part.header_names.join(", "))
        } else {
            part.header_names.join(", ")
        }
    });
    let enqueued = match (time(&part.enqueued_at), &part.transaction) {
        (Some(at), Some(transaction)) => Some(format!("{at} by transaction {transaction}")),
        (at, _) => at,
    };
    let lines = [
        ("outbox of", Some(part.pipeline.clone())),
        ("id", Some(part.id.to_string())),
        ("state", Some(state)),
        ("because", part.because.clone()),
        ("destination", Some(part.destination.clone())),
        ("topic", Some(part.topic.clone())),
        ("key", Some(or_dash(part.key.as_ref()))),
        ("kind", Some(part.kind.clone())),
        ("enqueued", enqueued),
        ("deliver at", time(&part.deliver_at)),
        ("parked since", time(&part.parked_since)),
        ("attempts", part.attempts.map(|attempts| attempts.to_string())),
        ("error", part.error.clone()),
        ("content type", part.content_type.clone()),
        ("headers", headers),
        ("traceparent", part.traceparent.clone()),
        ("payload", Some(payload)),
        ("replay", (!part.in_log).then(|| String::from("not possible: its row is no longer in the log"))),
    ];
    card(NAMES, lines)
}

fn failed(failures: &[FailedAttempts]) -> String {
    let rows = failures
        .iter()
        .map(|failure| [failure.numbers(), or_dash(failure.at.map(seconds::text)), failure.error.clone()]);
    Table::new(["attempts", "failed at", "error"], rows).cut("error").shown()
}

fn at_consumers(parts: &[InboxPart]) -> String {
    let rows = parts.iter().map(|part| {
        [
            part.consumer.clone(),
            or_dash(part.scope.as_ref()),
            part.state.to_string(),
            or_dash(part.at.map(seconds::text)),
            or_dash(part.result_bytes.map(|bytes| format!("{bytes} bytes"))),
            or_dash(part.attempts),
            or_dash(part.next_at.map(until)),
            or_dash(part.dead_letter.as_ref()),
            or_dash(part.error.as_ref()),
        ]
    });
    Table::new(
        ["consumer", "scope", "state", "at", "result", "attempts", "next in", "dead letter", "error"],
        rows,
    )
    .optional(&["result", "scope", "attempts", "next in", "at"])
    .cut("error")
    .shown()
}

/// Returns the time until then.
fn until(at: time::OffsetDateTime) -> String {
    age((at - time::OffsetDateTime::now_utc()).try_into().unwrap_or_default())
}
