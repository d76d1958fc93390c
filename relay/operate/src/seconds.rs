//! Times for display, in UTC with a precision of seconds; and durations.

use std::time::Duration;

use serde::Serializer;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::units::Time;

/// Formats a time as RFC 3339.
#[must_use]
pub fn text(time: OffsetDateTime) -> String {
    let seconds = time.replace_nanosecond(0).unwrap_or(time);
    seconds.format(&Rfc3339).unwrap_or_else(|_| seconds.to_string())
}

/// Serializes a time, for `serde(serialize_with)`.
pub(crate) fn serialize<S: Serializer>(time: &OffsetDateTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&text(*time))
}

/// Serializes an optional time, for `serde(serialize_with)`.
#[expect(clippy::ref_option, reason = "serde passes a reference")]
pub(crate) fn serialize_option<S: Serializer>(
    time: &Option<OffsetDateTime>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => serializer.serialize_some(&text(*time)),
        None => serializer.serialize_none(),
    }
}

/// Formats a duration for people: in milliseconds below a second, in its two largest units above.
#[must_use]
pub fn age(duration: Duration) -> String {
    let millis = duration.as_millis();
    let step = match millis {
        0..1_000 => 1,
        1_000..3_600_000 => 1_000,
        3_600_000..86_400_000 => 60_000,
        _ => 3_600_000,
    };
    let rounded = u64::try_from(millis / step * step).unwrap_or(u64::MAX);
    Time(Duration::from_millis(rounded)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_no_more_digits_than_people_need() {
        for (millis, shown) in [
            (0, "0s"),
            (234, "234ms"),
            (1_234, "1s"),
            (12_345, "12s"),
            (125_500, "2m5s"),
            (90_061_000, "1d1h"),
        ] {
            assert_eq!(age(Duration::from_millis(millis)), shown);
        }
    }
}
