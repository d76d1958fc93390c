//! A connection of one process to the relays' database.

use std::sync::Arc;

use checker::Promise;
use outbox_log::LogError;

use crate::fault::Call;
use crate::process::ProcessId;
use crate::world::{State, World, pass};

/// A connection. After a failed or an abandoned call it can no longer be used.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) world: Arc<World>,
    pub(super) process: ProcessId,
    is_usable: bool,
    /// The history in which it was opened.
    pub(super) history: u64,
}

/// The duration of a call, and its failure: before it was applied (`Some(false)`) or after.
struct Plan {
    before: u64,
    after: u64,
    failure: Option<bool>,
}

impl State {
    fn plan(&mut self, call: Call) -> Plan {
        let mut plan = Plan { before: self.latency(), after: self.latency(), failure: None };
        if let Some(at) = self.armed.calls.iter().position(|(armed, _)| *armed == call) {
            plan.failure = Some(self.armed.calls.swap_remove(at).1);
        }
        if let Some(at) = self.armed.slow.iter().position(|(armed, ..)| *armed == call) {
            let (_, millis, is_before) = self.armed.slow.swap_remove(at);
            let slow = if is_before { &mut plan.before } else { &mut plan.after };
            *slow += u64::from(millis);
        }
        plan
    }
}

impl Connection {
    pub(super) async fn open(world: &Arc<World>, process: ProcessId) -> Result<Self, LogError> {
        let history = world.lock().outbox.history;
        let mut connection = Self { world: Arc::clone(world), process, is_usable: true, history };
        connection.call(Call::Connect, |_| ()).await?;
        Ok(connection)
    }

    pub(super) async fn call<T: Send>(
        &mut self,
        call: Call,
        apply: impl FnOnce(&mut State) -> T + Send,
    ) -> Result<T, LogError> {
        let plan = {
            let mut state = self.world.lock();
            if !self.is_usable {
                let text = format!("{} goes on with a connection that failed: {call:?}", self.process);
                state.found(Promise::Fencing, text);
            }
            state.plan(call)
        };
        self.is_usable = false;
        pass(plan.before).await;
        let done = {
            let mut state = self.world.lock();
            let is_gone = self.history < state.outbox.connected_since;
            let is_done = plan.failure != Some(false) && !state.outbox.is_down() && !is_gone;
            is_done.then(|| apply(&mut state))
        };
        pass(plan.after).await;
        match done {
            Some(done) if plan.failure.is_none() => {
                self.is_usable = true;
                Ok(done)
            }
            _ => {
                let process = self.process;
                self.world.lock().note(format_args!("{process} {call:?} failed"));
                Err(LogError::Unavailable { reason: format!("simulated, at {call:?}"), source: None })
            }
        }
    }
}
