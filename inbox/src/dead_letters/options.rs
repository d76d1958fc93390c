//! Options of consumers and redrives that concern dead letters.

/// How a consumer treats later messages of a key that has an open dead letter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum AfterDeadLetter {
    /// Later messages of the key take effect before the dead letter is redriven. The default.
    #[default]
    KeyGoesOn,
    /// Later messages of the key (of the same tenant and topic) are kept as dead letters with the
    /// reason [`Reason::Held`](crate::Reason::Held), and settled. When the dead letter before them
    /// is redriven or discarded, they are redriven automatically in the order of their arrival. One
    /// that fails then becomes an ordinary dead letter and holds those behind it. Use the same
    /// value in all processes of the consumer. Costs one query for each message or batch with a
    /// key.
    HoldKey,
}

/// Options of a redrive. Start from [`RedriveOptions::default`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RedriveOptions {
    /// Whether to apply a message that is older than the inbox remembers. First find out whether it
    /// took effect: the inbox knows only messages that still have a dead letter. The dead letter
    /// becomes the record of the effect, so redriving it, or another one of the same message, does
    /// nothing.
    pub accept_late: bool,
    /// The option of the consumer. When the consumer holds keys, a dead letter is not redriven
    /// while an earlier one of its key is open.
    pub after_dead_letter: AfterDeadLetter,
}

impl RedriveOptions {
    message::setters! {
        /// Sets whether to apply a message that is older than the inbox remembers.
        accept_late: bool,
        /// Sets the option of the consumer.
        after_dead_letter: AfterDeadLetter,
    }
}
