//! Requeueing and discarding: the affected messages first, then the decision.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Form;
use axum::extract::State;
use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use maud::{Markup, html};
use message::shield;
use operate::dead::{Change, DeadMessage, DeadSource, Decided, Filter, Plan, Report, plan_at_most};
use operate::{OperateError, Operator, Places, Role, Signed};
use sha2::{Digest as _, Sha256};

use super::super::answer::{Html, Problem};
use super::super::app::App;
use super::super::fields::{Fields, moment};
use super::super::gate::Asker;
use super::super::layout::{Frame, Tab, cell, count, maybe, signature, tone};
use super::super::list::{Column, Kind, column, list};
use super::dead::{filter, kept, places, row_name};

/// Maximum number of messages of one decision.
const DECIDED_MAX: usize = 500;
/// Maximum number of messages shown before a decision.
const SHOWN_MAX: usize = 25;

/// The choice in a form.
struct Choice {
    change: Change,
    /// Places, each with the filter for its messages.
    parts: Vec<(Places, Filter)>,
    is_all: bool,
}

/// `POST /dead/confirm`.
pub(crate) async fn confirm(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    Form(form): Form<Fields>,
) -> Result<Html, Problem> {
    permit(&operator)?;
    let _turn = app.turn().await?;
    let Choice { change, parts, is_all } = choice(&app, &form).await?;
    let mut plans = Vec::new();
    for (places, filter) in parts {
        let found = plan_at_most(&places, &operator, &filter, &change, DECIDED_MAX).await;
        places.close().await;
        plans.push(found?);
    }
    let verb = change.as_str();
    let messages: Vec<&DeadMessage> = plans.iter().flat_map(|plan| &plan.messages).collect();
    let noun = if messages.len() == 1 { "message" } else { "messages" };
    let title = format!("{} {} {noun}?", capital(verb), count(messages.len() as u64));
    let body = html! {
        @if messages.is_empty() {
            p class="empty" { "No dead message matches anymore." }
            p { a class="button" href="/dead" { "Back to the list" } }
        } @else {
            form method="post" action="/dead/decide" class="card" {
                input type="hidden" name="what" value=(form.text("what"));
                input type="hidden" name="expected" value=(fingerprint(messages.iter().copied()));
                @for (name, value) in kept(&form) { input type="hidden" name=(name) value=(value); }
                @if !is_all { @for message in &messages { input type="hidden" name="row" value=(row_name(message)); } }
                p { (meaning(&change)) }
                @if plans.iter().any(|plan| plan.more) {
                    p class="notice" { "More messages match: these are the first " (count(DECIDED_MAX as u64)) ". The others are not changed: decide about them afterwards." }
                }
                @if matches!(change, Change::Requeue { .. }) && messages.iter().any(|it| it.source == DeadSource::Inbox) {
                    label class="check" { input type="checkbox" name="accept_late" value="yes"; " Also apply messages older than the inbox's retention" }
                }
                (signature(&capital(verb), change == Change::Discard))
                a class="button" href="/dead" { "Back" }
            }
            (subjects(&messages))
        }
    };
    Ok(Html(Frame::new(Tab::Dead, &title).page(&body)))
}

/// `POST /dead/decide`.
pub(crate) async fn carry_out(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    Form(form): Form<Fields>,
) -> Result<Html, Problem> {
    permit(&operator)?;
    let reason = form.text("reason").to_owned();
    let expected: String = form.need("expected")?;
    let signed = Signed { operator: operator.clone(), reason };
    let is_requeued = form.text("what").starts_with("requeue");
    // Work that has begun is completed even if the browser disconnects.
    let reports = shield(async move {
        let _turn = app.turn().await?;
        let Choice { change, parts, .. } = choice(&app, &form).await?;
        let mut plans: Vec<(Places, Plan)> = Vec::new();
        for (places, filter) in parts {
            let plan = plan_at_most(&places, &signed.operator, &filter, &change, DECIDED_MAX).await?;
            plans.push((places, plan));
        }
        if fingerprint(plans.iter().flat_map(|(_, plan)| &plan.messages)) != expected {
            let found: usize = plans.iter().map(|(_, plan)| plan.messages.len()).sum();
            for (places, _) in plans {
                places.close().await;
            }
            let text = format!("{found} messages match now, but they are not the ones that the form showed");
            return Err(Problem::conflict(text).with_help("nothing was changed: check the list again"));
        }
        let mut reports = Vec::new();
        for (places, plan) in plans {
            let report = plan.carry_out(&places, &signed, &change, |_| ()).await;
            places.close().await;
            reports.push(report?);
        }
        Ok::<Vec<Report>, Problem>(reports)
    })
    .await?;
    Ok(Html(Frame::new(Tab::Dead, "Decided").page(&outcome(&reports, is_requeued))))
}

/// Returns early the error that `operate` would return later for each message.
fn permit(operator: &Operator) -> Result<(), OperateError> {
    operator.permit(Role::Operator, "decide about dead messages")
}

async fn choice(app: &App, form: &Fields) -> Result<Choice, Problem> {
    form.check()?;
    let (verb, is_all) = match form.text("what") {
        what @ ("requeue" | "discard") => (what, false),
        what => (what.strip_suffix("-all").unwrap_or_default(), true),
    };
    let change = match verb {
        "requeue" => Change::Requeue { accept_late: form.text("accept_late") == "yes" },
        "discard" => Change::Discard,
        _ => return Err(Problem::bad("unknown action: use requeue or discard")),
    };
    if is_all {
        let filter = filter(form)?;
        let places = places(app, form, &filter).await?;
        return Ok(Choice { change, parts: vec![(places, filter)], is_all });
    }
    Ok(Choice { change, parts: chosen(app, form).await?, is_all })
}

/// Returns the chosen rows by their owners: an id is valid only within one owner.
async fn chosen(app: &App, form: &Fields) -> Result<Vec<(Places, Filter)>, Problem> {
    let mut by_owner: BTreeMap<(DeadSource, String), Filter> = BTreeMap::new();
    let mut rows = 0;
    for row in form.all("row") {
        rows += 1;
        let mut parts = row.splitn(3, '/');
        let (source, id, owner) = (parts.next(), parts.next(), parts.next());
        let broken = || Problem::bad("a row of the form does not name a message: check the list again");
        let source = source.and_then(|it| it.parse::<DeadSource>().ok()).ok_or_else(broken)?;
        let id = id.and_then(|it| it.parse().ok()).ok_or_else(broken)?;
        let filter = by_owner.entry((source, owner.unwrap_or_default().to_owned())).or_default();
        filter.source = Some(source);
        filter.ids.push(id);
    }
    if rows == 0 {
        let problem = Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "no message is selected");
        return Err(problem.with_help("select messages in the list first"));
    }
    if rows > DECIDED_MAX {
        return Err(Problem::bad(format!("{rows} messages are selected; the maximum is {DECIDED_MAX}")));
    }
    let mut parts = Vec::new();
    for ((source, owner), filter) in by_owner {
        let places = match source {
            DeadSource::Outbox => app.outboxes(app.pipeline(&owner)?.name.as_str())?,
            DeadSource::Inbox if app.inboxes.iter().any(|inbox| inbox.consumer.as_str() == owner) => {
                app.with_inboxes(Places::new(), &owner).await
            }
            DeadSource::Inbox => {
                let text = format!("no inbox of {owner:?} is configured");
                return Err(Problem::new(StatusCode::NOT_FOUND, text));
            }
        };
        parts.push((places, filter));
    }
    Ok(parts)
}

fn meaning(change: &Change) -> &'static str {
    match change {
        Change::Discard => {
            "They are discarded: they are not sent again, or never take effect. This cannot be undone."
        }
        _ => "They are retried: the relay publishes them, or their consumer runs its handler again.",
    }
}

/// Returns a digest of these messages in their order. It differs when one message replaces another.
fn fingerprint<'a>(messages: impl IntoIterator<Item = &'a DeadMessage>) -> String {
    let mut digest = Sha256::new();
    for message in messages {
        let message_id = message.message_id.as_deref().unwrap_or_default();
        // A message that was requeued or edited and died again is a different one.
        let changed_at = moment(message.changed_at);
        for part in [message.source.as_str(), message.owner(), &message.id, message_id, &changed_at] {
            // The length makes the encoding unambiguous.
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part.as_bytes());
        }
    }
    URL_SAFE_NO_PAD.encode(digest.finalize())
}

fn subjects(messages: &[&DeadMessage]) -> Markup {
    html! {
        (list("Messages", &SUBJECTS, messages.iter().take(SHOWN_MAX).map(|message| subject(message))))
        @if messages.len() > SHOWN_MAX {
            p class="faint" { "and " (count((messages.len() - SHOWN_MAX) as u64)) " more" }
        }
    }
}

const SUBJECTS: [Column; 5] = [
    column("Topic", Kind::Name),
    column("Key", Kind::Key),
    column("Error", Kind::Why),
    column("Of", Kind::Text),
    column("Message", Kind::Text),
];

fn subject(message: &DeadMessage) -> Vec<Markup> {
    let (key, error) = (message.key.as_deref(), message.error.as_deref());
    vec![cell(&message.topic), maybe(key), maybe(error), cell(message.owner()), cell(&message.id)]
}

const OUTCOMES: [Column; 6] = [
    column("Topic", Kind::Name),
    column("Key", Kind::Key),
    column("Result", Kind::State),
    column("Outcome", Kind::Why),
    column("Of", Kind::Text),
    column("Message", Kind::Text),
];

fn decided(message: &Decided) -> Vec<Markup> {
    let result = match (message.done, message.is_unknown) {
        (true, _) => tone("good", "done"),
        (_, true) => tone("bad", "unknown"),
        _ => tone("bad", "not done"),
    };
    vec![
        cell(&message.topic),
        maybe(message.key.as_deref()),
        result,
        cell(&message.outcome),
        cell(&message.owner),
        cell(&message.id),
    ]
}

fn outcome(reports: &[Report], is_requeued: bool) -> Markup {
    let all: Vec<&Decided> = reports.iter().flat_map(|report| &report.messages).collect();
    let done = all.iter().filter(|message| message.done).count();
    let errors: Vec<OperateError> = reports.iter().filter_map(|report| report.error.clone()).collect();
    html! {
        p class="lead" { (count(done as u64)) " of " (count(all.len() as u64)) " done; all are recorded in the audit." }
        @if is_requeued && done > 0 {
            p { "A message that fails again returns to the list, with the time of its last change." }
        }
        (super::super::layout::away(&errors))
        (list("Outcomes", &OUTCOMES, all.iter().map(|message| decided(message))))
        p { a class="button" href="/dead" { "Back to the list" } }
    }
}

fn capital(verb: &str) -> String {
    let mut chars = verb.chars();
    chars.next().map(|first| first.to_uppercase().chain(chars).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use operate::dead::sample::entry;

    #[test]
    fn another_list_of_the_same_length_is_another_one() {
        let asked = [entry(1), entry(2)];
        let is_same = |now: &[DeadMessage]| fingerprint(&asked) == fingerprint(now);
        assert!(is_same(&[entry(1), entry(2)]));
        assert!(!is_same(&[entry(2), entry(3)]), "one has gone, and another one has come");
        assert!(!is_same(&[entry(2), entry(1)]), "they would be decided about in another order");
        let mut of_another = entry(2);
        of_another.pipeline = Some("bills".into());
        assert!(!is_same(&[entry(1), of_another]));
        let mut died_again = entry(2);
        died_again.changed_at += Duration::from_secs(1);
        assert!(!is_same(&[entry(1), died_again]));
        let mut with_another_id = entry(2);
        with_another_id.message_id = None;
        assert!(!is_same(&[entry(1), with_another_id]));
    }
}
