//! The state of the model.

/// The state of the saga.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SagaState {
    /// Its steps run.
    Running,
    /// Its steps are undone.
    Undoing,
    /// It ran to its end.
    Finished,
    /// Everything is undone.
    Undone,
}

/// The undo of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Undo {
    /// There is nothing to undo.
    None,
    /// It must be undone if the saga stops.
    Pending,
    /// It was undone.
    Done,
}

/// The row of the local step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StepRow {
    /// It has not begun.
    Absent,
    /// Its effect is committed.
    Done,
}

/// The row of the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallRow {
    /// It has not begun.
    Absent,
    /// It is being made, or is about to be; its outcome is unknown.
    Calling,
    /// It succeeded.
    Done,
    /// It was abandoned; its outcome is unknown.
    GaveUp,
}

/// The row of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RequestRow {
    /// It has not begun.
    Absent,
    /// The message is sent, and no reply is accepted yet.
    Waiting,
    /// The reply is its result.
    Done,
    /// The reply did not come in time.
    TimedOut,
}

/// The stored saga, as a worker reads it when it claims it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rows {
    /// Its state.
    pub saga: SagaState,
    /// The local step, and its undo.
    pub step: (StepRow, Undo),
    /// The call and its undo.
    pub call: (CallRow, Undo),
    /// The request, and its undo.
    pub request: (RequestRow, Undo),
    /// Replies that arrived while the saga ran.
    pub replies: u8,
    /// Whether a reply is stored.
    pub has_reply: bool,
    /// Whether an operator has cancelled the saga.
    pub is_cancelled: bool,
    /// Whether the request has timed out.
    pub is_late: bool,
}

/// The service that is called. It honours keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Bank {
    /// It has received nothing.
    Nothing,
    /// It has charged.
    Charged,
    /// It has refunded, or refuses to charge because a refund came first.
    Refunded,
}

/// A worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Worker {
    /// It holds no saga.
    Idle,
    /// It holds the saga, or believes so.
    Holds {
        /// The epoch of its claim.
        epoch: u8,
        /// The rows as it read them, with its own changes since then.
        view: Rows,
        /// Whether it has an answer of the bank that it has not stored yet.
        has_answer: bool,
    },
}

/// The whole state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    /// Whether the function stops after its last step.
    pub stops: bool,
    /// The tables.
    pub rows: Rows,
    /// The epoch of the last claim.
    pub epoch: u8,
    /// Whether a worker owns the saga.
    pub is_owned: bool,
    /// Whether the saga is due.
    pub is_due: bool,
    /// How often the effect of the local step happened, and how often it was undone.
    pub effects: (u8, u8),
    /// The bank, and how often it moved money in either direction.
    pub bank: (Bank, u8),
    /// Whether the request was sent, and whether it was cancelled.
    pub shipping: (bool, bool),
    /// The workers.
    pub workers: [Worker; 2],
    /// Crashes and lost answers so far.
    pub faults: u8,
    /// Replies so far.
    pub replies: u8,
    /// Whether a change was refused because its epoch was stale.
    pub is_fenced: bool,
    /// Whether a reply arrived that no saga waits for any longer.
    pub has_late_reply: bool,
    /// Whether a second reply was suppressed.
    pub has_second_reply: bool,
}
