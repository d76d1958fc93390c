//! Durations and sizes as people read them: `200ms`, `1m30s`, `16MiB`.

use std::fmt;
use std::time::Duration;

/// A duration, shown with units from a day to a microsecond.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShownTime(pub Duration);

/// A size in bytes, shown exactly: the unit is the largest that divides it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShownSize(pub usize);

/// Units in which a duration is shown, in microseconds.
const TIMES: [(&str, u64); 6] = [
    ("d", 86_400_000_000),
    ("h", 3_600_000_000),
    ("m", 60_000_000),
    ("s", 1_000_000),
    ("ms", 1_000),
    ("us", 1),
];

impl fmt::Display for ShownTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = u64::try_from(self.0.as_micros()).unwrap_or(u64::MAX);
        if rest == 0 {
            return f.write_str("0s");
        }
        for (unit, micros) in TIMES {
            if rest >= micros {
                write!(f, "{}{unit}", rest / micros)?;
                rest %= micros;
            }
        }
        Ok(())
    }
}

impl fmt::Display for ShownSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
        match units.into_iter().find(|(_, unit)| self.0 >= *unit && self.0.is_multiple_of(*unit)) {
            Some((name, unit)) => write!(f, "{}{name}", self.0 / unit),
            None => write!(f, "{}", self.0),
        }
    }
}
