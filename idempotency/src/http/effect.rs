//! The effect of a request, as its handler reports it.

use http::StatusCode;

use super::layer::LayerOptions;
use crate::{KeyStore, OnExpired};

/// The effect of a request, for responses whose status does not show it. A handler adds it to the
/// response as an extension. In axum: `(Extension(Effect::Unknown),
/// StatusCode::BAD_GATEWAY).into_response()`.
///
/// | | key held by a transaction | key held on lease |
/// |---|---|---|
/// | `Happened` | the handler's writes are kept, even with a 4xx | if the response is not stored, the key is not released |
/// | `None` | the handler's writes are rolled back, even with a 2xx | if the response is not stored, the key is released, even under [`OnExpired::Refuse`] |
/// | `Unknown` | same as without an `Effect`: a transaction knows its effect | the response is not stored, and the key is not released |
/// | without it | a 4xx is rolled back ([`IdempotencyLayer::keep_when`](super::IdempotencyLayer::keep_when)) | if the response is not stored, the key is released only under [`OnExpired::TakeOver`] |
///
/// A key on lease that is not released waits: under `Refuse` for an operator, under `TakeOver` for
/// the end of its lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Effect {
    /// The request took effect.
    Happened,
    /// The request had no effect, and will have none.
    None,
    /// It is unknown whether the request took effect: the other service did not answer.
    Unknown,
}

/// How a key on lease ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The response is stored.
    Complete,
    /// The key is released; the next caller runs the request.
    Release,
    /// The key stays in progress.
    LeaveUnknown,
}

/// Decides how a key on lease ends.
pub(super) fn end_of_lease(effect: Option<Effect>, is_stored: bool, on_expired: OnExpired) -> End {
    match (effect, is_stored) {
        (Some(Effect::Unknown), _) | (Some(Effect::Happened), false) => End::LeaveUnknown,
        (_, true) => End::Complete,
        (Some(Effect::None), false) => End::Release,
        (None, false) => match on_expired {
            OnExpired::TakeOver => End::Release,
            OnExpired::Refuse => End::LeaveUnknown,
        },
    }
}

impl<DB: KeyStore> LayerOptions<DB> {
    /// Returns whether the handler's writes in its transaction are kept.
    pub(super) fn keeps(&self, effect: Option<Effect>, status: StatusCode) -> bool {
        match effect {
            Some(Effect::Happened) => true,
            Some(Effect::None) => false,
            Some(Effect::Unknown) | None => self.keeps_status(status),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_given_back_only_when_nothing_happened_or_a_second_effect_does_no_harm() {
        for (effect, is_stored, refuse, take_over) in [
            (None, true, End::Complete, End::Complete),
            (None, false, End::LeaveUnknown, End::Release),
            (Some(Effect::None), true, End::Complete, End::Complete),
            (Some(Effect::None), false, End::Release, End::Release),
            (Some(Effect::Happened), true, End::Complete, End::Complete),
            (Some(Effect::Happened), false, End::LeaveUnknown, End::LeaveUnknown),
            (Some(Effect::Unknown), true, End::LeaveUnknown, End::LeaveUnknown),
            (Some(Effect::Unknown), false, End::LeaveUnknown, End::LeaveUnknown),
        ] {
            let ends = [OnExpired::Refuse, OnExpired::TakeOver].map(|p| end_of_lease(effect, is_stored, p));
            assert_eq!(ends, [refuse, take_over], "{effect:?} {is_stored}");
        }
    }
}
