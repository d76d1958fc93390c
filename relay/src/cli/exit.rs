//! How the program ends.

/// The program's exit codes. The one table of them, also printed by `relay --help`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Exit {
    /// Done.
    Success = 0,
    /// A promise was broken: a message was lost, doubled or out of order, or the program failed by
    /// itself.
    Broken = 1,
    /// Usage, configuration or schema: somebody has to change something before it makes sense to
    /// try again.
    Usage = 2,
    /// A database or broker is unavailable, or messages wait: trying again later can help.
    Unavailable = 3,
    /// Stopped at once by a second signal.
    Interrupted = 130,
}

impl Exit {
    const ALL: [Self; 5] = [Self::Success, Self::Broken, Self::Usage, Self::Unavailable, Self::Interrupted];

    /// The number.
    #[must_use]
    pub fn code(self) -> i32 {
        i32::from(self as u8)
    }

    fn meaning(self) -> &'static str {
        match self {
            Self::Success => "done",
            Self::Broken => "a promise was broken, or the program failed by itself",
            Self::Usage => "usage, configuration or schema: change something first",
            Self::Unavailable => "a database or broker is unavailable, or messages wait: try again later",
            Self::Interrupted => "stopped at once by a second signal",
        }
    }

    /// The section of the help.
    pub(crate) fn help() -> String {
        let lines = Self::ALL.map(|exit| format!("  {:>3}  {}", exit.code(), exit.meaning()));
        format!("Exit codes:\n{}", lines.join("\n"))
    }
}
