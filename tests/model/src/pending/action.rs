//! The actions that can happen next, and the states that follow.

use stateright::Model;

use super::state::{Database, Leader, MESSAGES_MAX, Process, State, Writer};
use super::{Pending, promise};
use crate::sets::{Entry, Set};

/// One step of one participant. Transactions are numbered from 0, processes 0 and 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// The next message of a transaction draws its id.
    Draw(usize),
    /// A transaction commits its messages with their pending rows.
    Commit(usize),
    /// A producer writes its pending rows after its transaction. Only with a breakage.
    Note(usize),
    /// A transaction is rolled back, or its producer crashes.
    Rollback(usize),
    /// Retention deletes the rows of all messages that are not pending, and the counter of ids is
    /// set back to the highest one that is left.
    SetCounterBack,
    /// The replica gets nothing more.
    Lag,
    /// The replica becomes the server, with rows and counter after [`Action::SetCounterBack`].
    FailOver,
    /// A process is granted the lease; the previous holder may not notice.
    Acquire(usize),
    /// The server begins to take the read view of a process.
    BeginLook(usize),
    /// A process reads pending rows. Its read view leaves out this transaction.
    Look(usize, Option<Entry>),
    /// A process sends a message.
    Send(usize, Entry),
    /// A message that was sent arrives, and takes effect if it is the first time.
    Arrive(Entry),
    /// A process gets the confirmation of a message.
    Confirm(usize, Entry),
    /// A process stores its checkpoint. With a stale epoch it learns that it has lost the lease.
    Store(usize),
    /// The same, but the answer is lost with the session.
    StoreUnheard(usize),
}

impl Action {
    fn is_fault(self) -> bool {
        matches!(self, Self::SetCounterBack | Self::FailOver | Self::StoreUnheard(_))
    }
}

impl Model for Pending {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            database: Database::default(),
            replica: None,
            run: 0,
            writers: vec![Writer::Open(0); self.transactions.len()],
            drawn: [0; MESSAGES_MAX],
            highest_drawn: 0,
            before: [Set::default(); MESSAGES_MAX],
            network: Set::default(),
            effects: Set::default(),
            is_turned: false,
            processes: [Process::Standby, Process::Standby],
            faults: 0,
            has_come_late: false,
            has_come_back: false,
            has_reused: false,
            has_fenced: false,
            has_left_out: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.server_actions(state, actions);
        for (number, process) in state.processes.iter().enumerate() {
            if let Process::Leading(leader) = process {
                self.leader_actions(number, leader, state, actions);
            }
        }
        // Processes that wait are alike. One that crashed is one that does nothing any more.
        let standby = state.processes.iter().position(|process| *process == Process::Standby);
        let may_acquire = state.database.epoch < self.epochs_max;
        actions.extend(standby.filter(|_| may_acquire).map(Action::Acquire));
        actions.extend(state.network.iter().map(Action::Arrive));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        state.faults += u8::from(action.is_fault());
        match action {
            Action::Draw(number) => self.draw(&mut state, number),
            Action::Commit(number) => self.commit(&mut state, number),
            Action::Note(number) => self.note(&mut state, number),
            Action::Rollback(number) => self.end(&mut state, number),
            Action::SetCounterBack => self.set_counter_back(&mut state),
            Action::Lag => state.replica = Some(state.database),
            Action::FailOver => self.fail_over(&mut state)?,
            Action::Acquire(number) => {
                state.database.epoch += 1;
                state.processes[number] = Process::Leading(Leader::granted(state.database.epoch, state.run));
            }
            Action::BeginLook(number) => self.begin_look(&mut state, number),
            Action::Look(number, left_out) => self.look(&mut state, number, left_out),
            Action::Send(number, message) => {
                let leader = state.processes[number].leader()?;
                leader.sent = leader.sent.with(message);
                state.network = state.network.with(message);
            }
            Action::Arrive(message) => state.arrive(message),
            Action::Confirm(number, message) => {
                let leader = state.processes[number].leader()?;
                leader.confirmed = leader.confirmed.with(message);
            }
            Action::Store(number) => self.store(&mut state, number, true),
            Action::StoreUnheard(number) => self.store(&mut state, number, false),
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<stateright::Property<Self>> {
        promise::properties()
    }
}
