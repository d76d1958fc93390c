//! Tasks and random numbers: all that a component needs from its process, besides the clock.
//!
//! In a real process they come from tokio and from the thread's generator. A simulation supplies
//! its own, so that one seed gives one course of events: it decides when each task proceeds, stops
//! all tasks of a process at once, and draws every number. Time is tokio's, which a simulation
//! pauses.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::task::JoinHandle;

/// The source of tasks and random numbers; the real one by default. Cheap to clone.
#[derive(Clone, Default)]
pub struct Runtime(Option<Arc<dyn Simulated>>);

/// A simulated process.
#[cfg_attr(not(feature = "testing"), expect(unreachable_pub, reason = "reachable for simulations"))]
pub trait Simulated: Send + Sync + 'static {
    /// Returns a random number in `0.0..1.0`.
    fn uniform(&self) -> f64;

    /// Returns whether a task of the process may proceed. It is called before every poll of a task.
    /// While it is pending, the task is suspended at its current point; it is called again after a
    /// wake-up.
    fn poll_turn(&self, context: &mut Context<'_>) -> Poll<()>;
}

impl Runtime {
    /// Makes the runtime of a simulated process.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn simulated(process: Arc<dyn Simulated>) -> Self {
        Self(Some(process))
    }

    /// Returns a random number in `0.0..1.0`, to spread events that would otherwise coincide.
    #[must_use]
    pub fn uniform(&self) -> f64 {
        self.0.as_ref().map_or_else(rand::random, |process| process.uniform())
    }

    /// Spawns a task.
    pub fn spawn<T>(&self, task: T) -> JoinHandle<T::Output>
    where
        T: Future<Output: Send> + Send + 'static,
    {
        tokio::spawn(self.clone().run(task))
    }

    /// Runs a future as a task of the process, for callers that spawn in another way. Cancel-safe
    /// if the future is.
    pub async fn run<T: Future>(self, task: T) -> T::Output {
        let mut task = pin!(task);
        poll_fn(|context| {
            if let Some(process) = &self.0 {
                ready!(process.poll_turn(context));
            }
            task.as_mut().poll(context)
        })
        .await
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Runtime(simulated)" } else { "Runtime" })
    }
}
