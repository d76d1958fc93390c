//! A simulated process: its tasks can be suspended, stopped all at once, and dropped at any await.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use message::{Runtime, Simulated};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::sync::Notify;

/// The id of one life of a process. A restarted process has another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub u32);

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Running,
    Paused,
    Dead,
}

#[derive(Debug)]
struct State {
    mode: Mode,
    /// Wakers of the tasks that were woken while the process was paused.
    waiting: Vec<Waker>,
    /// The number of polls until it dies, if a death is planned.
    turns_left: Option<u32>,
    rng: SmallRng,
}

/// One life of one process.
#[derive(Debug)]
pub struct Process {
    /// Its id.
    pub id: ProcessId,
    /// Probability that a ready task is sent to the back of the queue.
    shuffle: f64,
    state: Mutex<State>,
    died: Notify,
}

impl Process {
    /// Creates a process that is about to start. `shuffle`, in `0.0..1.0`, is the probability that
    /// a ready task has to wait for the others.
    #[must_use]
    pub fn new(id: ProcessId, seed: u64, shuffle: f64) -> Arc<Self> {
        let rng = SmallRng::seed_from_u64(seed);
        let state = State { mode: Mode::Running, waiting: Vec::new(), turns_left: None, rng };
        Arc::new(Self { id, shuffle, state: Mutex::new(state), died: Notify::new() })
    }

    /// Returns the runtime for a component of the process.
    #[must_use]
    pub fn host(self: &Arc<Self>) -> Runtime {
        Runtime::simulated(Arc::<Self>::clone(self))
    }

    /// Suspends all of its tasks at their current points. Time continues.
    pub fn pause(&self) {
        let mut state = self.state();
        if state.mode == Mode::Running {
            state.mode = Mode::Paused;
        }
    }

    /// Resumes its tasks.
    pub fn resume(&self) {
        let mut state = self.state();
        if state.mode == Mode::Paused {
            state.mode = Mode::Running;
            state.waiting.drain(..).for_each(Waker::wake);
        }
    }

    /// Kills it after this many more polls of its tasks, at any await.
    pub fn die_after(&self, turns: u32) {
        self.state().turns_left = Some(turns);
    }

    /// Kills it now.
    pub fn die(&self) {
        self.state().mode = Mode::Dead;
        self.died.notify_one();
    }

    /// Waits for its death.
    pub async fn death(&self) {
        self.died.notified().await;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Simulated for Process {
    fn uniform(&self) -> f64 {
        self.state().rng.random()
    }

    fn poll_turn(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state();
        match state.mode {
            Mode::Dead => return Poll::Pending,
            Mode::Paused => {
                if !state.waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                    state.waiting.push(context.waker().clone());
                }
                return Poll::Pending;
            }
            Mode::Running => {}
        }
        if let Some(left) = &mut state.turns_left {
            if *left == 0 {
                state.mode = Mode::Dead;
                self.died.notify_one();
                return Poll::Pending;
            }
            *left -= 1;
        }
        if state.rng.random_bool(self.shuffle) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    }
}
