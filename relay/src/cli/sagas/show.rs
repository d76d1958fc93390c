//! Formats sagas, steps and decisions, without inputs, results and replies.

use saga::{Decision, SagaOutline, StepRecord};
use serde::Serialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::super::exit::Exit;
use super::super::failure::Failure;
use super::super::output::{Format, Table, card, or_dash};

/// A saga as printed.
#[derive(Debug, Serialize)]
struct Saga {
    r#type: String,
    id: String,
    version: u16,
    state: &'static str,
    stuck_at: Option<String>,
    attempts: u32,
    error: Option<String>,
    reason: Option<String>,
    waits_for: Option<String>,
    waiting_since: Option<String>,
    wake_at: Option<String>,
    worker: Option<String>,
    epoch: i64,
    started_at: String,
    ended_at: Option<String>,
}

/// A step as printed.
#[derive(Debug, Serialize)]
struct Step {
    position: u32,
    name: String,
    kind: &'static str,
    state: &'static str,
    undo: &'static str,
    attempts: u32,
    error: Option<String>,
    due_at: Option<String>,
    begun_at: String,
    ended_at: Option<String>,
    undone_at: Option<String>,
}

/// A saga with its steps.
#[derive(Debug, Serialize)]
struct Whole {
    saga: Saga,
    steps: Vec<Step>,
}

/// A line of the audit.
#[derive(Debug, Serialize)]
struct Audited {
    at: String,
    actor: String,
    action: &'static str,
    saga: String,
    step: Option<String>,
    note: String,
}

pub(crate) fn list(sagas: &[SagaOutline], none: &str, format: Format) -> Result<(), Failure> {
    let sagas: Vec<Saga> = sagas.iter().map(Saga::of).collect();
    format.print(&sagas, |sagas| {
        if sagas.is_empty() {
            return none.to_owned();
        }
        let rows = sagas.iter().map(|saga| {
            let Saga { r#type, id, version, started_at, .. } = saga;
            let version = version.to_string();
            let (waits, since) = (or_dash(saga.waits_for.as_ref()), or_dash(saga.since()));
            [r#type, id, &version, &saga.state_shown(), &waits, &since, started_at, &or_dash(saga.told())]
                .map(Clone::clone)
        });
        Table::new(["type", "id", "version", "state", "waits for", "since", "started", "why"], rows)
            .optional(&["version", "started", "since"])
            .cut("why")
            .shown()
    })
}

pub(crate) fn one(saga: &SagaOutline, steps: &[StepRecord], format: Format) -> Result<Exit, Failure> {
    let whole = Whole { saga: Saga::of(saga), steps: steps.iter().map(Step::of).collect() };
    format.print(&whole, |Whole { saga, steps }| {
        let head = [
            ("saga", format!("{}/{}", saga.r#type, saga.id)),
            ("version", saga.version.to_string()),
            ("state", saga.state_shown()),
            ("why", or_dash(saga.told())),
            ("waits for", or_dash(saga.waits_for.as_ref())),
            ("since", or_dash(saga.since())),
            ("next turn", or_dash(saga.wake_at.as_ref())),
            ("worker", or_dash(saga.worker.as_ref())),
            ("attempts", saga.attempts.to_string()),
            ("started", saga.started_at.clone()),
            ("ended", or_dash(saga.ended_at.as_ref())),
        ];
        let head = card(0, head.into_iter().map(|(name, value)| (name, Some(value))));
        let rows = steps.iter().map(|step| {
            let Step { name, kind, state, undo, begun_at, .. } = step;
            let (ended, undone) = (or_dash(step.ended_at.as_ref()), or_dash(step.undone_at.as_ref()));
            let why = or_dash(step.error.as_ref());
            [name.as_str(), *kind, *state, *undo, begun_at, &ended, &undone, &why].map(ToOwned::to_owned)
        });
        let steps = Table::new(["step", "kind", "state", "undo", "begun", "ended", "undone", "why"], rows)
            .optional(&["kind", "undone", "begun", "ended"])
            .cut("why");
        format!("{head}\n\n{}", steps.shown())
    })?;
    Ok(Exit::Success)
}

pub(crate) fn audit(decisions: &[Decision], format: Format) -> Result<Exit, Failure> {
    let decisions: Vec<Audited> = decisions.iter().map(Audited::of).collect();
    format.print(&decisions, |decisions| {
        if decisions.is_empty() {
            return String::from("no decisions");
        }
        let rows = decisions.iter().map(|decision| {
            let Audited { at, actor, action, saga, step, note } = decision;
            [at.as_str(), actor, *action, saga, &or_dash(step.as_ref()), note].map(ToOwned::to_owned)
        });
        Table::new(["at", "actor", "action", "saga", "step", "note"], rows).cut("note").shown()
    })?;
    Ok(Exit::Success)
}

impl Saga {
    fn of(saga: &SagaOutline) -> Self {
        Self {
            r#type: saga.id.saga_type().to_owned(),
            id: saga.id.id().to_owned(),
            version: saga.version,
            state: saga.state.as_str(),
            stuck_at: maybe(saga.stuck_at),
            attempts: saga.attempts,
            error: saga.error.clone(),
            reason: saga.reason.clone(),
            waits_for: saga.waits_for.clone(),
            waiting_since: maybe(saga.waiting_since),
            wake_at: maybe(saga.wake_at),
            worker: saga.worker.clone(),
            epoch: saga.epoch,
            started_at: shown(saga.started_at),
            ended_at: maybe(saga.ended_at),
        }
    }

    fn state_shown(&self) -> String {
        let stuck = if self.stuck_at.is_some() { ", stuck" } else { "" };
        format!("{}{stuck}", self.state)
    }

    /// Returns the time since which it waits or is stuck.
    fn since(&self) -> Option<&String> {
        self.stuck_at.as_ref().or(self.waiting_since.as_ref())
    }

    fn told(&self) -> Option<&String> {
        self.error.as_ref().or(self.reason.as_ref())
    }
}

impl Step {
    fn of(step: &StepRecord) -> Self {
        Self {
            position: step.position,
            name: step.name.clone(),
            kind: step.kind.as_str(),
            state: step.state.as_str(),
            undo: step.undo.as_str(),
            attempts: step.attempts,
            error: step.error.clone(),
            due_at: maybe(step.due_at),
            begun_at: shown(step.begun_at),
            ended_at: maybe(step.ended_at),
            undone_at: maybe(step.undone_at),
        }
    }
}

impl Audited {
    fn of(decision: &Decision) -> Self {
        Self {
            at: shown(decision.at),
            actor: decision.signature.actor.clone(),
            action: decision.action.as_str(),
            saga: decision.subject.id.to_string(),
            step: decision.subject.step.clone(),
            note: decision.signature.note.clone(),
        }
    }
}

fn maybe(at: Option<OffsetDateTime>) -> Option<String> {
    at.map(shown)
}

fn shown(at: OffsetDateTime) -> String {
    at.format(&Rfc3339).unwrap_or_else(|_| at.to_string())
}
