//! Decisions about more messages than fit a table: in parts, with progress, and with a summary.

use std::collections::BTreeSet;
use std::time::Duration;

use operate::dead::{Bulk, BulkReport, Change, Decision, Selected};
use operate::{Places, Signed};
use uuid::Uuid;

use super::super::exit::Exit;
use super::super::failure::Failure;
use super::super::output::{Format, counted, one_line};
use super::super::progress::Counted;
use super::super::replay::stop;
use super::decision;

/// Refusals that are printed in a summary.
const SHOWN_MAX: usize = 10;

/// Carries out a decision. The first Ctrl-C stops it after the transaction that is running.
pub(super) async fn carry_out(
    places: &Places,
    signed: &Signed,
    change: &Change,
    selected: Selected,
) -> Result<BulkReport, Failure> {
    let stop = stop()?;
    let decided = Counted::up_to(selected.count(), "decided");
    let bulk = Bulk { places, signed, change, id: Uuid::now_v7(), stop: &stop };
    let progress = |progress: operate::dead::Progress| decided.set("decided", progress.processed);
    Ok(Box::pin(selected.carry_out(&bulk, progress)).await?)
}

/// Time for a running relay to try the last messages of a requeue. Those before them have had more.
const TRIED_WITHIN: Duration = Duration::from_secs(1);

/// Returns where the messages of a requeue are, as far as that is known; `None` for other
/// decisions.
pub(super) async fn result(places: &Places, signed: &Signed, report: &BulkReport) -> Option<Decision> {
    let id = report.decision.filter(|_| is_requeue(report) && report.error.is_none())?;
    if !report.stopped {
        tokio::time::sleep(TRIED_WITHIN).await;
    }
    decision::result(places, &signed.operator, id).await
}

fn is_requeue(report: &BulkReport) -> bool {
    report.action == "requeue" && report.done > 0
}

/// Prints the outcome, and where the messages are now. What stopped the decision, or was refused,
/// ends the command.
pub(super) fn told(report: BulkReport, now: Option<&Decision>, format: Format) -> Result<Exit, Failure> {
    format.print(&report, text)?;
    let requeue = report.decision.filter(|_| is_requeue(&report));
    if let Some(id) = requeue {
        decision::tell(id, now);
    }
    let left = report.left();
    if report.stopped {
        let text = format!("stopped: {} were not reached", counted(left, "message"));
        let rest = requeue.map_or_else(
            || String::from("run the same command again for the rest"),
            |id| decision::rest_of_requeue(id, report.done),
        );
        return Err(Failure::with_help(Exit::Unavailable, text, rest));
    }
    if let Some(error) = report.error {
        let error = match (left, report.unknown) {
            (0, 0) => error,
            _ => error.with_help("list the messages again, and run the same command for the rest"),
        };
        return Err(error.into());
    }
    if report.refused > 0 {
        let mut text = format!("{} had changed", counted(report.refused, "message"));
        if !report.decided_by.is_empty() {
            text = format!("{text}: {} decided first", others(&report.decided_by));
        }
        return Err(Failure::new(Exit::Usage, text));
    }
    Ok(Exit::Success)
}

fn others(names: &BTreeSet<String>) -> String {
    names.iter().map(|name| one_line(name)).collect::<Vec<_>>().join(" and ")
}

fn text(report: &BulkReport) -> String {
    let chosen = counted(report.chosen, "message");
    let selection = one_line(&report.selection);
    let mut lines = match report.decision {
        None => vec![format!("would {} {chosen} ({selection})", report.action)],
        Some(id) => {
            let verb = if report.action == "discard" { "discarded" } else { "requeued" };
            vec![format!("{verb} {} of {chosen} ({selection})", report.done), format!("decision {id}")]
        }
    };
    let not_reached = if report.dry_run { 0 } else { report.left() };
    for (number, what) in [
        (report.following, "held: they follow automatically once the messages before them have taken effect"),
        (report.requested_before, "requested before"),
        (report.refused, "left unchanged: they had changed since"),
        (report.unknown, "with an unknown outcome: list the messages again"),
        (not_reached, "not reached"),
    ] {
        if number > 0 {
            lines.push(format!("{number} {what}"));
        }
    }
    if !report.decided_by.is_empty() {
        lines.push(format!("{} decided about these messages first", others(&report.decided_by)));
    }
    for refusal in report.refusals.iter().take(SHOWN_MAX) {
        lines.push(format!("  {} of {}: {}", refusal.id, one_line(&refusal.owner), one_line(&refusal.why)));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use operate::dead::Refusal;
    use operate::dead::sample::report;

    use super::*;

    #[test]
    fn a_summary_says_what_was_not_done() {
        let refusal = Refusal {
            source: operate::dead::DeadSource::Outbox,
            owner: String::from("orders"),
            id: String::from("41"),
            why: String::from("it is changing"),
        };
        let report = BulkReport {
            done: 1_000,
            refused: 1,
            following: 12,
            decided_by: BTreeSet::from([String::from("bob")]),
            refusals: vec![refusal],
            stopped: true,
            ..report(2_009)
        };
        let text = text(&report);
        for line in [
            "requeued 1000 of 2009 messages (topic=orders: 2009 chosen)",
            "1 left unchanged: they had changed since",
            "1008 not reached",
            "bob decided about these messages first",
            "12 held: they follow automatically once the messages before them have taken effect",
            "  41 of orders: it is changing",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}: {text}");
        }
        let dry = BulkReport { decision: None, dry_run: true, done: 0, refused: 0, ..report };
        let text = super::text(&BulkReport { refusals: Vec::new(), ..dry });
        assert!(
            text.starts_with("would requeue 2009 messages (topic=orders: 2009 chosen)\n12 held"),
            "{text}"
        );
        assert!(!text.contains("not reached") && !text.contains("decision"), "{text}");
    }

    /// Goal: nobody repeats a stopped requeue and unknowingly requeues what died again. Oracle: the
    /// advice.
    #[test]
    fn a_stopped_requeue_says_what_the_same_command_takes() {
        let report = BulkReport { done: 89_496, stopped: true, ..report(102_009) };
        let shown = told(report.clone(), None, Format::Table).unwrap_err().shown();
        assert!(shown.contains("stopped: 12513 messages were not reached"), "{shown}");
        assert!(shown.contains("those of the 89496 requeued messages that are dead again"), "{shown}");
        assert!(shown.contains(&format!("`relay dead decision {}`", Uuid::nil())), "{shown}");
        let discard = BulkReport { action: "discard", ..report };
        let shown = told(discard, None, Format::Table).unwrap_err().shown();
        assert!(shown.contains("run the same command again for the rest"), "{shown}");
    }
}
