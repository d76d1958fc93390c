//! The exit codes of the program.

/// An exit code of the program. `relay --help` prints this table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Exit {
    /// Done.
    Success = 0,
    /// A promise was broken: a message was lost, duplicated or out of order, or the program itself
    /// failed.
    Broken = 1,
    /// Usage, configuration or schema is wrong: change something before you try again. A daemon
    /// exits with it only for an error in the configuration itself, and for pipelines that waiting
    /// cannot help. It waits for everything else.
    Usage = 2,
    /// A database or broker is unavailable, or messages are waiting: a later try may succeed.
    Unavailable = 3,
    /// A second signal stopped the process immediately.
    Interrupted = 130,
}

impl Exit {
    const ALL: [Self; 5] = [Self::Success, Self::Broken, Self::Usage, Self::Unavailable, Self::Interrupted];

    /// Returns the more serious of two exit codes: interrupted, then a broken promise, then a
    /// required change, then a condition that may be temporary.
    pub(crate) fn worst(self, other: Self) -> Self {
        let rank = |exit: Self| match exit {
            Self::Interrupted => 4,
            Self::Broken => 3,
            Self::Usage => 2,
            Self::Unavailable => 1,
            Self::Success => 0,
        };
        if rank(other) > rank(self) { other } else { self }
    }

    /// Returns the number.
    #[must_use]
    pub fn code(self) -> i32 {
        i32::from(self as u8)
    }

    fn meaning(self) -> &'static str {
        match self {
            Self::Success => "done",
            Self::Broken => "a promise was broken, or the program had an internal error",
            Self::Usage => "usage, configuration or schema is wrong: change something first",
            Self::Unavailable => {
                "a database or broker is unavailable, or messages are waiting: try again later"
            }
            Self::Interrupted => "a second signal stopped the process immediately",
        }
    }

    /// Returns the section of the help.
    pub(crate) fn help() -> String {
        let lines = Self::ALL.map(|exit| format!("  {:>3}  {}", exit.code(), exit.meaning()));
        format!("Exit codes:\n{}", lines.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_process_tells_the_worst_of_its_parts() {
        let all = [Exit::Success, Exit::Unavailable, Exit::Usage, Exit::Broken, Exit::Interrupted];
        for (index, worse) in all.into_iter().enumerate() {
            for better in &all[..=index] {
                assert_eq!((better.worst(worse), worse.worst(*better)), (worse, worse));
            }
        }
    }
}
