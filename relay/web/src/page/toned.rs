//! The colours of states.

use std::fmt::Display;

use operate::MessageState;
use operate::dead::Tone;
use operate::status::PipelineState;
use saga::{Condition, State, StepState};

/// A state with the colour of its badge.
pub(crate) trait Toned: Display {
    /// Returns `good`, `warn`, `bad` or none.
    fn tone(&self) -> &'static str;
}

/// Returns the class of a badge in this tone, as [`Toned::tone`] does for a state.
pub(crate) fn class_of(tone: Tone) -> &'static str {
    match tone {
        Tone::Good => "good",
        Tone::Warn => "warn",
        Tone::Bad => "bad",
        Tone::Neutral => "",
    }
}

impl Toned for PipelineState {
    fn tone(&self) -> &'static str {
        match self {
            Self::Leading => "good",
            Self::Idle => "warn",
            Self::Expired | Self::Unknown => "bad",
            Self::New => "",
        }
    }
}

impl Toned for MessageState {
    fn tone(&self) -> &'static str {
        match self {
            Self::Published | Self::Applied | Self::AppliedLate => "good",
            Self::Retrying | Self::Held => "warn",
            Self::Dead | Self::Unknown | Self::Forgotten => "bad",
            Self::Waiting
            | Self::LeftOut
            | Self::Scheduled
            | Self::Discarded
            | Self::Duplicate
            | Self::NotSeen => "",
        }
    }
}

impl Toned for Condition {
    fn tone(&self) -> &'static str {
        match self {
            Self::Usual(State::Finished) => "good",
            Self::Usual(State::Undoing) | Self::Stuck(_) => "warn",
            Self::Usual(State::Running | State::Undone) | Self::ToBeCancelled(_) => "",
        }
    }
}

impl Toned for StepState {
    fn tone(&self) -> &'static str {
        match self {
            Self::Done => "good",
            Self::Refused | Self::Calling | Self::GaveUp | Self::Waiting | Self::TimedOut => "",
        }
    }
}
