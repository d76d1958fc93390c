//! The card of a pipeline or a consumer: what is wrong, why, since when, and what to do.

use maud::{Markup, html};
use operate::Operator;
use operate::cause::signature;
use operate::consumers::ConsumerLine;
use operate::pause::PauseLine;
use operate::status::{Count, PipelineStatus, Symptom, Wait, statement_that_ends};
use outbox_log::PauseScope;
use time::OffsetDateTime;

use super::super::address::{to, with_query};
use super::super::fields::moment;
use super::super::layout::{cell, clock, copyable, count, form_token, lasting, may_decide, prose, tone};
use super::super::links::Links;
use super::super::plot::{Curve, plot};
use super::super::samples::Hour;
use super::super::text::capital;
use super::super::trouble::{Of, Subject, Told, badge_text, told};

/// Maximum number of conditions on a card; a pipeline may have any number of pauses.
const WAITS_MAX: usize = 20;
/// Maximum number of conditions in the head of a card.
const BADGES_MAX: usize = 6;

/// Renders what is wrong with a pipeline or a consumer. `at` is the time of the query.
pub(crate) fn card(links: &Links, operator: &Operator, subject: &Subject<'_>, at: OffsetDateTime) -> Markup {
    let kind = if subject.is_grave() { "bad" } else { "warn" };
    // Held messages have no block of their own where that of another condition names them.
    let before_held = subject.held_behind();
    let is_shown = |wait: &&Wait| before_held.is_none() || wait.symptom != Symptom::Held;
    let shown: Vec<&Wait> = subject.waits.iter().filter(is_shown).collect();
    html! {
        section class={ "card sick " (kind) } {
            div class="card-head" {
                h2 { (title(subject)) }
                // A single condition is in the list below.
                @if subject.waits.len() > 1 {
                    @for wait in subject.waits.iter().take(BADGES_MAX) { (tone(kind_of(wait), &badge_text(wait))) }
                }
                @if let Some(since) = shown.first().and_then(|wait| since(wait, at)) {
                    span class="since" { (since) }
                }
            }
            ul class="waits" {
                @if let Some(own) = &subject.own { li class="bad" { p { (prose(own)) } } }
                @for (index, wait) in shown.iter().copied().take(WAITS_MAX).enumerate() {
                    li class=(kind_of_block(wait)) {
                        (reason(wait, index))
                        @if before_held == Some(wait.symptom) { (held(subject, wait)) }
                        @if let Some(waiting) = waiting(subject, wait) { p { (waiting) } }
                        div class="links" {
                            (actions(operator, subject, wait))
                            (links.what_to_do(wait.symptom))
                            @if let (0, Some(dashboard)) = (index, dashboard(links, subject)) { (dashboard) }
                        }
                    }
                }
            }
            @if shown.len() > WAITS_MAX {
                p class="faint" { "and " (count((shown.len() - WAITS_MAX) as u64)) " more" }
            }
        }
    }
}

/// Renders what a condition is, and why. The head of the card has the duration of the first one.
fn reason(wait: &Wait, index: usize) -> Markup {
    let Told { what, why } = told(wait);
    let (why, remedy) = apart(wait, why);
    let lasts = wait.lasts.filter(|_| index > 0).map(|lasts| lasting(lasts.as_secs_f64()));
    let of_messages = wait.count.is_some();
    html! {
        p {
            strong { (prose(&what)) }
            @if let Some(why) = why.as_deref().filter(|_| !of_messages) { ": " (prose(why)) }
            @if let Some(lasts) = lasts { span class="faint" { " · " (lasts) } }
        }
        @if let Some(why) = why.as_deref().filter(|_| of_messages) { p { (prose(why)) } }
        @if let Some(remedy) = remedy { p { (prose(&remedy)) } }
    }
}

/// Renders how many messages are held behind those of a condition.
fn held(subject: &Subject<'_>, wait: &Wait) -> Markup {
    let Of::Pipeline(status) = subject.of else { return html! {} };
    let Some(held) = subject.waits.iter().find(|wait| wait.symptom == Symptom::Held) else { return html! {} };
    let Some(text) = held.count.zip(wait.count).map(|(held, of)| held_behind(held, of)) else {
        return html! {};
    };
    html! { p { (text) " " (show("/held", &[("pipeline", status.pipeline.as_str())], held)) } }
}

/// Returns how many messages are held, and what may stop them: a burst that its topic does not take
/// at once holds messages as well.
fn held_behind(held: Count, of: Count) -> String {
    let least = if held.is_at_least { "At least " } else { "" };
    let these = match of.number {
        1 if !of.is_at_least => String::from("this one"),
        _ if of.is_at_least => String::from("these"),
        number => format!("these {}", count(number)),
    };
    match held.number {
        1 => format!("{least}1 waits behind {these}, or because its topic is busy."),
        number => format!("{least}{} wait behind {these}, or because their topic is busy.", count(number)),
    }
}

/// Separates the remedy from the error of a broker or a database, so that it is not the last clause
/// of a long sentence.
fn apart(wait: &Wait, why: Option<String>) -> (Option<String>, Option<String>) {
    let has_remedy = matches!(wait.symptom, Symptom::BrokerRefuses | Symptom::DatabaseAway);
    let Some(whole) = why.as_deref().filter(|_| has_remedy) else { return (why, None) };
    // Not within brackets: librdkafka has "(after 0ms in state CONNECT; 1 identical error(s) …)".
    let is_whole = |part: &str| part.matches('(').count() == part.matches(')').count();
    let mut parts = whole.rmatch_indices("; ").map(|(at, mark)| (&whole[..at], &whole[at + mark.len()..]));
    match parts.find(|(_, remedy)| is_whole(remedy)) {
        Some((error, remedy)) => (Some(format!("{error}.")), Some(format!("{}.", capital(remedy)))),
        None => (why, None),
    }
}

/// Returns how many messages wait because of a condition of the whole pipeline.
fn waiting(subject: &Subject<'_>, wait: &Wait) -> Option<String> {
    let Of::Pipeline(status) = subject.of else { return None };
    let is_of_all = match wait.symptom {
        Symptom::NeverLed | Symptom::NoLeader | Symptom::BrokerRefuses | Symptom::Behind => true,
        Symptom::Paused => {
            let pauses = status.paused.iter().filter(|pause| pause.paused == PauseScope::Pipeline);
            pauses.map(PauseLine::told).any(|told| told == wait.why)
        }
        _ => false,
    };
    let entries = status.waiting_max().filter(|_| is_of_all)?;
    let text = if entries == 1 { "message waits." } else { "messages wait." };
    Some(format!("At most {} {text}", count(entries)))
}

fn title(subject: &Subject<'_>) -> Markup {
    match subject.of {
        Of::Pipeline(status) => {
            html! { a href=(with_query("/pipeline", &[("name", &status.pipeline)])) { (cell(&status.pipeline)) } }
        }
        Of::Consumer(consumer) => html! {
            a href=(to("/consumers")) { (cell(consumer.name)) } " " span class="faint" { "consumer" }
        },
    }
}

/// Returns the colour of the block of a condition: red if an operator has to act, like the edge of
/// the card.
fn kind_of_block(wait: &Wait) -> &'static str {
    if wait.needs_operator() { "bad" } else { "warn" }
}

/// Returns the colour of the badge of a condition. Messages have the colour of their state, as in
/// lists.
fn kind_of(wait: &Wait) -> &'static str {
    match wait.symptom {
        Symptom::Held | Symptom::Retrying | Symptom::ConsumerHeld | Symptom::ConsumerFails => "warn",
        _ if wait.needs_operator() => "bad",
        _ => "warn",
    }
}

/// Returns when the condition began: `since 18:44 UTC (7h3m)`.
fn since(wait: &Wait, at: OffsetDateTime) -> Option<String> {
    let lasts = wait.lasts?;
    let began = at.checked_sub(time::Duration::try_from(lasts).ok()?)?;
    let day = if began.date() == at.date() { String::new() } else { format!("{} ", began.date()) };
    let minutes: String = clock(began).chars().take(5).collect();
    Some(format!("since {day}{minutes} UTC ({})", lasting(lasts.as_secs_f64())))
}

fn dashboard(links: &Links, subject: &Subject<'_>) -> Option<Markup> {
    match subject.of {
        Of::Pipeline(status) => links.dashboard(&status.pipeline),
        Of::Consumer(_) => None,
    }
}

/// Renders what an operator can do about a condition.
fn actions(operator: &Operator, subject: &Subject<'_>, wait: &Wait) -> Markup {
    match subject.of {
        Of::Pipeline(status) => of_pipeline(operator, status, wait),
        Of::Consumer(consumer) => {
            html! { @if let Some(line) = consumer.line { (of_consumer(operator, line, wait)) } }
        }
    }
}

fn of_consumer(operator: &Operator, line: &ConsumerLine, wait: &Wait) -> Markup {
    let all = [("consumer", line.consumer.as_str()), ("source", "inbox")];
    let has_held = line.activity.as_ref().is_some_and(|activity| activity.held > 0);
    match wait.symptom {
        // Without an error, the buttons would also be about the held ones.
        Symptom::ConsumerDead if wait.cause.is_none() && has_held => show("/dead", &all, wait),
        Symptom::ConsumerDead => of_dead(operator, &all, wait),
        Symptom::ConsumerHeld => {
            show("/dead", &[&all[..], &[("cause", inbox::Reason::Held.as_str())]].concat(), wait)
        }
        _ => html! {},
    }
}

fn of_pipeline(operator: &Operator, status: &PipelineStatus, wait: &Wait) -> Markup {
    let name = status.pipeline.as_str();
    match wait.symptom {
        Symptom::Dead => of_dead(operator, &[("pipeline", name)], wait),
        Symptom::Held => show("/held", &[("pipeline", name)], wait),
        Symptom::Retrying => links_to(&[("pipeline", name), ("state", "retrying")], &error_of(wait), wait),
        Symptom::Paused if may_decide(operator) => {
            let pause = status.paused.iter().find(|pause| pause.told() == wait.why);
            html! { @if let Some(pause) = pause { (resume(name, pause, "")) } }
        }
        Symptom::RowsHeldBack => match status.held_back_by.as_ref().and_then(statement_that_ends) {
            Some(statement) => {
                html! {
                    "as a last resort, which rolls its work back: "
                    code { (copyable("statement", &statement)) }
                }
            }
            None => html! {},
        },
        _ => html! {},
    }
}

/// Renders what an operator can do about the dead messages of a pipeline or a consumer. The buttons
/// apply to the messages of the cause that the card names: others may have become dead since, or
/// may not have been examined.
fn of_dead(operator: &Operator, of: &[(&str, &str)], wait: &Wait) -> Markup {
    let error = error_of(wait);
    let pairs = [of, &[("error_like", error.as_str())]].concat();
    html! {
        (links_to(of, &error, wait))
        @if may_decide(operator) { (decide(&pairs)) }
    }
}

/// Returns the error of the cause that the card names, without the numbers and ids of a message:
/// addresses appear in histories and in logs of proxies.
fn error_of(wait: &Wait) -> String {
    wait.cause.as_ref().map_or_else(String::new, |cause| signature(&cause.text))
}

/// Renders the links to the messages of a condition: to those of the cause that the card names, if
/// there may be others, and to all.
fn links_to(of: &[(&str, &str)], error: &str, wait: &Wait) -> Markup {
    let is_only = wait.cause.as_ref().is_none_or(|cause| cause.others == 0 && !cause.is_at_least);
    let pairs = [of, &[("error_like", error)]].concat();
    html! {
        @if !is_only { a href=(with_query("/dead", &pairs)) { "Show these" } }
        (show("/dead", of, wait))
    }
}

/// Renders the link to the messages of a condition: `Show 2,009`.
fn show(path: &str, pairs: &[(&str, &str)], wait: &Wait) -> Markup {
    let number = wait.count.map_or(0, |count| count.number);
    html! { a href=(with_query(path, pairs)) { "Show " (count(number)) } }
}

/// Renders the buttons that lead to a decision about all messages of a filter.
fn decide(filter: &[(&str, &str)]) -> Markup {
    html! {
        form method="post" action=(to("/dead/confirm")) class="actions" {
            (form_token())
            @for (name, value) in filter.iter().filter(|(_, value)| !value.is_empty()) {
                input type="hidden" name=(name) value=(value);
            }
            button name="what" value="requeue-all" { "Requeue…" }
            button name="what" value="discard-all" class="danger" { "Discard…" }
        }
    }
}

/// Renders the link to the form that ends a pause, which leads back to the page `from`.
pub(crate) fn resume(pipeline: &str, pause: &PauseLine, from: &str) -> Markup {
    let since = moment(pause.since);
    let pairs = [
        ("pipeline", pipeline),
        ("scope", pause.paused.kind()),
        ("name", pause.paused.name()),
        ("resume", "yes"),
        ("since", &since),
        ("from", from),
    ];
    html! { a class="button" href=(with_query("/pause", &pairs)) { "Resume…" } }
}

/// A lag below a minute does not look like a peak.
const LAG_FLOOR: f64 = 60.0;
/// A rate below one message per second does not look like a peak.
const RATE_FLOOR: f64 = 1.0;
/// Few dead messages do not look like many.
const DEAD_FLOOR: f64 = 10.0;

/// Renders the plots of a pipeline, with that of its log or without it.
pub(crate) fn plots(status: &PipelineStatus, hour: &Hour, with_log: bool) -> Markup {
    let is_known = status.state.is_known();
    let curve = |class, label, values, floor| Curve { class, label, values, floor };
    let dead = |value: f64| count(value as u64);
    html! {
        div class="plots" {
            (plot(&curve("lag", "Lag of unread messages", &hour.lag, LAG_FLOOR), is_known, lasting))
            @if hour.dead.iter().flatten().any(|dead| *dead > 0.0) {
                (plot(&curve("dead", "Dead messages", &hour.dead, DEAD_FLOOR), is_known, dead))
            }
            @if with_log { (written(status, hour)) }
            (plot(&curve("rate", "Read, also dead ones", &hour.throughput, RATE_FLOOR), is_known, rate))
        }
    }
}

/// Renders the plot of a log, which pipelines of one database share.
pub(crate) fn written(status: &PipelineStatus, hour: &Hour) -> Markup {
    let curve = Curve { class: "in", label: "Written to the log", values: &hour.enqueued, floor: RATE_FLOOR };
    plot(&curve, status.state.is_known(), rate)
}

/// Formats a rate.
pub(crate) fn rate(value: f64) -> String {
    match value {
        0.0 => String::from("0/s"),
        value if value < 0.05 => String::from("< 0.1/s"),
        value if value < 10.0 => format!("{value:.1}/s"),
        value => format!("{}/s", count(value.round() as u64)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::*;
    use operate::Role;
    use operate::cause::Cause;
    use operate::status::{BrokerError, PipelineState};
    use outbox_log::ExceptionState::{Dead, Held, Retrying};
    use outbox_log::admin::Blocker;

    fn dead(others: usize) -> PipelineStatus {
        let text = String::from("no route for <queue>");
        let example = text.clone();
        PipelineStatus {
            state: PipelineState::Leading,
            exceptions: BTreeMap::from([(Dead, 2_009)]),
            exceptions_age_seconds: BTreeMap::from([(Dead, 25_380.0)]),
            causes: BTreeMap::from([(
                Dead,
                Cause { text, example, is_cut: false, count: 1_000, behind: 0, is_at_least: false, others },
            )]),
            ..PipelineStatus::of("shipping", None, None)
        }
    }

    fn rendered(role: Role, status: &PipelineStatus) -> String {
        let at = OffsetDateTime::UNIX_EPOCH + Duration::from_secs(80_000);
        card(&Links::sample(), &Operator::new("ann", role), &Subject::pipeline(status, None), at)
            .into_string()
    }

    #[test]
    fn a_card_says_what_why_since_when_and_what_to_do() {
        let text = rendered(Role::Operator, &dead(0));
        for part in [
            "shipping",
            "since 15:10 UTC (7h3m)",
            "<strong><span class=\"text\">2,009 messages are dead</span></strong>",
            "<p><span class=\"text\">no route for &lt;queue&gt;</span></p>",
            "Show 2,009",
            "href=\"/dead?pipeline=shipping\"",
            "Requeue…",
            "#a-message-is-dead-and-its-key-waits",
            "class=\"card sick bad\"",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(text.matches("7h3m").count(), 1, "one fact once: {text}");
        assert!(!text.contains("class=\"badge"), "one fact once: {text}");
        let text = rendered(Role::Operator, &dead(2));
        assert!(
            text.contains("error_like=no+route+for+%3Cqueue%3E") && text.contains("Show these"),
            "{text}"
        );
        let button = "name=\"error_like\" value=\"no route for &lt;queue&gt;\"";
        assert!(text.contains(button), "{text}");
        let mut sampled = dead(0);
        sampled.causes.values_mut().for_each(|cause| cause.is_at_least = true);
        let text = rendered(Role::Operator, &sampled);
        assert!(text.contains("Show these") && text.contains(button), "{text}");
    }

    /// Goal: the link beside the error of retried messages leads to exactly these. Oracle: the
    /// links with and without other causes.
    #[test]
    fn a_card_leads_to_the_messages_of_the_error_that_it_names() {
        let mut status = dead(2);
        let cause = status.causes.remove(&Dead).unwrap();
        status.causes.insert(Retrying, cause);
        status.exceptions = BTreeMap::from([(Retrying, 5)]);
        let these = "href=\"/dead?pipeline=shipping&amp;state=retrying&amp;\
                     error_like=no+route+for+%3Cqueue%3E\">Show these<";
        let all = "href=\"/dead?pipeline=shipping&amp;state=retrying\">Show 5<";
        let text = rendered(Role::Operator, &status);
        assert!(text.contains(these) && text.contains(all), "{text}");
        assert!(!text.contains("<form"), "they are retried by themselves: {text}");
        status.causes.values_mut().for_each(|cause| cause.others = 0);
        let text = rendered(Role::Operator, &status);
        assert!(!text.contains("Show these") && text.contains(all), "{text}");
    }

    fn consumer(dead: u64, held: u64, error: &str) -> ConsumerLine {
        let (text, example) = (error.to_owned(), error.to_owned());
        let cause =
            Cause { text, example, is_cut: false, count: dead, behind: 0, is_at_least: false, others: 1 };
        ConsumerLine {
            consumer: String::from("billing"),
            location: String::new(),
            activity: Some(inbox::Activity { dead, held, ..inbox::Activity::default() }),
            remembers_from: OffsetDateTime::UNIX_EPOCH,
            has_started: true,
            cause: Some(cause).filter(|_| !error.is_empty()),
            untaken: None,
        }
    }

    fn of_billing(line: &ConsumerLine) -> String {
        let subject = Subject::consumer(line, &[], &std::collections::BTreeSet::new());
        let at = OffsetDateTime::UNIX_EPOCH;
        card(&Links::sample(), &Operator::new("ann", Role::Operator), &subject, at).into_string()
    }

    /// Goal: no button of a card is about the healthy messages that wait behind a dead letter.
    /// Oracle: the links and buttons of a consumer with held messages, with and without an error.
    #[test]
    fn a_consumers_buttons_leave_held_messages_alone() {
        let text = of_billing(&consumer(1, 2_000, "the amount is negative"));
        for part in [
            "1 message is dead",
            "2,000 messages are held",
            "name=\"error_like\" value=\"the amount is negative\"",
            "href=\"/dead?consumer=billing&amp;source=inbox&amp;cause=held\">Show 2,000",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(text.matches("<form").count(), 1, "only the dead one: {text}");
        let unknown = of_billing(&consumer(1, 2_000, ""));
        assert!(!unknown.contains("<form") && unknown.contains("Show 1<"), "{unknown}");
        assert!(of_billing(&consumer(3, 0, "")).contains("<form"), "nothing is held");
    }

    /// Goal: no address contains details of a single message. Oracle: links and fields of a card
    /// whose only error has an id and an address.
    #[test]
    fn an_address_has_no_numbers_of_a_message() {
        let error = "no answer from 10.1.2.3:5432 about order 01a21987-9bca-7af8-8184-ba681445d351";
        let text = of_billing(&consumer(1, 0, error));
        assert!(text.contains(error), "the card has the whole error: {text}");
        assert!(text.contains("error_like=no+answer+from+%23.%23.%23.%23%3A%23+about+order+%23"), "{text}");
        assert!(!text.contains("ba681445d351\"") && !text.contains("10.1.2.3%3A"), "{text}");
    }

    /// Goal: the remedy is seen without reading a long error, and so is what the condition costs.
    /// Oracle: the card of a broker that is away, and of a pipeline whose pause keeps messages.
    #[test]
    fn a_card_has_the_remedy_and_the_number_that_waits_apart() {
        let since = OffsetDateTime::now_utc();
        let error =
            String::from("no connection (1 error; 2 suppressed); start the broker, or correct the port");
        let away = PipelineStatus {
            state: PipelineState::Leading,
            broker_error: Some(BrokerError { error, passes: true, since }),
            oldest_pending_id: Some(7),
            backlog_entries_max: Some(1_650),
            ..PipelineStatus::of("orders", None, None)
        };
        let text = rendered(Role::Viewer, &away);
        for part in [
            "no connection (1 error; 2 suppressed).</span>",
            "<p><span class=\"text\">Start the broker, or correct the port.</span></p>",
            "<p>At most 1,650 messages wait.</p>",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let error = String::from("refused (after 0ms in state CONNECT; 1 identical error(s) suppressed)");
        let broker_error = Some(BrokerError { error: error.clone(), passes: true, since });
        let text = rendered(Role::Viewer, &PipelineStatus { broker_error, ..away.clone() });
        assert!(text.contains(&error) && !text.contains("1 identical error(s) suppressed)."), "{text}");
        let empty = PipelineStatus { oldest_pending_id: None, ..away.clone() };
        assert!(!rendered(Role::Viewer, &empty).contains("At most"));
        let pause = |paused| PauseLine {
            pipeline: String::from("orders"),
            paused,
            actor: String::from("ann"),
            reason: String::from("migration"),
            since,
            age: Duration::from_secs(90),
        };
        let paused = |scope| {
            let status = PipelineStatus { broker_error: None, paused: vec![pause(scope)], ..away.clone() };
            rendered(Role::Viewer, &status)
        };
        assert!(paused(PauseScope::Pipeline).contains("At most 1,650 messages wait."));
        assert!(!paused(PauseScope::Topic(String::from("refunds"))).contains("At most"), "not of all");
    }

    #[test]
    fn the_end_of_a_transaction_is_the_last_resort() {
        let blocker = Blocker::Session {
            pid: 28_999,
            transaction: String::from("100"),
            application_name: String::from("report"),
            state: None,
            age: None,
        };
        let status = PipelineStatus {
            state: PipelineState::Leading,
            ..PipelineStatus::of("orders", None, Some(blocker))
        };
        let text = rendered(Role::Viewer, &status);
        assert!(text.contains("as a last resort, which rolls its work back: <code>"), "{text}");
        assert!(text.contains("data-copy=\"SELECT pg_terminate_backend(28999)\""), "{text}");
    }

    /// Goal: a colour means one thing: a badge of messages that retry or are held is amber, as in
    /// lists, and a block is red exactly if an operator has to act, like the edge of the card.
    /// Oracle: the badges and the blocks of a card with several conditions.
    #[test]
    fn messages_have_the_colour_of_their_state() {
        let status = PipelineStatus {
            exceptions: BTreeMap::from([(Dead, 1), (Retrying, 2), (Held, 3)]),
            retries_wait_for_operator: true,
            ..dead(0)
        };
        let text = rendered(Role::Viewer, &status);
        for badge in ["bad\">dead 1", "warn\">held 3", "warn\">retrying 2"] {
            assert!(text.contains(&format!("<span class=\"badge {badge}</span>")), "{badge}: {text}");
        }
        assert!(text.contains("class=\"card sick bad\""), "{text}");
        let blocks = ["<li class=\"bad\">", "<li class=\"warn\">"].map(|block| text.matches(block).count());
        assert_eq!(blocks, [2, 1], "the held ones need no operator: {text}");
        let passing = PipelineStatus { retries_wait_for_operator: false, ..status };
        let text = rendered(Role::Viewer, &passing);
        assert_eq!(text.matches("<li class=\"bad\">").count(), 1, "{text}");
    }

    /// Goal: a card does not say twice that messages are stopped. Oracle: the blocks of a card with
    /// held messages behind retrying ones, and the words for each number.
    #[test]
    fn held_messages_are_told_with_those_that_stop_them() {
        let status = PipelineStatus {
            state: PipelineState::Leading,
            exceptions: BTreeMap::from([(Held, 44), (Retrying, 5)]),
            exceptions_age_seconds: BTreeMap::from([(Held, 60.0), (Retrying, 120.0)]),
            ..PipelineStatus::of("hooks", None, None)
        };
        let text = rendered(Role::Viewer, &status);
        assert_eq!(text.matches("<li").count(), 1, "{text}");
        assert!(text.contains("44 wait behind these 5, or because their topic is busy. <a"), "{text}");
        assert!(text.contains("href=\"/held?pipeline=hooks\">Show 44<"), "{text}");
        assert!(text.contains("(2m)") && text.contains("warn\">held 44</span>"), "{text}");
        let of = |number, is_at_least| Count { number, is_at_least };
        for (held, before, told) in [
            (of(1, false), of(1, false), "1 waits behind this one, or because its topic is busy."),
            (of(2, true), of(1, true), "At least 2 wait behind these, or because their topic is busy."),
        ] {
            assert_eq!(held_behind(held, before), told);
        }
    }

    #[test]
    fn a_small_rate_is_not_none() {
        let shown = [0.0, 0.01, 0.3, 9.96, 1_666.6].map(rate);
        assert_eq!(shown, ["0/s", "< 0.1/s", "0.3/s", "10.0/s", "1,667/s"]);
    }

    #[test]
    fn a_viewer_has_no_buttons() {
        let text = rendered(Role::Viewer, &dead(0));
        assert!(
            text.contains("Show 2,009") && !text.contains("<form") && !text.contains("Requeue"),
            "{text}"
        );
    }
}
