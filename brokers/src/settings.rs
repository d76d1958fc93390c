//! The part that all adapters' configurations share: the report of a wrong setting.

/// A setting that cannot be used: which one, what was wrong, what to do. The operator's fault; not
/// retryable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{setting}: {problem}")]
pub struct InvalidSetting {
    /// The setting's path: `kafka.sasl.password_file`.
    pub setting: String,
    /// The problem with it, and what to write instead. Never contains a secret.
    pub problem: String,
}

impl InvalidSetting {
    /// A problem with one setting.
    pub(crate) fn new(setting: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { setting: setting.into(), problem: problem.into() }
    }

    /// Accepts a number of `<section>.<setting>` that lies within its bounds.
    #[cfg(any(feature = "kafka", feature = "rabbitmq", feature = "sqs"))]
    pub(crate) fn unless_within<T: PartialOrd + std::fmt::Display>(
        section: &str,
        setting: &str,
        value: T,
        bounds: std::ops::RangeInclusive<T>,
    ) -> Result<(), Self> {
        if bounds.contains(&value) {
            return Ok(());
        }
        let problem = format!("is {value}; accepted are {} to {}", bounds.start(), bounds.end());
        Err(Self::new(format!("{section}.{setting}"), problem))
    }

    /// Accepts a name of `<section>.<setting>` that a log line, a command line and a protocol carry
    /// unchanged: without control characters (a NUL ends it in C, a line feed begins another line
    /// of a log), without spaces at its ends, and of at most `bytes_max`.
    #[cfg(any(feature = "kafka", feature = "rabbitmq"))]
    pub(crate) fn unless_name(
        section: &str,
        setting: &str,
        value: &str,
        bytes_max: usize,
    ) -> Result<(), Self> {
        Self::unless_within(section, &format!("{setting} (bytes)"), value.len(), 1..=bytes_max)?;
        if value.chars().any(char::is_control) || value.trim() != value {
            let problem =
                format!("{value:?} is no name; leave out control characters and spaces at its ends");
            return Err(Self::new(format!("{section}.{setting}"), problem));
        }
        Ok(())
    }
}
