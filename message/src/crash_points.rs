//! Places in the code at which a test ends the process, as a power cut would: no destructor runs,
//! nothing is flushed.
//!
//! Each crate names its own places: `outbox::crash_points`, `inbox::crash_points`,
//! `relay::crash_points`. Without the feature `crash-points` they are empty functions, and nothing
//! can be armed. Never build a released program with it.
//!
//! | written | meaning |
//! |---|---|
//! | `inbox::after_effect` | ends the process when the place is reached |
//! | `inbox::after_effect=7` | when it is reached for the seventh time |
//! | `relay::after_read,relay::after_confirm=3` | several, whichever comes first |

/// The environment variable that arms crash points in a program built with the feature.
pub const VARIABLE: &str = "OUTBOX_CRASH_POINTS";

/// Writes the crash points of a crate: a constant for each, and an array of all of them.
#[macro_export]
macro_rules! places {
    ($(#[$of_all:meta])* $all:ident: $($(#[$of:meta])* $place:ident = $name:literal;)+) => {
        $($(#[$of])* pub const $place: &str = $name;)+
        $(#[$of_all])* pub const $all: [&str; [$($name),+].len()] = [$($place),+];
    };
}

/// Marks a place as reached. Ends the process if the place is armed.
#[cfg(feature = "crash-points")]
pub fn reached(place: &'static str) {
    fail::fail_point!(place);
}

/// Does nothing: the feature `crash-points` is off.
#[cfg(not(feature = "crash-points"))]
#[inline(always)]
pub fn reached(_place: &'static str) {}

/// A text that names no crash point.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is not a crash point: write the name of a place, or name=times with at least 1")]
pub struct InvalidCrashPoint {
    given: String,
}

/// Arms places, in the notation of the module's table.
///
/// # Errors
/// [`InvalidCrashPoint`]. A text that cannot be parsed arms nothing.
#[cfg(feature = "crash-points")]
fn arm(points: &str) -> Result<(), InvalidCrashPoint> {
    for (place, times) in parse(points)? {
        let (name, left) = (place.to_owned(), std::sync::atomic::AtomicU64::new(times));
        let crash = move || {
            if left.fetch_sub(1, std::sync::atomic::Ordering::Relaxed) == 1 {
                eprintln!("crash point {name}");
                std::process::abort();
            }
        };
        fail::cfg_callback(place, crash).map_err(|_| InvalidCrashPoint { given: place.to_owned() })?;
    }
    Ok(())
}

/// Arms the places in [`VARIABLE`], if it is set.
///
/// # Errors
/// [`InvalidCrashPoint`].
#[cfg(feature = "crash-points")]
pub fn arm_from_environment() -> Result<(), InvalidCrashPoint> {
    std::env::var(VARIABLE).map_or(Ok(()), |points| arm(&points))
}

#[cfg(any(feature = "crash-points", test))]
fn parse(points: &str) -> Result<Vec<(&str, u64)>, InvalidCrashPoint> {
    let one = |point: &'_ str| -> Option<(usize, u64)> {
        let (place, times) = point.split_once('=').unwrap_or((point, "1"));
        let times = times.parse().ok().filter(|times| *times > 0)?;
        (!place.is_empty()).then_some((place.len(), times))
    };
    points
        .split(',')
        .map(|point| {
            let point = point.trim();
            one(point)
                .map(|(length, times)| (&point[..length], times))
                .ok_or_else(|| InvalidCrashPoint { given: point.to_owned() })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_named_with_or_without_times() {
        assert_eq!(parse("a").unwrap(), [("a", 1)]);
        assert_eq!(parse("a=7, b").unwrap(), [("a", 7), ("b", 1)]);
        for wrong in ["", "a=0", "a=x", "=3", "a,,b"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
