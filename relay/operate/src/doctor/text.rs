//! Values formatted for people.

use std::time::Duration;

use bytesize::ByteSize;

use crate::units::Time;

/// Formats a duration: in milliseconds below a second, in its two largest units above.
pub(super) fn age(duration: Duration) -> String {
    let millis = duration.as_millis();
    let step = match millis {
        0..1_000 => 1,
        1_000..3_600_000 => 1_000,
        3_600_000..86_400_000 => 60_000,
        _ => 3_600_000,
    };
    Time(Duration::from_millis(u64::try_from(millis / step * step).unwrap_or(u64::MAX))).to_string()
}

/// Formats a size: `1.5 MiB`.
pub(super) fn bytes(bytes: u64) -> String {
    ByteSize::b(bytes).display().iec().to_string()
}
