//! The state of the model.

/// The state of the saga.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SagaState {
    /// Its steps are run.
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
    /// It is to be undone should the saga stop.
    Pending,
    /// It was undone.
    Done,
}

/// The row of the local step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StepRow {
    /// It has not begun.
    Absent,
    /// Its effect is there.
    Done,
}

/// The row of the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallRow {
    /// It has not begun.
    Absent,
    /// It is made, or about to be; nobody knows its outcome.
    Calling,
    /// It succeeded.
    Done,
    /// It was given up; nobody knows its outcome.
    GaveUp,
}

/// The row of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RequestRow {
    /// It has not begun.
    Absent,
    /// The message is out, the reply is not looked at.
    Waiting,
    /// The reply is its result.
    Done,
    /// The reply did not come in time.
    TimedOut,
}

/// The stored saga: what a worker reads when it takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rows {
    /// Its state.
    pub saga: SagaState,
    /// The local step, and its undo.
    pub step: (StepRow, Undo),
    /// The call, and its undo.
    pub call: (CallRow, Undo),
    /// The request, and its undo.
    pub request: (RequestRow, Undo),
    /// Replies that came while the saga ran.
    pub replies: u8,
    /// A reply is kept.
    pub has_reply: bool,
    /// An operator wants it undone.
    pub is_cancelled: bool,
    /// The request's time is up.
    pub is_late: bool,
}

/// The service that is called. It honours keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Bank {
    /// It has heard nothing.
    Nothing,
    /// It has charged.
    Charged,
    /// It has refunded, or refuses to charge because a refund came first.
    Refunded,
}

/// A worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Worker {
    /// It has nothing.
    Idle,
    /// It has the saga, or believes so: its epoch, and what it knows.
    Holds {
        /// The epoch of its claim.
        epoch: u8,
        /// The rows as it read them, with its own changes since.
        view: Rows,
        /// It has an answer of the bank that it has not stored yet.
        has_answer: bool,
    },
}

/// Everything.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    /// Whether the function stops after its last step.
    pub stops: bool,
    /// The tables.
    pub rows: Rows,
    /// The epoch of the last claim.
    pub epoch: u8,
    /// Whether a worker has the saga.
    pub is_owned: bool,
    /// Whether its turn has come.
    pub is_due: bool,
    /// How often the local step's effect happened, and was undone.
    pub effects: (u8, u8),
    /// The bank, and how often it moved money in either direction.
    pub bank: (Bank, u8),
    /// Whether the request's message is out, and whether it was taken back.
    pub shipping: (bool, bool),
    /// The workers.
    pub workers: [Worker; 2],
    /// Crashes and lost answers so far.
    pub faults: u8,
    /// Replies so far.
    pub replies: u8,
    /// A change was refused because its epoch was over.
    pub is_fenced: bool,
    /// A reply came that nobody waits for any more.
    pub has_late_reply: bool,
    /// A second reply was suppressed.
    pub has_second_reply: bool,
}
