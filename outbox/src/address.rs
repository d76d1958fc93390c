//! Where a database is.

use std::fmt;
use std::sync::Arc;

/// Where a database is: a URL, or somebody who knows it at each connect, such as a mounted secret that is rotated.
/// `Debug` prints no URL, because it may hold a password.
#[derive(Clone)]
pub struct Address(Known);

#[derive(Clone)]
enum Known {
    Fixed(Arc<str>),
    Asked(Arc<dyn Fn() -> Result<String, String> + Send + Sync>),
}

impl Address {
    /// A URL that is asked for at every connect. `ask` may read a local file; its error is for the operator and must
    /// not hold the secret.
    pub fn asked(ask: impl Fn() -> Result<String, String> + Send + Sync + 'static) -> Self {
        Self(Known::Asked(Arc::new(ask)))
    }

    /// The URL of this moment.
    pub(crate) fn url(&self) -> Result<String, String> {
        match &self.0 {
            Known::Fixed(url) => Ok(url.as_ref().to_owned()),
            Known::Asked(ask) => ask(),
        }
    }
}

impl From<&str> for Address {
    fn from(url: &str) -> Self {
        Self(Known::Fixed(Arc::from(url)))
    }
}

impl From<&String> for Address {
    fn from(url: &String) -> Self {
        Self::from(url.as_str())
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Known::Fixed(_) => "Address(fixed)",
            Known::Asked(_) => "Address(asked)",
        })
    }
}
