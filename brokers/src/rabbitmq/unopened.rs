//! Explains why no connection with a broker was opened.

use std::time::SystemTime;

use message::{Fault, FaultScope, PublishError, SubscriptionError, error_text};
use secrecy::ExposeSecret as _;

use super::credential::Proof;
use super::fault;
use super::token::Expiry;
use crate::inspect::InspectError;
use crate::oauth::{Token, TokenError};
use crate::settings::InvalidSetting;

/// The reason why no connection was opened.
pub(super) enum OpenFailure {
    /// A secret or certificate file cannot be read.
    Setting(InvalidSetting),
    /// There is no token.
    Token(TokenError),
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
    /// Returns the failure of all hosts, with host and port of each; for a single host its own
    /// failure. It needs an operator only if the failure of each host does.
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

    /// Adds what is known about a token that a host refused: that the one in the password's file
    /// has expired, or details of the one that an issuer gave.
    pub(super) fn with_token(self, proof: Option<&Proof>) -> Self {
        let now = SystemTime::now();
        let expiry = match proof {
            Some(Proof::Token(token)) => return self.with_issued(token),
            Some(Proof::Password(password)) => Expiry::of(password.expose_secret()),
            None => None,
        };
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

    /// Adds details of an issuer's token to a refusal.
    fn with_issued(self, token: &Token) -> Self {
        let is_answer = matches!(self, Self::Client(_) | Self::Nowhere { .. });
        if !is_answer {
            return self;
        }
        let told = Told::of(self);
        if !told.needs_operator {
            // A broker ends the connection of a login that is larger than its first frame.
            let bytes = token.value().expose_secret().len();
            let advice = told.advice.unwrap_or_default();
            let reason = if bytes > FIRST_FRAME_BYTES {
                format!(
                    "{}; the token has {bytes} bytes: see initial_frame_max of rabbitmq, {advice}",
                    told.reason
                )
            } else {
                format!("{}; {advice}", told.reason)
            };
            return Self::Nowhere { reason, is_for_operator: false };
        }
        let (owner, left) = (token.owner_or("an unnamed client"), token.left(SystemTime::now()).as_secs());
        let reason = format!(
            "{}: the token of {owner} from rabbitmq.oauth, which expires in {left} s by this machine's clock; check \
             that rabbitmq trusts the issuer's key, its audience (resource_server_id) and its scopes, and compare the \
             clocks",
            told.reason
        );
        Self::Nowhere { reason, is_for_operator: true }
    }
}

/// Size of a token in bytes that may not fit into the first frame of a login: 4,096 bytes before
/// RabbitMQ 3.12, with the names that go with it.
const FIRST_FRAME_BYTES: usize = 3_500;

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
            OpenFailure::Token(error) => error.into(),
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
            OpenFailure::Token(error) => error.into(),
            OpenFailure::Nowhere { reason, is_for_operator: true } => Self::operator(reason),
            OpenFailure::Nowhere { reason, is_for_operator: false } => Self::lost(reason),
            OpenFailure::Timeout(reason) => Self::lost(reason),
            OpenFailure::Client(error) => fault::of_subscription(error),
        }
    }
}

impl From<OpenFailure> for InspectError {
    fn from(failure: OpenFailure) -> Self {
        match failure {
            OpenFailure::Setting(error) => Self::operator(error.to_string()),
            OpenFailure::Token(error) => error.into(),
            other => {
                let error = PublishError::from(other);
                Self { fault: error.fault(), reason: error.to_string() }
            }
        }
    }
}
