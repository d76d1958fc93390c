//! The messages that a form or an address names: all that match a filter, or chosen ones.

use std::collections::{BTreeMap, BTreeSet};

use axum::http::StatusCode;
use operate::dead::{Change, DeadSource, Filter};
use operate::{Places, in_turns};

use super::super::answer::Problem;
use super::super::app::App;
use super::super::fields::Fields;
use super::dead::{filter, places};

/// Maximum messages that a form chooses one by one.
const ROWS_MAX: usize = 500;
/// Maximum places that an address names; with more, all are queried.
const NAMED_MAX: usize = 20;

/// The choice in a form.
pub(super) struct Choice {
    pub(super) change: Change,
    /// Places, each with the filter for its messages.
    pub(super) parts: Vec<(Places, Filter)>,
    pub(super) is_all: bool,
}

/// Reads the choice in a form. Connects to inboxes.
pub(super) async fn choice(app: &App, form: &Fields) -> Result<Choice, Problem> {
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
    if rows > ROWS_MAX {
        return Err(Problem::bad(format!("{rows} messages are selected; the maximum is {ROWS_MAX}")));
    }
    for (source, owner) in by_owner.keys() {
        check_place(app, *source, owner)?;
    }
    let mut opening = Vec::new();
    for (source, owner) in by_owner.keys() {
        opening.push(place(app, *source, owner));
    }
    let opened: Result<Vec<Places>, Problem> = in_turns(opening).await.into_iter().collect();
    Ok(opened?.into_iter().zip(by_owner.into_values()).collect())
}

/// Checks that a place is configured, before any is connected to.
fn check_place(app: &App, source: DeadSource, owner: &str) -> Result<(), Problem> {
    match source {
        DeadSource::Outbox => app.pipeline(owner).map(drop),
        DeadSource::Inbox if app.inboxes.iter().any(|inbox| inbox.consumer.as_str() == owner) => Ok(()),
        DeadSource::Inbox => {
            let text = format!("no inbox of {owner:?} is configured");
            Err(Problem::new(StatusCode::NOT_FOUND, text))
        }
    }
}

/// Returns one place.
async fn place(app: &App, source: DeadSource, owner: &str) -> Result<Places, Problem> {
    match source {
        DeadSource::Outbox => Ok(Places::new().outbox(app.pipeline(owner)?)),
        DeadSource::Inbox => Ok(app.with_inboxes(Places::new(), owner).await),
    }
}

/// Returns the names of places, for an address.
pub(super) fn named<'a>(owners: impl Iterator<Item = (DeadSource, &'a str)>) -> Vec<String> {
    // A consumer with several databases is followed by one of them.
    let consumer = |owner: &'a str| owner.split_once(" at ").map_or(owner, |(consumer, _)| consumer);
    let names: BTreeSet<String> =
        owners.map(|(source, owner)| format!("{source}/{}", consumer(owner))).collect();
    if names.len() > NAMED_MAX { Vec::new() } else { names.into_iter().collect() }
}

/// Returns the places that an address names; all without a name.
pub(super) async fn places_of(app: &App, query: &Fields) -> Result<Places, Problem> {
    let mut places = Places::new();
    let mut consumers = BTreeSet::new();
    let mut is_named = false;
    for name in query.all("in").take(NAMED_MAX) {
        let broken = || Problem::bad("in: it does not name a database");
        let (source, owner) = name.split_once('/').ok_or_else(broken)?;
        let source = source.parse::<DeadSource>().map_err(|_| broken())?;
        check_place(app, source, owner)?;
        match source {
            DeadSource::Outbox => places = places.outbox(app.pipeline(owner)?),
            DeadSource::Inbox => drop(consumers.insert(owner)),
        }
        is_named = true;
    }
    let inboxes = app.inboxes.iter().filter(|inbox| consumers.contains(inbox.consumer.as_str()));
    let places = places.inboxes(inboxes.collect()).await;
    if is_named { Ok(places) } else { Ok(app.with_inboxes(app.outboxes("")?, "").await) }
}
