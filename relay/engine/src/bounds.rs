//! The bounds of the engine's settings. The program `relay` checks those of its configuration, and
//! a service those of the relay that it embeds.

use std::ops::RangeInclusive;
use std::time::Duration;

use message::units::{ShownSize, ShownTime};

use crate::options::EngineOptions;
use crate::settings::SettingValue;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(24 * 3_600);
const RETRY_MIN: Duration = Duration::from_millis(1);
/// A shorter lease would be lost at every pause of a database or a container.
const LEASE_TTL_MIN: Duration = Duration::from_secs(1);
/// Minimum interval of updates of the cursor's row: more would bloat it while an old snapshot is
/// open.
const CHECKPOINT_MIN: Duration = Duration::from_millis(10);
const PAGE_MIN: usize = 64 << 10;

/// A setting that the engine cannot work with. The program or its configuration is at fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{setting}: {problem}")]
#[non_exhaustive]
pub struct InvalidSetting {
    /// The field of [`EngineOptions`], or the name that the caller passed.
    pub setting: &'static str,
    /// The value and the accepted values.
    pub problem: String,
}

/// The problems found so far.
struct Problems<N> {
    found: Vec<InvalidSetting>,
    name: N,
}

impl<N: Fn(&'static str) -> &'static str> Problems<N> {
    fn add(&mut self, setting: &'static str, problem: String) {
        self.found.push(InvalidSetting { setting: (self.name)(setting), problem });
    }

    fn within<T: Copy + PartialOrd>(
        &mut self,
        setting: &'static str,
        value: T,
        bounds: &RangeInclusive<T>,
        shown: fn(T) -> SettingValue,
    ) {
        if !bounds.contains(&value) {
            let [value, min, max] = [value, *bounds.start(), *bounds.end()].map(shown);
            self.add(setting, format!("{value} is outside {min} to {max}"));
        }
    }

    /// Checks that a time is not longer than another one.
    fn order(&mut self, shorter: Named, longer: Named) {
        if shorter.time > longer.time {
            let other = (self.name)(longer.setting);
            let problem = format!(
                "{} is longer than {other}, which is {}",
                ShownTime(shorter.time),
                ShownTime(longer.time)
            );
            self.add(shorter.setting, problem);
        }
    }
}

/// A time and its setting.
struct Named {
    setting: &'static str,
    time: Duration,
}

macro_rules! bounds {
    ($($part:ident { $(
        $(#[$text:meta])*
        $name:ident $($key:literal)? : $kind:ident $(<$of:ty>)? = $default:expr
        $(, in $bounds:expr)? $(, not 0: $harm:literal)?;
    )* })*) => {
        impl EngineOptions {
            /// Checks each setting by itself.
            fn check_each<N: Fn(&'static str) -> &'static str>(&self, problems: &mut Problems<N>) {
                $($(
                    $( problems.within(stringify!($name), self.$name, &($bounds), SettingValue::$kind); )?
                    $( if self.$name == 0 {
                        let problem = concat!("0 ", $harm, "; set at least 1");
                        problems.add(stringify!($name), problem.to_owned());
                    } )?
                )*)*
            }
        }
    };
}

crate::pipeline_settings!(bounds);

impl EngineOptions {
    /// Checks every setting that does not depend on the broker: times, attempts, window and pages.
    ///
    /// # Errors
    /// [`InvalidSetting`] names the first field with its value and what is accepted.
    pub fn check(&self) -> Result<(), InvalidSetting> {
        self.out_of_bounds(|field| field).into_iter().next().map_or(Ok(()), Err)
    }

    /// Returns every setting that [`check`](Self::check) would refuse. `name` returns the caller's
    /// own name for a field.
    #[must_use]
    pub fn out_of_bounds(&self, name: impl Fn(&'static str) -> &'static str) -> Vec<InvalidSetting> {
        let mut problems = Problems { found: Vec::new(), name };
        self.check_each(&mut problems);
        self.check_together(&mut problems);
        problems.found
    }

    /// Checks the bounds that depend on another setting.
    fn check_together<N: Fn(&'static str) -> &'static str>(&self, problems: &mut Problems<N>) {
        let checkpoint = CHECKPOINT_MIN..=self.lease_ttl.max(LEASE_TTL_MIN);
        problems.within("checkpoint_interval", self.checkpoint_interval, &checkpoint, SettingValue::Time);
        problems.order(
            Named { setting: "poll_min", time: self.poll_min },
            Named { setting: "poll_max", time: self.poll_max },
        );
        problems.order(
            Named { setting: "retry_initial", time: self.retry_initial },
            Named { setting: "retry_max", time: self.retry_max },
        );
        if self.page_bytes < PAGE_MIN {
            let setting = if self.window_bytes < PAGE_MIN { "window_bytes" } else { "page_bytes" };
            let problem = format!("{} is less than {}", ShownSize(self.page_bytes), ShownSize(PAGE_MIN));
            problems.add(setting, problem);
        } else if self.window_bytes < self.page_bytes {
            let page = (problems.name)("page_bytes");
            let (window, bytes) = (ShownSize(self.window_bytes), ShownSize(self.page_bytes));
            problems.add("window_bytes", format!("{window} is smaller than {page}, which is {bytes}"));
        }
        let entries = 1..=self.window_entries;
        problems.within("page_entries", self.page_entries, &entries, SettingValue::Count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut EngineOptions)) -> String {
        let mut options = EngineOptions::default();
        change(&mut options);
        options.check().err().map(|error| error.to_string()).unwrap_or_default()
    }

    /// A timer of zero panics, and polls without a pause would keep a database busy.
    #[test]
    fn a_time_of_zero_is_refused_with_its_bounds() {
        assert_eq!(refused(|_| {}), "");
        let zero = Duration::ZERO;
        assert_eq!(
            refused(|it| it.checkpoint_interval = zero),
            "checkpoint_interval: 0s is outside 10ms to 15s"
        );
        assert_eq!(refused(|it| it.silent_after = zero), "silent_after: 0s is outside 100ms to 1h");
        assert_eq!(refused(|it| it.lease_ttl = zero), "lease_ttl: 0s is outside 1s to 1h");
        assert_eq!(refused(|it| it.poll_min = zero), "poll_min: 0s is outside 100us to 1m");
        assert_eq!(refused(|it| it.outage_delay_max = zero), "outage_delay_max: 0s is outside 1ms to 1d");
        assert_eq!(refused(|it| it.shutdown_grace = zero), "");
    }

    #[test]
    fn a_problem_with_two_settings_names_both_fields() {
        assert_eq!(
            refused(|it| it.retry_max = Duration::from_millis(2)),
            "retry_initial: 1s is longer than retry_max, which is 2ms"
        );
        assert_eq!(
            refused(|it| it.page_bytes = 13 << 20),
            "window_bytes: 12MiB is smaller than page_bytes, which is 13MiB"
        );
        assert!(refused(|it| it.checkpoint_changes = 0).starts_with("checkpoint_changes: 0 would"));
    }
}
