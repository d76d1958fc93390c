//! Errors of a world.

use std::error::Error;
use std::fmt;

/// The reason why an operation of a world failed. Its `Debug` form holds all causes, because a
/// failing test prints that form.
pub struct Failure {
    what: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl Failure {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), source: None }
    }

    /// A failure whose text names the cause and the remedy.
    #[cfg(feature = "postgres")]
    pub(crate) fn because(what: impl Into<String>, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { what: what.into(), source: Some(source.into()) }
    }

    pub(crate) fn during<E: Into<Box<dyn Error + Send + Sync>>>(
        what: &'static str,
    ) -> impl FnOnce(E) -> Self {
        move |error| Self { what: format!("cannot {what}"), source: Some(error.into()) }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        let mut source = self.source();
        while let Some(error) = source {
            write!(f, ": {error}")?;
            source = error.source();
        }
        Ok(())
    }
}

impl Error for Failure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn Error + 'static))
    }
}
