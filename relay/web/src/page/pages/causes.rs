//! The number of messages that match, and their causes, above a list.

use maud::{Markup, html};
use operate::dead::{CauseGroup, Surveyed, Total};

use super::super::address::with_query;
use super::super::fields::Fields;
use super::super::layout::{cell, count, folded, maybe, since, whole};
use super::super::list::{Column, Kind, column, list};
use super::super::text::plain;
use super::dead::kept;

/// Causes that are shown at once.
const SHOWN: usize = 5;
/// Maximum causes of a page.
const CAUSES_MAX: usize = 100;

/// Returns a number of messages: `2,009`, or `≥ 1,000,000` where not all were counted.
pub(super) fn total_text(total: Total) -> String {
    let least = if total.is_at_least { "≥ " } else { "" };
    format!("{least}{}", count(total.number))
}

const COLUMNS: [Column; 6] = [
    column("Cause", Kind::Why),
    column("Topic", Kind::Name),
    column("Messages", Kind::Number),
    column("First", Kind::Time),
    column("Last", Kind::Time),
    column("Show", Kind::Act),
];

/// Renders the number of messages, which is a lower bound while a database does not answer, and
/// their causes. A single cause is one line: `example`, the error of the first message that is
/// listed.
pub(super) fn causes(query: &Fields, state: &str, found: &Surveyed, example: Option<&str>) -> Markup {
    let Surveyed { total, causes, away } = found;
    let is_partial = !away.is_empty();
    let rows = |groups: &[CauseGroup]| {
        let rows: Vec<_> = groups.iter().map(|group| row(query, state, group)).collect();
        list("Causes", &COLUMNS, rows)
    };
    let first = causes.len().min(SHOWN);
    let others = &causes[first..causes.len().min(CAUSES_MAX)];
    html! {
        @if total.number > 0 {
            p class="lead" id="total" {
                @if is_partial && !total.is_at_least { "At least " }
                (total_text(*total)) " " (if total.number == 1 { "message" } else { "messages" })
                @if causes.len() > 1 { ", " (count(causes.len() as u64)) " causes" }
            }
        }
        @if let ([group], Some(example)) = (&causes[..], example.filter(|error| !error.is_empty())) {
            (only(group, example, is_partial))
        }
        @if causes.len() > 1 {
            (rows(&causes[..first]))
            @if !others.is_empty() {
                details id="other-causes" {
                    summary { (count(others.len() as u64)) " other causes" }
                    (rows(others))
                }
            }
        }
    }
}

/// Renders the cause of all messages that were found, whole: its end has the remedy.
fn only(group: &CauseGroup, example: &str, is_partial: bool) -> Markup {
    let apart = if group.cause == example { "" } else { ", apart from numbers" };
    html! {
        p {
            @if group.total.number == 1 && !group.total.is_at_least { "The error:" }
            @else if group.total.is_at_least { "At least " (count(group.total.number)) " have this error" (apart) ":" }
            @else if is_partial { "All that were found have this error" (apart) ":" }
            @else { "All have this error" (apart) ":" }
        }
        (folded("only-cause", "error", example))
    }
}

fn row(query: &Fields, state: &str, group: &CauseGroup) -> Vec<Markup> {
    let has_error = !group.cause.is_empty();
    let kept: Vec<_> =
        kept(query).into_iter().filter(|(name, _)| !matches!(*name, "topic" | "error_like")).collect();
    let mut pairs: Vec<(&str, &str)> = kept.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let state = if state == "dead" { "" } else { state };
    pairs.extend([("topic", group.topic.as_str()), ("error_like", group.cause.as_str()), ("state", state)]);
    vec![
        error(group),
        cell(&group.topic),
        html! { (total_text(group.total)) },
        since(group.first),
        since(group.last),
        // No filter leaves only messages without an error.
        html! { @if has_error { a href=(with_query("/dead", &pairs)) { "Show" } } },
    ]
}

/// Renders the error of a cause: one example with its numbers. The others differ only in these.
fn error(group: &CauseGroup) -> Markup {
    match (group.cause.as_str(), group.example.as_str()) {
        ("", _) => maybe(None),
        (cause, example) if cause == example => whole(cause),
        (_, example) => {
            html! { span class="text" { span class="faint" { "for example: " } (plain(example)) } }
        }
    }
}

#[cfg(test)]
mod tests {
    use operate::OperateError;
    use operate::dead::Total;
    use time::OffsetDateTime;

    use super::*;

    fn group(cause: &str, number: u64) -> CauseGroup {
        CauseGroup {
            cause: cause.to_owned(),
            example: cause.replace('#', "17"),
            topic: String::from("orders"),
            total: Total { number, is_at_least: false },
            first: OffsetDateTime::UNIX_EPOCH,
            last: OffsetDateTime::UNIX_EPOCH,
        }
    }

    #[test]
    fn each_cause_leads_to_its_messages() {
        let total = Total { number: 2_009, is_at_least: false };
        let causes = vec![group("larger than # takes", 2_000), group("no route", 9)];
        let found = Surveyed { total, causes, away: Vec::new() };
        let text = super::causes(&Fields::default(), "dead", &found, None).into_string();
        assert!(text.contains("2,009 messages, 2 causes"), "{text}");
        assert!(text.contains("href=\"/dead?topic=orders&amp;error_like=larger+than+%23+takes\""), "{text}");
        assert!(
            text.contains("for example: </span>larger than 17 takes<") && text.contains(">no route<"),
            "{text}"
        );
    }

    /// Goal: the remedy at the end of the only error is read. Oracle: the page has it whole, and
    /// says for how many messages it stands.
    #[test]
    fn the_only_cause_is_whole() {
        let long = format!("no queue {} takes it: {}declare one", 7, "x".repeat(350));
        let told = |is_at_least| {
            let total = Total { number: 2_009, is_at_least };
            let cause = CauseGroup { total, ..group("no queue # takes it", 2_009) };
            let found = Surveyed { total, causes: vec![cause], away: Vec::new() };
            causes(&Fields::default(), "dead", &found, Some(&long)).into_string()
        };
        let text = told(false);
        assert!(text.contains("All have this error, apart from numbers:"), "{text}");
        assert!(text.contains("declare one</pre>"), "{text}");
        assert!(told(true).contains("At least 2,009 have this error"), "{}", told(true));
    }

    /// Goal: a number is not taken for all messages while a database does not answer. Oracle: the
    /// sentences about a number and about a lower bound.
    #[test]
    fn a_number_is_a_lower_bound_while_a_database_does_not_answer() {
        let told = |is_at_least| {
            let total = Total { number: 8, is_at_least };
            let away = vec![OperateError::refused("orders: the database does not answer", "")];
            let found = Surveyed { total, causes: vec![group("no route", 8)], away };
            causes(&Fields::default(), "dead", &found, Some("no route")).into_string()
        };
        let text = told(false);
        assert!(text.contains(">At least 8 messages<"), "{text}");
        assert!(text.contains("All that were found have this error:"), "{text}");
        assert!(told(true).contains(">≥ 8 messages<"), "{}", told(true));
    }

    #[test]
    fn a_page_stays_short_however_many_causes_there_are() {
        let causes = (0..5_000).map(|n| group(&format!("cause {}", "x".repeat(n % 150)), 1)).collect();
        let total = Total { number: 1_000_000, is_at_least: true };
        let text =
            super::causes(&Fields::default(), "dead", &Surveyed { total, causes, away: Vec::new() }, None);
        let text = text.into_string();
        assert!(
            text.contains("≥ 1,000,000 messages, 5,000 causes") && text.len() < 100_000,
            "{}",
            text.len()
        );
    }
}
