//! Submits like the relay, within the key window of the session. A message is submitted again on a
//! new session if a lost session left it without a verdict, but never after a verdict.

use std::collections::BTreeSet;

use crate::Failure;
use crate::session::{Answer, End, PATIENCE, Session};
use message::{Connector, FaultScope, MaxInFlightPerKey, Message, OrderingKey, PublishError};

/// Maximum number of sessions. It is above the need of any case; beyond it, the adapter makes no
/// progress.
const SESSIONS_MAX: usize = 20;

/// The outcome of all messages.
#[derive(Debug)]
pub struct Sent {
    /// The numbers of the messages that the broker holds.
    pub confirmed: BTreeSet<usize>,
    /// The refused messages, with their verdicts.
    pub refused: Vec<(usize, PublishError)>,
    /// The number of sessions that were needed.
    pub sessions: usize,
}

/// Sends all messages until each is confirmed or refused. Not cancel-safe.
///
/// # Errors
/// A session breaks its contract: a receipt is missing or superfluous, or a success comes behind a
/// failure. Twenty sessions were not enough.
pub async fn send(connector: &dyn Connector, messages: &[Message]) -> Result<Sent, Failure> {
    let mut desk = Desk { messages, states: vec![State::Waiting; messages.len()], refused: Vec::new() };
    for sessions in 1..=SESSIONS_MAX {
        let session = Session::open(connector).await?;
        desk.work(session).await?;
        if desk.states.iter().all(|state| matches!(state, State::Confirmed | State::Refused)) {
            let of = |(number, state): (usize, &State)| (*state == State::Confirmed).then_some(number);
            let confirmed = desk.states.iter().enumerate().filter_map(of).collect();
            return Ok(Sent { confirmed, refused: desk.refused, sessions });
        }
    }
    Err(format!("not everything has a verdict after {SESSIONS_MAX} sessions").into())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    InFlight,
    Confirmed,
    Refused,
}

/// The outcomes of a session, which must fit its key window.
struct Ledger<'a> {
    messages: &'a [Message],
    window: MaxInFlightPerKey,
    first_failure: Option<usize>,
    last_success: Option<usize>,
    /// Failures after which the session continued.
    contained: Vec<usize>,
    successes: Vec<usize>,
}

impl Ledger<'_> {
    /// Checks [`MaxInFlightPerKey::Pipelined`]: after a message fails, no later message of its
    /// session succeeds. If the failure is contained, this holds only for later messages of the
    /// same key. Such a session gets all messages at once, in the order of their numbers.
    fn check(&mut self, (number, outcome): &Answer) -> Result<(), Failure> {
        match outcome {
            Ok(()) => {
                self.last_success = self.last_success.max(Some(*number));
                self.successes.push(*number);
            }
            Err(error) if error.is_contained() => self.contained.push(*number),
            // A contained failure holds back later messages of its key.
            Err(error) if error.scope() == FaultScope::Session && self.is_behind_contained(*number) => {}
            Err(_) => {
                self.first_failure = Some(self.first_failure.map_or(*number, |first| first.min(*number)));
            }
        }
        if self.window == MaxInFlightPerKey::One {
            return Ok(());
        }
        let late = |failure: usize, success: usize| {
            Err(format!("message {success} succeeded after message {failure} of its session failed").into())
        };
        if let (Some(failure), Some(success)) = (self.first_failure, self.last_success)
            && failure < success
        {
            return late(failure, success);
        }
        match self.successes.iter().find(|success| self.is_behind_contained(**success)) {
            Some(success) => late(self.contained[0], *success),
            None => Ok(()),
        }
    }

    fn is_behind_contained(&self, number: usize) -> bool {
        let key = |number: usize| self.messages[number].key.as_ref();
        let is_before = |failure: &usize| *failure < number && key(*failure) == key(number);
        key(number).is_some() && self.contained.iter().any(is_before)
    }
}

struct Desk<'a> {
    messages: &'a [Message],
    states: Vec<State>,
    refused: Vec<(usize, PublishError)>,
}

impl Desk<'_> {
    /// Runs one session until it is over or no message is left.
    async fn work(&mut self, mut session: Session) -> Result<(), Failure> {
        let window = session.max_in_flight_per_key();
        let mut ledger = Ledger {
            messages: self.messages,
            window,
            first_failure: None,
            last_success: None,
            contained: Vec::new(),
            successes: Vec::new(),
        };
        loop {
            let batch = self.batch(window);
            if !batch.is_empty() {
                session.submit(batch).await;
            }
            if session.owed() == 0 {
                break;
            }
            let answer = session.answer().await?;
            ledger.check(&answer)?;
            if self.note(answer, window) {
                break;
            }
        }
        for answer in session.end(End::Close(PATIENCE)).await? {
            ledger.check(&answer)?;
            self.note(answer, window);
        }
        Ok(())
    }

    /// Returns the messages that may be submitted now, in order.
    fn batch(&mut self, window: MaxInFlightPerKey) -> Vec<(usize, Message)> {
        let key = |number: usize| self.messages[number].key.as_ref();
        let in_flight = (0..self.messages.len()).filter(|number| self.states[*number] == State::InFlight);
        let mut busy: BTreeSet<&OrderingKey> = in_flight.filter_map(key).collect();
        let mut batch = Vec::new();
        for (number, message) in self.messages.iter().enumerate() {
            if self.states[number] != State::Waiting {
                continue;
            }
            let free = key(number).is_none_or(|key| busy.insert(key));
            if free || window == MaxInFlightPerKey::Pipelined {
                batch.push((number, message.clone()));
            }
        }
        for (number, _) in &batch {
            self.states[*number] = State::InFlight;
        }
        batch
    }

    /// Records an answer. Returns whether it ends the session.
    fn note(&mut self, (number, outcome): Answer, window: MaxInFlightPerKey) -> bool {
        match outcome {
            Ok(()) => {
                self.states[number] = State::Confirmed;
                false
            }
            Err(error) if error.scope() == FaultScope::Session => {
                self.states[number] = State::Waiting;
                true
            }
            Err(error) => {
                self.states[number] = State::Refused;
                // The contract of a pipelined session: after one message fails, no later message
                // succeeds.
                let is_over = window == MaxInFlightPerKey::Pipelined && !error.is_contained();
                self.refused.push((number, error));
                is_over
            }
        }
    }
}
