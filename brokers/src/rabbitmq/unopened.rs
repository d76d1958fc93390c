//! Explains why no connection with a broker was opened.

use std::time::SystemTime;

use message::{Fault, FaultScope, PublishError, SubscriptionError, error_text};
use secrecy::{ExposeSecret as _, SecretString};

use super::fault;
use super::token::Expiry;
use crate::settings::InvalidSetting;

/// The reason why no connection was opened.
pub(super) enum OpenFailure {
    /// A secret or certificate file cannot be read.
    Setting(InvalidSetting),
    /// It took longer than the configured time.
    Timeout(String),
    /// The client's error.
    Client(lapin::Error),
    /// Every host refused it, or did not answer.
    Nowhere {
        /// The reason of each host, and the remedy.
        reason: String,
        /// Whether an operator must act on all hosts.
        is_for_operator: bool,
    },
}

impl OpenFailure {
    /// Returns the failure of all hosts, with host and port of each: that of the host itself if
    /// there is one. Only if each of them needs an operator, the whole does.
    pub(super) fn of_all(failures: Vec<(String, Self)>) -> Self {
        let mut failures = failures;
        if failures.len() == 1
            && let Some((_, failure)) = failures.pop()
        {
            return failure;
        }
        let mut reasons = Vec::new();
        let mut remedy = None;
        let mut is_for_operator = true;
        for (place, failure) in failures {
            let Told { reason, advice, needs_operator } = Told::of(failure);
            is_for_operator &= needs_operator;
            reasons.push(format!("{place}: {reason}"));
            // The remedy of a host that does not come back by itself comes first.
            if remedy.is_none() || needs_operator {
                remedy = advice.or(remedy);
            }
        }
        let remedy = remedy.map(|remedy| format!("; {remedy}")).unwrap_or_default();
        let reason = format!("no host of rabbitmq.url can be used ({}){remedy}", reasons.join(", "));
        Self::Nowhere { reason, is_for_operator }
    }

    /// Adds that the password is a token that has expired, if a host refused it.
    pub(super) fn with_token(self, password: Option<&SecretString>) -> Self {
        let now = SystemTime::now();
        let expiry = password.and_then(|password| Expiry::of(password.expose_secret()));
        let Some(expired) = expiry.filter(|expiry| expiry.ago(now).is_some()) else { return self };
        let is_refusal = matches!(self, Self::Client(_) | Self::Nowhere { is_for_operator: true, .. });
        if !is_refusal {
            return self;
        }
        let Told { reason, advice, needs_operator } = Told::of(self);
        let told = format!("{reason}: the token in rabbitmq.password {}", expired.told(now));
        let advice = if needs_operator {
            String::from("check what renews the token in rabbitmq.password_file")
        } else {
            advice.unwrap_or_default()
        };
        Self::Nowhere { reason: format!("{told}; {advice}"), is_for_operator: needs_operator }
    }
}

/// A failure in words.
struct Told {
    reason: String,
    advice: Option<String>,
    needs_operator: bool,
}

impl Told {
    fn of(failure: OpenFailure) -> Self {
        let error = PublishError::from(failure);
        let text = error.to_string();
        let advice = error_text::remedy(&text).map(str::to_owned);
        let reason = advice.as_ref().and_then(|advice| text.strip_suffix(advice.as_str()));
        let reason = reason.map_or(text.as_str(), |reason| reason.trim_end_matches("; ")).to_owned();
        Self { reason, advice, needs_operator: error.fault() == Fault::Operator }
    }
}

impl From<OpenFailure> for PublishError {
    fn from(failure: OpenFailure) -> Self {
        match failure {
            OpenFailure::Setting(error) => Self::new(Fault::Operator, FaultScope::Session, error.to_string()),
            OpenFailure::Nowhere { reason, is_for_operator: true } => {
                Self::new(Fault::Operator, FaultScope::Session, reason)
            }
            OpenFailure::Nowhere { reason, is_for_operator: false } => Self::session_lost(reason),
            OpenFailure::Timeout(reason) => Self::session_lost(reason),
            OpenFailure::Client(error) => fault::of_session(error),
        }
    }
}

impl From<OpenFailure> for SubscriptionError {
    fn from(failure: OpenFailure) -> Self {
        match failure {
            OpenFailure::Setting(error) => Self::operator(error.to_string()),
            OpenFailure::Nowhere { reason, is_for_operator: true } => Self::operator(reason),
            OpenFailure::Nowhere { reason, is_for_operator: false } => Self::lost(reason),
            OpenFailure::Timeout(reason) => Self::lost(reason),
            OpenFailure::Client(error) => fault::of_subscription(error),
        }
    }
}
