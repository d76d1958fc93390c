//! The end of a saga, and the comparison of two ends.

use saga::{SagaRecord, State, StepKind, StepRecord, StepState, UndoState};

/// The end of a saga.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct End {
    state: State,
    output: Option<String>,
    /// Name, result and undo of each step, in order.
    steps: Vec<(String, Option<String>, UndoState)>,
    /// Topic and payload of each message.
    messages: Vec<String>,
}

impl End {
    /// Checks the conditions that hold for every end, and builds the end.
    pub(super) fn of(saga: &SagaRecord, steps: &[StepRecord], messages: Vec<String>) -> Result<Self, String> {
        for step in steps {
            let is_open = matches!(step.state, StepState::Calling) && step.kind == StepKind::Call;
            if saga.outline.state == State::Finished && is_open {
                return Err(format!("it finished, and the outcome of the call {} is unknown", step.name));
            }
            if saga.outline.state == State::Undone && step.undo == UndoState::Pending {
                return Err(format!("it is undone, but the step {} is not", step.name));
            }
        }
        let mut undone: Vec<_> =
            steps.iter().filter_map(|step| Some((step.undone_at?, step.position))).collect();
        undone.sort();
        if undone.windows(2).any(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1) {
            return Err(String::from("steps were not undone in reverse order"));
        }
        let steps = steps.iter().map(|step| (step.name.clone(), step.result.clone(), step.undo)).collect();
        Ok(Self { state: saga.outline.state, output: saga.output.clone(), steps, messages })
    }
}

/// Compares two ends. The error names the first difference.
pub(super) fn compare(expected: &End, found: &End) -> Result<(), String> {
    let differ = |what: &str, expected: &dyn std::fmt::Debug, found: &dyn std::fmt::Debug| {
        Err(format!("{what} differ from the undisturbed run: {found:?} instead of {expected:?}"))
    };
    if expected.state != found.state {
        return differ("states", &expected.state, &found.state);
    }
    if expected.output != found.output {
        return differ("outputs", &expected.output, &found.output);
    }
    if expected.messages != found.messages {
        return differ("messages", &expected.messages, &found.messages);
    }
    if expected.steps != found.steps {
        return differ("steps", &expected.steps, &found.steps);
    }
    Ok(())
}
