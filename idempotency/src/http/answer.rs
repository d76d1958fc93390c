//! Chooses the problem to answer with. Pure.

use std::error::Error;
use std::time::Duration;

use http::StatusCode;
use message::InvalidId;
use message::token::Drift;
use outbox::CommitError;

use super::effect::Effect;
use super::header::InvalidKey;
use super::problem::Problem;
use crate::{ClaimError, Claimed};

/// When to ask again, if only an operator or the return of a service can change the answer.
const STUCK_RETRY_AFTER: Duration = Duration::from_secs(60);
const UNAVAILABLE_RETRY_AFTER: Duration = Duration::from_secs(1);

pub(super) fn missing() -> Problem {
    Problem::new(
        StatusCode::BAD_REQUEST,
        "idempotency_key_missing",
        "The request has no Idempotency-Key.",
        "Send the header Idempotency-Key with a random value, such as a UUID in double quotes: a new value \
         for each new request, the same value for each retry.",
    )
}

pub(super) fn malformed(error: &InvalidKey) -> Problem {
    Problem::new(
        StatusCode::BAD_REQUEST,
        "idempotency_key_malformed",
        "The Idempotency-Key cannot be read.",
        error.to_string(),
    )
}

pub(super) fn of_nobody() -> Problem {
    Problem::new(
        StatusCode::FORBIDDEN,
        "idempotency_key_of_nobody",
        "The caller of this request is unknown.",
        "An idempotency key belongs to a tenant or account; authenticate first.",
    )
}

pub(super) fn too_large(limit: usize) -> Problem {
    Problem::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "request_body_too_large",
        "The body of the request is too large.",
        format!("A request with an idempotency key may have a body of at most {limit} bytes."),
    )
}

pub(super) fn too_slow(limit: Duration) -> Problem {
    Problem::new(
        StatusCode::REQUEST_TIMEOUT,
        "request_body_too_slow",
        "The body of the request did not arrive in time.",
        format!(
            "It must be complete within {limit:?}. Nothing was done; send the request again with the same \
             key."
        ),
    )
}

pub(super) fn unreadable(error: &dyn Error) -> Problem {
    tracing::debug!(%error, "the request body ended early");
    Problem::new(
        StatusCode::BAD_REQUEST,
        "request_body_unreadable",
        "The body of the request could not be read.",
        "Nothing was done; send the request again with the same key.",
    )
}

/// Returns the problem to answer with when a key was not acquired; `None` for a replay.
pub(super) fn not_acquired<T>(claimed: &Claimed<T>) -> Option<Problem> {
    let conflict = StatusCode::CONFLICT;
    Some(match claimed {
        Claimed::Acquired(_) | Claimed::Replay(_) => return None,
        Claimed::InFlight { retry_after } => Problem::new(
            conflict,
            "idempotency_key_in_flight",
            "A request with this Idempotency-Key is being processed.",
            "Send the request again later with the same key to get its outcome.",
        )
        .after(*retry_after),
        Claimed::Stuck { .. } => Problem::new(
            conflict,
            "idempotency_key_stuck",
            "The outcome of the request with this Idempotency-Key is unknown.",
            "The service stopped in the middle of it, or another service did not answer, and an operator \
             has to decide. Do not send it with another key: it may have taken effect.",
        )
        .after(STUCK_RETRY_AFTER),
        Claimed::Discarded { .. } => Problem::new(
            conflict,
            "idempotency_key_discarded",
            "The request with this Idempotency-Key was discarded.",
            "The service stopped in the middle of it, and an operator decided not to repeat it. If you \
             still need it, find out whether it took effect, then send it with a new key.",
        ),
        Claimed::Conflict { .. } => Problem::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "idempotency_key_reused",
            "This Idempotency-Key was used for another request.",
            "Its method, path, query or body differs from that of the first request with this key. Nothing \
             was done; use a new key for each new request.",
        ),
    })
}

/// Why a response cannot be stored.
#[derive(Debug)]
pub(super) enum NotStorable {
    /// Its body has an unknown length, or more than `bytes_max` bytes.
    Large { bytes_max: usize },
    /// Its body has trailers.
    Trailers,
    /// Its body ended with an error.
    BrokenOff(Box<dyn Error + Send + Sync>),
    /// Its body was not complete in time.
    Late { timeout: Duration },
}

/// The effect of a request whose response cannot be stored, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    /// Its writes are rolled back, or it had no effect.
    Nothing,
    /// It took effect.
    Effect,
    /// It may have taken effect.
    Unknown,
}

impl Told {
    /// Returns what a handler with effects elsewhere reports: explicitly, or else by its status.
    pub(super) fn of(effect: Option<Effect>, status: StatusCode) -> Self {
        match effect {
            Some(Effect::None) => Self::Nothing,
            Some(Effect::Happened) => Self::Effect,
            None if !status.is_client_error() => Self::Effect,
            Some(Effect::Unknown) | None => Self::Unknown,
        }
    }
}

/// Returns the problem for a response that cannot be stored: a bug of the service, or a body that
/// was lost on its way from another one.
pub(super) fn not_storable(told: Told, reason: &NotStorable) -> Problem {
    let effect = match told {
        Told::Nothing => "Nothing was done",
        Told::Effect => "The request took effect",
        Told::Unknown => "The request may have taken effect",
    };
    let reason = match reason {
        NotStorable::Large { bytes_max } => {
            format!("the response is a stream of unknown length or has over {bytes_max} bytes")
        }
        NotStorable::Trailers => String::from("the response has trailers"),
        NotStorable::BrokenOff(error) => {
            tracing::warn!(error = %Chain(error.as_ref()), "the body of a response broke off");
            String::from("the body of the response broke off")
        }
        NotStorable::Late { timeout } => {
            tracing::warn!(?timeout, "the body of a response was not complete in time");
            format!("the body of the response was not complete within {timeout:?}")
        }
    };
    Problem::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "response_not_storable",
        "The service's response cannot be stored.",
        format!("{effect}, but {reason}, and could not be repeated for the same Idempotency-Key."),
    )
}

pub(super) fn unavailable(detail: &str) -> Problem {
    Problem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "idempotency_unavailable",
        "The service cannot determine the outcome of the request now.",
        format!("{detail}; send the request again with the same key"),
    )
    .after(UNAVAILABLE_RETRY_AFTER)
}

fn failed() -> Problem {
    Problem::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "idempotency_failed",
        "The service could not process the request.",
        "Nothing was stored under the Idempotency-Key.",
    )
}

fn not_a_token(invalid: &InvalidId) -> Problem {
    Problem::new(
        StatusCode::BAD_REQUEST,
        "idempotency_key_malformed",
        "The Idempotency-Key is not a version 7 UUID.",
        format!("{invalid}. Nothing was done."),
    )
}

/// Returns the problem for a key whose time is not accepted.
fn drifted(drift: &Drift) -> Problem {
    let (code, title) = match drift {
        Drift::TooOld { .. } => {
            ("idempotency_key_too_old", "The Idempotency-Key is older than the service remembers.")
        }
        Drift::TooFarAhead { .. } => {
            ("idempotency_key_too_far_ahead", "The Idempotency-Key was generated in the future.")
        }
    };
    Problem::new(StatusCode::BAD_REQUEST, code, title, format!("{drift}. Nothing was done now."))
}

/// Returns the problem to answer with when the database could not claim the key.
pub(super) fn not_claimed(error: &ClaimError) -> Problem {
    match error {
        ClaimError::NotAToken(invalid) => return not_a_token(invalid),
        ClaimError::Drift(drift) => return drifted(drift),
        _ => {}
    }
    if error.fault().is_temporary() {
        tracing::warn!(error = %Chain(error), "an idempotency key could not be claimed");
        return unavailable("its database is not available, and nothing was done");
    }
    tracing::error!(error = %Chain(error), "an idempotency key could not be claimed");
    failed()
}

/// Returns the problem for a transaction that was not committed, or whose outcome is unknown.
pub(super) fn not_committed(error: &CommitError) -> Problem {
    if !error.is_rolled_back() {
        tracing::warn!(error = %Chain(error), "it is unknown whether a request was committed");
        return unavailable("its database did not answer, and the request may have been processed or not");
    }
    if error.is_innocent() {
        tracing::warn!(error = %Chain(error), "a request was rolled back");
        unavailable("its database could not commit, and nothing was done")
    } else {
        tracing::error!(error = %Chain(error), "a request was rolled back");
        failed()
    }
}

/// Returns the problem to answer with when the handler has answered but still uses its transaction.
pub(super) fn still_in_use() -> Problem {
    tracing::error!(
        "a handler has answered while its transaction was still in use; the request is rolled back"
    );
    failed()
}

/// Returns the problem for a key whose stored outcome is not a response, because something other
/// than this layer used the key.
pub(super) fn not_a_response() -> Problem {
    tracing::error!("the value stored under an idempotency key is not a response");
    failed()
}

struct Chain<'a>(&'a (dyn Error + 'static));

impl std::fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)?;
        let mut source = self.0.source();
        while let Some(error) = source {
            write!(f, ": {error}")?;
            source = error.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use message::Fingerprint;
    use outbox::UnknownCommit;
    use time::OffsetDateTime;

    #[test]
    fn every_refusal_has_its_status_and_says_when_to_come_again() {
        let at = OffsetDateTime::UNIX_EPOCH;
        let after = Duration::from_secs(7);
        for (claimed, status, retry_after) in [
            (Claimed::InFlight { retry_after: after }, 409, Some(after)),
            (Claimed::Stuck { since: at }, 409, Some(STUCK_RETRY_AFTER)),
            (Claimed::Discarded { decided_at: at }, 409, None),
            (Claimed::Conflict { stored: Fingerprint::from([0; 32]) }, 422, None),
        ] {
            let problem = not_acquired::<()>(&claimed).unwrap();
            assert_eq!((problem.status.as_u16(), problem.retry_after), (status, retry_after), "{claimed:?}");
        }
        assert_eq!(not_acquired(&Claimed::Acquired(())), None);
    }

    #[test]
    fn a_response_that_is_not_stored_claims_no_more_than_its_handler() {
        let (ok, refused) = (StatusCode::OK, StatusCode::UNPROCESSABLE_ENTITY);
        for (effect, status, told) in [
            (None, ok, Told::Effect),
            (None, refused, Told::Unknown),
            (Some(Effect::None), ok, Told::Nothing),
            (Some(Effect::None), refused, Told::Nothing),
            (Some(Effect::Happened), refused, Told::Effect),
            (Some(Effect::Unknown), ok, Told::Unknown),
        ] {
            assert_eq!(Told::of(effect, status), told, "{effect:?} {status}");
        }
    }

    #[test]
    fn a_lost_conflict_may_be_sent_again_and_a_bug_may_not() {
        let rolled_back = |source: Option<sqlx::Error>| {
            let source = source.map(|source| Box::new(source) as Box<dyn Error + Send + Sync>);
            not_committed(&CommitError::RolledBack { reason: "x", source }).status.as_u16()
        };
        assert_eq!(rolled_back(Some(sqlx::Error::PoolTimedOut)), 503);
        assert_eq!(rolled_back(Some(sqlx::Error::RowNotFound)), 500);
        assert_eq!(rolled_back(None), 500);
        let source = Box::new(sqlx::Error::WorkerCrashed);
        let unknown = CommitError::Unknown { commit: UnknownCommit::default(), source };
        assert_eq!(not_committed(&unknown).status.as_u16(), 503);
    }
}
