//! Reasons why a service is missing.

use std::fmt::{self, Display};

/// The two ways in which a service can be missing. They differ in the exit code of `services up`.
#[derive(Debug)]
pub(crate) enum Fault {
    /// This machine does not have it and it could not be installed: nothing is broken.
    Unavailable(String),
    /// It should have worked: a port is taken, a process died, a file cannot be written.
    Failed(String),
}

impl Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable(why) | Self::Failed(why) => out.write_str(why),
        }
    }
}

/// Adds the attempted operation to an I/O error.
pub(crate) trait Doing<T> {
    fn doing(self, what: impl Display) -> Result<T, Fault>;
}

impl<T> Doing<T> for std::io::Result<T> {
    fn doing(self, what: impl Display) -> Result<T, Fault> {
        self.map_err(|error| Fault::Failed(format!("{what}: {error}")))
    }
}
