//! `relay replay`: publishes messages again.

use std::num::NonZeroU32;

use clap::{ArgGroup, Args};
use message::{OrderingKey, Topic};
use operate::dead::MessageRef;
use operate::replay::{
    Edge, Moment, ReplayFilter, ReplayOptions, ReplayPlan, ReplayReport, deduplicated, plan,
};
use operate::{Places, seconds};
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::config::OnePipeline;
use super::confirm::confirm;
use super::exit::Exit;
use super::failure::Failure;
use super::output::{Format, counted, one_line, table};
use super::progress::{Counted, during};
use super::signature::Signature;

/// The messages to send again, and who decides.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("which").required(true).multiple(true)
    .args(["ids", "topic", "key", "from_id", "to_id", "since", "until", "all"]))]
pub struct Replay {
    #[command(flatten)]
    pipeline: OnePipeline,

    /// Position in the log, or message id. Can be repeated.
    #[arg(long = "id", value_name = "ID", conflicts_with_all = ["topic", "key", "from_id", "to_id", "since", "until", "all"])]
    ids: Vec<MessageRef>,

    /// Only messages of this topic.
    #[arg(long, value_name = "TOPIC")]
    topic: Option<Topic>,

    /// Only messages with this ordering key.
    #[arg(long, value_name = "KEY")]
    key: Option<OrderingKey>,

    /// Only from this position in the log on. Default: the oldest message in the outbox.
    #[arg(long, value_name = "ID")]
    from_id: Option<i64>,

    /// Only up to this position in the log. Default: the relay's cursor.
    #[arg(long, value_name = "ID")]
    to_id: Option<i64>,

    /// Only messages enqueued at this time or later. An age (2h, 7d) or a time
    /// (2026-01-31T12:00:00Z).
    #[arg(long, value_name = "WHEN")]
    since: Option<Moment>,

    /// Only messages enqueued at this time or earlier.
    #[arg(long, value_name = "WHEN")]
    until: Option<Moment>,

    /// All published messages that are still in the outbox.
    #[arg(long, conflicts_with_all = ["topic", "key", "from_id", "to_id", "since", "until"])]
    all: bool,

    /// Maximum messages per second. Default: as fast as the broker confirms.
    #[arg(long, value_name = "MESSAGES")]
    rate: Option<NonZeroU32>,

    /// Count the messages, but send nothing.
    #[arg(long)]
    dry_run: bool,

    /// Do not ask for confirmation if messages are selected by a filter or --all.
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    signature: Signature,
}

/// The result of the command.
#[derive(Debug, Serialize)]
struct Shown<'a> {
    dry_run: bool,
    #[serde(flatten)]
    plan: &'a ReplayPlan,
    /// The number of messages that the broker has confirmed.
    published: u64,
    /// The position in the log up to which every selected message is confirmed.
    confirmed_to: Option<i64>,
}

impl Replay {
    pub(crate) async fn execute(self, format: Format) -> Result<Exit, Failure> {
        let signed = self.signature.signed_unless(self.dry_run)?;
        let pipeline = self.pipeline.read()?;
        let places = Places::new().outbox(&pipeline);
        let filter = self.filter();
        let planned = during("choosing messages", plan(&places, &signed.operator, &filter)).await?;
        if self.dry_run || planned.chosen == 0 {
            return shown(&planned, None, self.dry_run, format);
        }
        if self.ids.is_empty() && !self.yes {
            let messages = counted(planned.chosen, "message");
            let question = format!("publish {messages} again ({})?", one_line(&planned.selection));
            if !confirm(&question)? {
                return Err(Failure::new(Exit::Usage, "not confirmed; nothing was sent"));
            }
        }
        for topic in deduplicated(&pipeline.broker, &planned.topics) {
            note!(
                "{topic} goes to a FIFO queue, which drops a message if it was published or replayed within the last 5 minutes: replay such messages again later"
            );
        }
        let options = ReplayOptions::default().rate(self.rate).stop(stop()?);
        let sent = Counted::up_to(planned.chosen, "published");
        let progress = |published| sent.set("published", published);
        let report = planned.carry_out(&places, &signed, &options, progress).await;
        drop(sent);
        let report = report?;
        shown(&planned, Some(&report), false, format)?;
        report.error.map_or(Ok(Exit::Success), |error| Err(error.into()))
    }

    fn filter(&self) -> ReplayFilter {
        ReplayFilter {
            ids: self.ids.clone(),
            topic: self.topic.clone(),
            key: self.key.clone(),
            from_id: self.from_id,
            to_id: self.to_id,
            since: self.since,
            until: self.until,
        }
    }
}

/// Returns a token that SIGINT or SIGTERM cancels.
pub(crate) fn stop() -> Result<CancellationToken, Failure> {
    let token = CancellationToken::new();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let stopped = token.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        stopped.cancel();
    });
    Ok(token)
}

fn shown(
    plan: &ReplayPlan,
    report: Option<&ReplayReport>,
    dry_run: bool,
    format: Format,
) -> Result<Exit, Failure> {
    let result = Shown {
        dry_run,
        plan,
        published: report.map_or(0, |report| report.published),
        confirmed_to: report.and_then(|report| report.confirmed_to),
    };
    format.print(&result, |result| text(result, report.is_some()))?;
    Ok(Exit::Success)
}

fn text(Shown { plan, published, .. }: &Shown<'_>, is_sent: bool) -> String {
    let mut lines = Vec::new();
    if plan.chosen == 0 {
        lines.push(format!("nothing to replay: {}", one_line(&plan.selection)));
    } else {
        let edge = |edge: &Option<Edge>| {
            edge.map_or_else(String::new, |Edge { id, enqueued_at }| {
                format!("{id}, enqueued {}", seconds::text(enqueued_at))
            })
        };
        let (first, last) = (edge(&plan.first), edge(&plan.last));
        let messages = counted(plan.chosen, "message");
        lines.push(format!("{}: {messages}, {} bytes", plan.pipeline, plan.bytes));
        lines.push(format!("first  {first}\nlast   {last}"));
        lines.push(table(
            ["topic", "messages"],
            plan.topics.iter().map(|(topic, count)| [topic.clone(), count.to_string()]),
        ));
    }
    if !plan.skipped.is_empty() {
        let told: Vec<String> =
            plan.skipped.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        lines.push(format!("not sent: {}", told.join(", ")));
    }
    if let Some(removed) = plan.removed_until {
        let from = plan.kept_from.map_or_else(
            || String::from("the log is empty"),
            |edge| format!("the log begins at {}", edge.id),
        );
        lines
            .push(format!("retention has deleted messages created until {}: {from}", seconds::text(removed)));
    }
    if is_sent {
        lines.push(format!("published {published} of {}, with their ids", plan.chosen));
    } else if plan.chosen > 0 {
        lines.push(String::from("dry run: nothing was sent"));
    }
    lines.join("\n")
}
