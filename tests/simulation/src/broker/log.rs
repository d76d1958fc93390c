//! Stored records, and requests in flight.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use message::{
    FaultScope, MaxInFlightPerKey, Message, MessageId, OrderingKey, PublishError, Receipts, Submission,
    Ticket,
};
use rand::Rng;
use tokio::time::Instant;

use super::endpoint::{Endpoints, Verdict};
use super::group::Group;
use super::silence::{Arrival, HeldKeys, Silence, topic};
use crate::breakage::Breakage;
use crate::process::ProcessId;
use crate::schedule::{Defect, MISSING, Schedule};
use crate::world::{State, World};

/// A session of a publisher, as the broker sees it.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) process: ProcessId,
    /// Dropped with the session, so that the other side learns that no more receipts come.
    receipts: Option<Receipts>,
    /// Whether nothing is confirmed any more. Messages in flight may still arrive.
    pub(super) is_severed: bool,
    /// Whether a message of a pipelined session failed.
    is_failed: bool,
    /// Keys with a message that the client of a pipelined session itself refused. Until that
    /// message is sent again, the client refuses every other one of the key. `None`: it has refused
    /// another one as well, so it refuses the key for good.
    refused: BTreeMap<OrderingKey, Option<MessageId>>,
    /// Unanswered messages, in the order in which they were handed over.
    pub(super) outstanding: BTreeMap<Ticket, (MessageId, Option<OrderingKey>)>,
    /// Keys with a message that was lost on its way: nothing behind it arrives.
    cut: HashSet<Option<OrderingKey>>,
    last_arrival: Instant,
    /// Keys with a message that waits for a silent topic.
    held: HeldKeys,
}

/// Longer than any schedule takes.
const FOR_GOOD: Duration = Duration::from_secs(86_400);

/// An action of the broker at some time.
#[derive(Debug)]
enum Task {
    Arrive(u64, Submission),
    Answer(u64, Ticket, Result<(), PublishError>),
}

/// The broker.
#[derive(Debug)]
pub(crate) struct Broker {
    pub(crate) log: Vec<Message>,
    stored: HashSet<MessageId>,
    pub(crate) max_in_flight_per_key: MaxInFlightPerKey,
    pub(super) submission_len: usize,
    pub(super) sessions: BTreeMap<u64, Session>,
    tasks: BTreeMap<(Instant, u64), Task>,
    numbers: u64,
    pub(crate) down_until: Option<Instant>,
    /// Topics that accept nothing: until when, and whether they are missing.
    pub(crate) topics_down: BTreeMap<u8, (Instant, bool)>,
    pub(crate) silence: Silence,
    pub(crate) endpoints: Endpoints,
    /// A key for whose messages the answers come later, and by how much.
    pub(crate) slow: Option<(String, Duration)>,
    pub(crate) group: Group,
    /// The time and the message of every confirmation.
    pub(crate) confirmed: Vec<(u64, u32)>,
    /// Number of sends of each message.
    pub(crate) sent: BTreeMap<u32, u32>,
}

impl Broker {
    pub(crate) fn new(schedule: &Schedule, breakage: Option<Breakage>) -> Self {
        Self {
            log: Vec::new(),
            stored: HashSet::new(),
            max_in_flight_per_key: schedule.max_in_flight_per_key,
            submission_len: schedule.submission_len.into(),
            sessions: BTreeMap::new(),
            tasks: BTreeMap::new(),
            numbers: 0,
            down_until: None,
            topics_down: BTreeMap::from([(MISSING, (Instant::now() + FOR_GOOD, true))]),
            silence: Silence::new(breakage == Some(Breakage::SilenceSpreads)),
            endpoints: Endpoints::default(),
            slow: None,
            group: Group::new(schedule.is_key_exclusive),
            confirmed: Vec::new(),
            sent: BTreeMap::new(),
        }
    }

    /// Returns whether a message is stored.
    pub(crate) fn has(&self, id: MessageId) -> bool {
        self.stored.contains(&id)
    }

    pub(crate) fn is_down(&self) -> bool {
        self.down_until.is_some_and(|until| Instant::now() < until)
    }

    /// Returns whether nothing is in flight, and everything was delivered and settled.
    pub(crate) fn is_quiet(&self) -> bool {
        self.tasks.is_empty() && self.group.is_done(self.log.len())
    }

    /// Returns the number of open sessions.
    pub(crate) fn sessions_len(&self) -> usize {
        self.sessions.values().filter(|session| !session.is_severed).count()
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Begins a session. The first message arrives after `warm_up` at the earliest.
    pub(super) fn connect(&mut self, process: ProcessId, receipts: Receipts, warm_up: Duration) -> u64 {
        let number = self.number();
        let session = Session {
            process,
            receipts: Some(receipts),
            is_severed: false,
            is_failed: false,
            refused: BTreeMap::new(),
            outstanding: BTreeMap::new(),
            cut: HashSet::new(),
            last_arrival: Instant::now() + warm_up,
            held: HeldKeys::new(),
        };
        self.sessions.insert(number, session);
        number
    }

    fn schedule(&mut self, at: Instant, task: Task) {
        let number = self.number();
        self.tasks.insert((at, number), task);
    }

    /// Returns the error with which a pipelined client itself refuses a message: its topic is
    /// missing, or an earlier message of its key was refused.
    fn turn_away(&mut self, number: u64, message: &Message) -> Option<PublishError> {
        let is_missing = self.topics_down.get(&topic(message)).is_some_and(|(_, is_missing)| *is_missing);
        let error = self.topic_failure(message).filter(|_| is_missing);
        let session = self.sessions.get_mut(&number)?;
        if let Some(key) = &message.key {
            match session.refused.get_mut(key) {
                Some(Some(refused)) if *refused == message.id => _ = session.refused.remove(key),
                Some(refused) => {
                    *refused = None;
                    return Some(lost("an earlier message of its key was refused"));
                }
                None => {}
            }
            if error.is_some() {
                session.refused.insert(key.clone(), Some(message.id));
            }
        }
        error.map(PublishError::contained)
    }

    /// Returns when a message of a slow key is answered.
    fn answered_late(&self, message: &Message) -> Option<Instant> {
        let (key, by) = self.slow.as_ref()?;
        (message.key.as_ref()?.as_str() == key).then(|| Instant::now() + *by)
    }

    fn topic_failure(&self, message: &Message) -> Option<PublishError> {
        let (_, is_missing) =
            self.topics_down.get(&topic(message)).filter(|(until, _)| Instant::now() < *until)?;
        Some(if *is_missing {
            PublishError::topic_unavailable("simulated: no such topic")
        } else {
            PublishError::topic_busy("simulated: the queue is full")
        })
    }
}

impl State {
    /// Sends a message to the broker. In a pipelined session no message overtakes another;
    /// otherwise any may.
    pub(super) fn send(&mut self, number: u64, submission: Submission) {
        let at = Instant::now() + Duration::from_millis(self.latency());
        let is_early = self.is_broken(Breakage::ConfirmBeforeStore);
        let Some(session) = self.broker.sessions.get_mut(&number) else { return };
        let ticket = submission.ticket;
        if session.is_severed {
            return;
        }
        session.outstanding.insert(ticket, (submission.message.id, submission.message.key.clone()));
        let is_pipelined = self.broker.max_in_flight_per_key == MaxInFlightPerKey::Pipelined;
        if is_pipelined && let Some(error) = self.broker.turn_away(number, &submission.message) {
            return self.broker.schedule(Instant::now(), Task::Answer(number, ticket, Err(error)));
        }
        let Some(session) = self.broker.sessions.get_mut(&number) else { return };
        let at = if is_pipelined { at.max(session.last_arrival) } else { at };
        session.last_arrival = at;
        self.broker.schedule(at, Task::Arrive(number, submission));
        if is_early {
            self.broker.schedule(Instant::now(), Task::Answer(number, ticket, Ok(())));
        }
    }

    fn arrive(&mut self, number: u64, submission: Submission) {
        let is_pipelined = self.broker.max_in_flight_per_key == MaxInFlightPerKey::Pipelined;
        let Some(session) = self.broker.sessions.get_mut(&number) else { return };
        let key = submission.message.key.clone().filter(|_| is_pipelined);
        let held = key.as_ref().and_then(|key| session.held.get(key)).copied();
        let answered_at = match self.broker.silence.arrival(topic(&submission.message), held) {
            Arrival::Now => None,
            Arrival::AnsweredAt(at) => Some(at),
            Arrival::At(at) => {
                key.map(|key| session.held.insert(key, at));
                return self.broker.schedule(at, Task::Arrive(number, submission));
            }
        };
        self.arrived(number, submission, answered_at);
    }

    fn arrived(&mut self, number: u64, submission: Submission, answered_at: Option<Instant>) {
        let Submission { ticket, message } = submission;
        let message = Arc::unwrap_or_clone(message);
        let name = self.name(message.id);
        let is_lucky: bool = self.rng.random();
        let answered_at = answered_at.or_else(|| self.broker.answered_late(&message));
        let forgets = self.is_broken(Breakage::ConfirmBeforeStore);
        let Some(session) = self.broker.sessions.get_mut(&number) else { return };
        if session.is_severed {
            if forgets || session.is_failed || session.cut.contains(&message.key) || !is_lucky {
                session.cut.insert(message.key);
            } else if let Some(error) = self.refusal(&message) {
                self.fail(number, &error);
            } else {
                self.note(format_args!("m{name} arrives after its session"));
                self.store(message);
            }
            return;
        }
        if session.is_failed {
            return self.answer_later(number, ticket, Err(lost("an earlier message of the session failed")));
        }
        if let Some(is_stored) = self.armed.receipts.pop() {
            self.note(format_args!("m{name} is lost with its session, stored: {is_stored}"));
            if is_stored && self.refusal(&message).is_none() {
                self.store(message);
            } else if let Some(session) = self.broker.sessions.get_mut(&number) {
                session.cut.insert(message.key);
            }
            return self.sever(number, true);
        }
        let refusal = self.refusal(&message).or_else(|| self.refuse_once());
        let verdict = match refusal {
            Some(error) => Verdict::Refused(error),
            None => self.broker.endpoints.arrival(topic(&message), message.id),
        };
        let answered_at = match &verdict {
            Verdict::TakenUntil(at) => Some(*at),
            _ => answered_at,
        };
        let refusal = match verdict {
            Verdict::Refused(error) => Some(error),
            Verdict::Taken | Verdict::TakenUntil(_) => None,
        };
        match refusal {
            Some(error) => {
                self.note(format_args!("m{name} is refused: {error}"));
                self.fail(number, &error);
                self.answer_later(number, ticket, Err(error));
            }
            None => {
                self.note(format_args!("m{name} is stored"));
                self.store(message);
                match answered_at {
                    Some(at) => self.broker.schedule(at, Task::Answer(number, ticket, Ok(()))),
                    None => self.answer_later(number, ticket, Ok(())),
                }
            }
        }
    }

    fn refuse_once(&mut self) -> Option<PublishError> {
        self.armed.refusals = self.armed.refusals.checked_sub(1)?;
        Some(PublishError::refused("simulated: refused once"))
    }

    fn refusal(&self, message: &Message) -> Option<PublishError> {
        let is_edited = message.payload.starts_with(b"edited");
        if self.defect(message.id) == Defect::Refused && !is_edited {
            return Some(PublishError::refused("simulated: poison"));
        }
        self.broker.topic_failure(message)
    }

    fn store(&mut self, message: Message) {
        self.broker.stored.insert(message.id);
        self.broker.log.push(message);
    }

    fn fail(&mut self, number: u64, error: &PublishError) {
        let is_pipelined = self.broker.max_in_flight_per_key == MaxInFlightPerKey::Pipelined;
        if let Some(session) = self.broker.sessions.get_mut(&number)
            && (is_pipelined || error.scope() == FaultScope::Session)
        {
            session.is_failed = true;
        }
    }

    fn answer_later(&mut self, number: u64, ticket: Ticket, outcome: Result<(), PublishError>) {
        let at = Instant::now() + Duration::from_millis(self.latency());
        self.broker.schedule(at, Task::Answer(number, ticket, outcome));
    }

    fn answer(&mut self, number: u64, ticket: Ticket, outcome: Result<(), PublishError>) {
        if let Some(session) = self.broker.sessions.get_mut(&number)
            && let Some((id, _)) = session.outstanding.remove(&ticket)
            && let Some(receipts) = &session.receipts
        {
            let is_confirmed = outcome.is_ok();
            receipts.send(ticket, outcome);
            if is_confirmed {
                let confirmed = (self.millis(), self.name(id));
                self.broker.confirmed.push(confirmed);
            }
        }
    }

    /// Ends a session: the outcome of unanswered messages is unknown.
    pub(super) fn sever(&mut self, number: u64, is_answered: bool) {
        let is_assumed = self.is_broken(Breakage::ConfirmAssumed);
        let Some(session) = self.broker.sessions.get_mut(&number).filter(|session| !session.is_severed)
        else {
            return;
        };
        session.is_severed = true;
        let outstanding = std::mem::take(&mut session.outstanding);
        let receipts = session.receipts.take();
        if let Some(receipts) = receipts.filter(|_| is_answered) {
            for ticket in outstanding.into_keys() {
                let outcome = if is_assumed { Ok(()) } else { Err(lost("simulated: the session broke")) };
                receipts.send(ticket, outcome);
            }
        }
    }

    /// Ends every session.
    pub(crate) fn sever_all(&mut self) {
        let numbers: Vec<_> = self.broker.sessions.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.sever(number, true));
    }

    /// Ends the sessions of a process that died.
    pub(crate) fn sever_process(&mut self, process: ProcessId) {
        let is_its = |(number, session): (&u64, &Session)| (session.process == process).then_some(*number);
        let numbers: Vec<_> = self.broker.sessions.iter().filter_map(is_its).collect();
        numbers.into_iter().for_each(|number| self.sever(number, false));
    }

    /// Runs everything that is due. Returns when the next task is due.
    fn serve_due(&mut self) -> Option<Instant> {
        while let Some(entry) = self.broker.tasks.first_entry() {
            if entry.key().0 > Instant::now() {
                return Some(entry.key().0);
            }
            match entry.remove() {
                Task::Arrive(number, submission) => self.arrive(number, submission),
                Task::Answer(number, ticket, outcome) => self.answer(number, ticket, outcome),
            }
        }
        None
    }
}

fn lost(why: &str) -> PublishError {
    PublishError::session_lost(why)
}

/// Runs the broker without end.
pub(crate) async fn serve(world: Arc<World>) {
    loop {
        let (next, before) = {
            let mut state = world.lock();
            let before = state.broker.log.len();
            (state.serve_due(), before)
        };
        if world.lock().broker.log.len() > before {
            world.log_changed.notify_waiters();
        }
        match next {
            Some(next) => {
                tokio::select! {
                    biased;
                    () = world.broker_due.notified() => {}
                    () = tokio::time::sleep_until(next) => {}
                }
            }
            None => world.broker_due.notified().await,
        }
    }
}
