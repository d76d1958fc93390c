//! Code shared by all adapters' configurations: the report of an invalid setting.

/// An invalid setting: its name, the problem and the remedy. The operator's fault; not retryable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{setting}: {problem}")]
pub struct InvalidSetting {
    /// The setting's path, for example `kafka.sasl.password_file`.
    pub setting: String,
    /// The problem with it, and what to write instead. Never contains a secret.
    pub problem: String,
}

impl InvalidSetting {
    /// Returns the remedy with which the problem ends; `None` if there is none.
    #[must_use]
    pub fn remedy(&self) -> Option<&str> {
        message::error_text::remedy(&self.problem)
    }

    /// Creates the report of a problem with one setting.
    pub(crate) fn new(setting: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { setting: setting.into(), problem: problem.into() }
    }

    /// Checks that the number in `<section>.<setting>` lies within its bounds.
    #[cfg(any(feature = "http", feature = "kafka", feature = "rabbitmq", feature = "sqs"))]
    pub(crate) fn unless_within<T: PartialOrd + std::fmt::Display>(
        section: &str,
        setting: &str,
        value: T,
        bounds: std::ops::RangeInclusive<T>,
    ) -> Result<(), Self> {
        if bounds.contains(&value) {
            return Ok(());
        }
        let problem = format!("is {value}; choose a value from {} to {}", bounds.start(), bounds.end());
        Err(Self::new(format!("{section}.{setting}"), problem))
    }

    /// Checks that a log line, a command line and a protocol can carry the name in
    /// `<section>.<setting>` unchanged: no control characters (a NUL ends it in C, a line feed
    /// splits a log line), no spaces at its ends, and at most `bytes_max` bytes.
    #[cfg(any(feature = "kafka", feature = "rabbitmq"))]
    pub(crate) fn unless_name(
        section: &str,
        setting: &str,
        value: &str,
        bytes_max: usize,
    ) -> Result<(), Self> {
        Self::unless_within(section, &format!("{setting} (bytes)"), value.len(), 1..=bytes_max)?;
        if value.chars().any(char::is_control) || value.trim() != value {
            let problem = format!(
                "{value:?} is not a valid name; remove control characters and leading or trailing spaces"
            );
            return Err(Self::new(format!("{section}.{setting}"), problem));
        }
        Ok(())
    }
}
