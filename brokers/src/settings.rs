//! What every adapter's configuration shares: how a wrong setting is reported.

/// A setting that cannot be used: which one, what was wrong, what to do. The operator's fault; not retryable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{setting}: {problem}")]
pub struct InvalidSetting {
    /// The setting's path: `kafka.sasl.password_file`.
    pub setting: String,
    /// What is wrong with it and what to write instead. Never contains a secret.
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
}
