//! The cases as data.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

use crate::{Broker, Capabilities, Failure, Outcome, publisher, subscription};

/// Timeout of a case. Each case normally takes a few seconds.
pub(crate) const DEADLINE: Duration = Duration::from_secs(600);

/// One case: a name, and a check of one promise.
#[derive(Clone, Copy)]
pub struct Case {
    /// `publisher` or `subscription`.
    pub suite: &'static str,
    /// The promise as a name, such as `a_drop_answers_what_is_in_flight`.
    pub name: &'static str,
    needs: Need,
    body: Body,
}

type Body = fn(Arc<dyn Broker>, Capabilities) -> BoxFuture<'static, Outcome>;

/// The ability beyond the contract that a case needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    Nothing,
    SharedWork,
    SizeLimit,
}

/// Returns all cases; see [`Case::lacks`] for those that a broker cannot run.
#[must_use]
pub fn cases() -> Vec<Case> {
    publisher::cases().into_iter().chain(subscription::cases()).collect()
}

impl Case {
    pub(crate) const fn new(suite: &'static str, name: &'static str, needs: Need, body: Body) -> Self {
        Self { suite, name, needs, body }
    }

    /// Returns the reason why a broker with these capabilities cannot run the case, or `None` if it
    /// can.
    #[must_use]
    pub fn lacks(&self, capabilities: &Capabilities) -> Option<&'static str> {
        match self.needs {
            Need::SharedWork if !capabilities.shares_work => Some("members of a group do not share the work"),
            Need::SizeLimit if !capabilities.limits_size => Some("messages have no limit"),
            Need::Nothing | Need::SharedWork | Need::SizeLimit => None,
        }
    }

    /// Runs the case on its own broker, on a tokio runtime with I/O and time. Not cancel-safe:
    /// topics and messages of the case stay at the broker.
    ///
    /// # Errors
    /// The promise is broken, the broker [lacks](Self::lacks) something, or the case does not end
    /// within ten minutes; a panic of the case or the adapter is an error with its text.
    pub async fn run(&self, broker: Arc<dyn Broker>, capabilities: Capabilities) -> Outcome {
        if let Some(lacking) = self.lacks(&capabilities) {
            return Err(format!("{self:?} cannot run: {lacking}").into());
        }
        attend(AssertUnwindSafe((self.body)(broker, capabilities)).catch_unwind()).await
    }
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.suite, self.name)
    }
}

async fn attend(body: impl Future<Output = Result<Outcome, Box<dyn std::any::Any + Send>>>) -> Outcome {
    match tokio::time::timeout(DEADLINE, body).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(panic)) => Err(panic_text(panic.as_ref()).into()),
        Err(_) => Err(Failure::from(format!("not finished after {DEADLINE:?}"))),
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a text").to_owned()
}
