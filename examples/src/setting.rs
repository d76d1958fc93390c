//! Settings from the environment.

/// Anything that goes wrong in an example.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The value of an environment variable.
///
/// # Errors
/// Names the variable when it is not set.
pub fn required(name: &str) -> Result<String, Failure> {
    std::env::var(name).map_err(|_| format!("the environment variable {name} is not set").into())
}

/// The value of an environment variable, or a default.
#[must_use]
pub fn optional(name: &str, default: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| default.to_owned())
}
