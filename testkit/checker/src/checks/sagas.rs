//! Sagas: each step once, each undo once and after its step, a complete end, and balances that
//! agree with the effects.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{need, need_quiet};
use crate::history::{SagaState, Sagas, StepEffect};
use crate::index::Index;
use crate::verdict::{Breach, Event, Findings, NotChecked, Subject, Violation};

/// Checks that a saga exists if and only if the transaction that started it has committed.
pub(super) fn check_starts(index: &Index<'_>, findings: &mut Findings) -> Result<(), NotChecked> {
    let sagas = sagas(index)?;
    let ordered: HashSet<&str> = sagas.orders.iter().map(|id| &**id).collect();
    let stored: HashSet<&str> = sagas.runs.iter().map(|run| &*run.id).collect();
    findings.checked(ordered.len() + stored.len());
    for id in sagas.orders.iter().filter(|id| !stored.contains(&***id)) {
        found(findings, sagas, Violation::OrderedNotStarted, id);
    }
    for run in sagas.runs.iter().filter(|run| !ordered.contains(&*run.id)) {
        found(findings, sagas, Violation::StartedByNobody, &run.id);
    }
    Ok(())
}

/// Checks that no step happens twice, not even after its undo.
pub(super) fn check_steps(index: &Index<'_>, findings: &mut Findings) -> Result<(), NotChecked> {
    let sagas = sagas(index)?;
    let mut done = HashSet::new();
    for effect in sagas.effects.iter().filter(|effect| !effect.is_undo) {
        findings.checked(1);
        if !done.insert((&*effect.saga, &*effect.step)) {
            found(findings, sagas, Violation::StepAgain, &effect.saga);
        }
    }
    Ok(())
}

/// Checks that an undo happens at most once, and only after its step.
pub(super) fn check_undos(index: &Index<'_>, findings: &mut Findings) -> Result<(), NotChecked> {
    let sagas = sagas(index)?;
    let (mut done, mut undone) = (HashSet::new(), HashSet::new());
    for effect in &sagas.effects {
        let step = (&*effect.saga, &*effect.step);
        if !effect.is_undo {
            done.insert(step);
            continue;
        }
        findings.checked(1);
        if !done.contains(&step) {
            found(findings, sagas, Violation::UndoneBefore, &effect.saga);
        }
        if !undone.insert(step) {
            found(findings, sagas, Violation::UndoneAgain, &effect.saga);
        }
    }
    Ok(())
}

/// Checks that at the end every saga is finished with all of its steps, or undone with no step
/// left.
pub(super) fn check_ends(index: &Index<'_>, findings: &mut Findings) -> Result<(), NotChecked> {
    need_quiet(index)?;
    let sagas = sagas(index)?;
    let mut standing: HashMap<&str, HashSet<&str>> = HashMap::new();
    for StepEffect { saga, step, is_undo, .. } in &sagas.effects {
        let steps = standing.entry(saga).or_default();
        if *is_undo {
            steps.remove(&**step)
        } else {
            steps.insert(step)
        };
    }
    let none = HashSet::new();
    for run in &sagas.runs {
        findings.checked(1);
        let standing = standing.get(&*run.id).unwrap_or(&none);
        let violation = match run.state {
            SagaState::Open => Violation::NeverEnded,
            SagaState::Finished if sagas.steps.iter().any(|step| !standing.contains(&**step)) => {
                Violation::FinishedInPart
            }
            SagaState::Undone if !standing.is_empty() => Violation::UndoneInPart,
            SagaState::Finished | SagaState::Undone => continue,
        };
        found(findings, sagas, violation, &run.id);
    }
    Ok(())
}

/// Checks that undos give back the amounts of their steps, that no effect belongs to an unknown
/// saga, and that the balances of each service equal the amounts taken.
pub(super) fn check_money(index: &Index<'_>, findings: &mut Findings) -> Result<(), NotChecked> {
    let sagas = sagas(index)?;
    let known: HashSet<&str> = sagas.runs.iter().map(|run| &*run.id).collect();
    let mut amounts: HashMap<(&str, &str), i64> = HashMap::new();
    let mut taken: HashMap<&str, i64> = HashMap::new();
    for effect in &sagas.effects {
        let step = (&*effect.saga, &*effect.step);
        let sum = taken.entry(&effect.service).or_default();
        *sum += if effect.is_undo { -effect.amount } else { effect.amount };
        let amount = *amounts.entry(step).or_insert(effect.amount);
        if amount != effect.amount || !known.contains(&*effect.saga) {
            found(findings, sagas, Violation::DoesNotAddUp, &effect.saga);
        }
    }
    for balance in &sagas.balances {
        findings.checked(1);
        let done = taken.get(&*balance.service).copied().unwrap_or_default();
        if done != balance.taken {
            let what = format!(
                "account {} of {}: {} was taken according to the account, {done} according to the effects",
                balance.account, balance.service, balance.taken
            );
            findings.breach(Violation::DoesNotAddUp, || Subject {
                held: Some(what.into()),
                ..Subject::default()
            });
        }
    }
    Ok(())
}

fn sagas<'a>(index: &Index<'a>) -> Result<&'a Sagas, NotChecked> {
    need(&index.history.sagas, "no sagas were read")
}

/// Reports a breach, with everything that was done for the saga.
fn found(findings: &mut Findings, sagas: &Sagas, violation: Violation, id: &Arc<str>) {
    findings.breach_seen(|| {
        let effects = sagas.effects.iter().filter(|effect| effect.saga == *id);
        let effects = effects.map(|effect| Event::Step { effect: effect.clone() });
        let runs = sagas.runs.iter().filter(|run| run.id == *id);
        let runs = runs.map(|run| Event::Saga { saga: Arc::clone(id), state: run.state });
        let held = Some(format!("saga {id}").into());
        Breach {
            violation,
            subject: Subject { held, ..Subject::default() },
            events: effects.chain(runs).collect(),
        }
    });
}
