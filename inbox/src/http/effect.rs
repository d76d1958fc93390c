//! The effect of a request, as its handler's answer reports it.

use http::StatusCode;

use super::layer::LayerOptions;
use crate::keys::KeyStore;
use crate::keys::OnExpired;

/// The effect of a request, for answers whose status does not tell it. A handler adds it to the
/// response as an extension. In axum:
/// `(Extension(Effect::Unknown), StatusCode::BAD_GATEWAY).into_response()`.
///
/// | | held by a transaction | on lease |
/// |---|---|---|
/// | `Happened` | what the handler wrote is kept, also with a 4xx | a key whose answer is not stored is not given back |
/// | `None` | what the handler wrote is rolled back, also with a 2xx | a key whose answer is not stored is given back, also under [`OnExpired::Refuse`] |
/// | `Unknown` | as without it: a transaction knows | the answer is not stored, and the key not given back |
/// | without it | a 4xx is rolled back ([`IdempotencyLayer::keep_when`](super::IdempotencyLayer::keep_when)) | a key whose answer is not stored is given back under [`OnExpired::TakeOver`] only |
///
/// A key on lease that is not given back waits for an operator under `Refuse` and for the end of
/// its lease under `TakeOver`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Effect {
    /// The request took effect.
    Happened,
    /// The request had no effect, and will have none.
    None,
    /// It is not known whether it took effect: the other service did not answer.
    Unknown,
}

/// The end of a key on lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The answer is stored.
    Complete,
    /// The next one who asks runs the request.
    Release,
    /// It stays in progress.
    LeaveUnknown,
}

/// Decides about a key on lease.
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
    /// Whether what a handler wrote in its transaction stays.
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
