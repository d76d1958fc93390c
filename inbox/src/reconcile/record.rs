//! Records of an inbox that are compared.

use message::Fingerprint;
use uuid::Uuid;

/// A message that took effect and is remembered by the inbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remembered {
    /// The message id.
    pub id: Uuid,
    /// The tenant for which it took effect; empty for none.
    pub tenant: String,
    /// The fingerprint of event type, content type and payload, which must not change for this id.
    pub fingerprint: Fingerprint,
}

/// A message that a consumer knows and that has not taken effect.
///
/// The most urgent variant is the greatest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unfinished {
    /// An operator discarded its dead letter, or it was closed in another way.
    Closed,
    /// It will be retried.
    Retrying,
    /// It is an open dead letter: an operator has to decide.
    DeadLetter,
}
