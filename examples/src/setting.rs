//! Settings from the environment.

use anyhow::Context as _;

/// Anything that goes wrong in an example. `main` prints it with all its causes and their advice;
/// `Box<dyn Error>` would print fields.
pub type Failure = anyhow::Error;

/// Returns the value of an environment variable.
///
/// # Errors
/// Names the variable when it is not set.
pub fn required(name: &str) -> Result<String, Failure> {
    std::env::var(name).with_context(|| format!("the environment variable {name} is needed"))
}

/// Returns the value of an environment variable, or a default.
#[must_use]
pub fn optional(name: &str, default: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| default.to_owned())
}
