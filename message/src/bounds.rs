//! The error for times that are out of their bounds.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::units::ShownTime;

/// A time that is out of its bounds. The program or its configuration is at fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the {what} is {}; choose {} to {}", ShownTime(*.value), ShownTime(*.min), ShownTime(*.max))]
pub struct OutOfBounds {
    /// The meaning of the time.
    pub what: &'static str,
    /// Its value.
    pub value: Duration,
    /// The smallest accepted value.
    pub min: Duration,
    /// The largest accepted value.
    pub max: Duration,
}

impl OutOfBounds {
    /// Checks a time. Both bounds are accepted.
    ///
    /// # Errors
    /// [`OutOfBounds`] with the value and its bounds.
    pub fn check(what: &'static str, value: Duration, bounds: RangeInclusive<Duration>) -> Result<(), Self> {
        if bounds.contains(&value) {
            return Ok(());
        }
        Err(Self { what, value, min: *bounds.start(), max: *bounds.end() })
    }
}
