//! A lane: one channel that publishes window after window, each of one topic. Several lanes
//! overlap. So the wire is busy while one of them waits for its last confirms, and a queue that
//! confirms nothing delays only its topic.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use lapin::types::ShortString;
use lapin::{Channel, Error};
use message::{Fault, FaultScope, PublishError, Topic};
use tokio::time::Instant;

use super::alarms::BLOCKED;
use super::backlog::Backlog;
use super::confirm::{self, Break, RecordOutcome};
use super::connection::Connection;
use super::fault;
use super::suspects::Suspects;
use super::unrouted::Unlistened;
use super::window::Item;
use super::wire::{self, Bounds, Record};

/// Maximum time of one wait, before checking whether the broker blocks publishers.
const SLICE: Duration = Duration::from_secs(1);

/// Maximum number of topics that are remembered as stored. When they are forgotten, a refusal of
/// access stops such a topic instead of renewing the session.
const PUBLISHED_MAX: usize = 1_000;

/// The state that the lanes of a session share.
pub(super) struct Session {
    /// Messages that were submitted and not yet taken by a lane.
    pub(super) backlog: Backlog,
    /// When a window was last confirmed.
    pub(super) confirmed_at: Mutex<Option<Instant>>,
    /// Topics with a stored message.
    pub(super) published: Mutex<HashSet<Topic>>,
    /// The reason why the session is over. Messages that are still submitted are answered with it.
    pub(super) broken: OnceLock<Broken>,
    pub(super) exchange: ShortString,
    pub(super) unlistened: Arc<Unlistened>,
    pub(super) app_id: Option<ShortString>,
    pub(super) bounds: Bounds,
    pub(super) confirm_timeout: Duration,
}

impl Session {
    fn stored(&self, topic: &Topic) {
        let mut published = self.published.lock().unwrap_or_else(PoisonError::into_inner);
        if !published.contains(topic) {
            if published.len() >= PUBLISHED_MAX {
                published.clear();
            }
            published.insert(topic.clone());
        }
    }

    fn has_stored(&self, topic: &Topic) -> bool {
        self.published.lock().unwrap_or_else(PoisonError::into_inner).contains(topic)
    }

    /// Records that the broker has answered a window. A window whose messages were all refused
    /// here, before they were sent, shows nothing about the broker.
    fn confirmed(&self, fates: &[RecordOutcome]) {
        if fates.is_empty() {
            return;
        }
        *self.confirmed_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Returns whether another window was confirmed since then.
    fn has_confirmed_since(&self, begun_at: Instant) -> bool {
        self.confirmed_at.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|at| at >= begun_at)
    }

    /// Ends the session for all lanes; only the first reason counts.
    pub(super) fn fail(&self, connection: &Connection, cause: Break) -> &Broken {
        let blocked = connection.is_blocked();
        let broken = Broken { cause, blocked, confirm_timeout: self.confirm_timeout };
        self.broken.get_or_init(|| broken)
    }
}

/// The reason why a session ended.
#[derive(Debug, Clone)]
pub(super) struct Broken {
    cause: Break,
    blocked: bool,
    confirm_timeout: Duration,
}

impl Broken {
    fn error(&self) -> PublishError {
        match &self.cause {
            Break::Client(error) => fault::of_session(error.clone()),
            Break::Revoked(error) => PublishError::session_lost(format!(
                "rabbitmq refuses a topic that it accepted before in this session ({error}): a token expired, or a \
                 permission was withdrawn; logging in again"
            ))
            .with_source(error.clone()),
            Break::Timeout => {
                let hint = if self.blocked { ": it blocks publishers (memory or disk alarm)" } else { "" };
                let millis = self.confirm_timeout.as_millis();
                PublishError::session_lost(format!("rabbitmq confirmed nothing within {millis} ms{hint}"))
            }
            Break::ConfirmsOff => PublishError::new(
                Fault::Operator,
                FaultScope::Session,
                "rabbitmq answered without publisher confirms; does a proxy in between drop confirm.select?",
            ),
            Break::StrayReturn => PublishError::session_lost(
                "rabbitmq returned a message that was not published in this window",
            ),
        }
    }
}

/// One channel and the windows on it.
pub(super) struct Lane {
    session: Arc<Session>,
    connection: Arc<Connection>,
    channel: Channel,
}

impl Lane {
    pub(super) async fn open(session: Arc<Session>, connection: Arc<Connection>) -> Result<Self, Error> {
        let channel = connection.confirming_channel().await?;
        Ok(Self { session, connection, channel })
    }

    /// Publishes until the session is closed and its queue is empty.
    pub(super) async fn run(mut self) {
        let session = Arc::clone(&self.session);
        while let Some((topic, window)) = session.backlog.next().await {
            let items = window.into_items();
            if let Some(broken) = session.broken.get() {
                answer_all(items, broken);
            } else {
                let begun_at = Instant::now();
                match self.attempt(items).await {
                    Ok(()) => {}
                    Err((items, Break::Timeout)) if session.has_confirmed_since(begun_at) => {
                        self.give_up(items).await;
                    }
                    Err((items, cause)) => self.recover(items, cause).await,
                }
            }
            session.backlog.done(&topic);
        }
        self.connection.finish(&self.channel).await;
    }

    /// Publishes a group and answers all its messages, or returns them with the reason.
    async fn attempt(&self, items: Vec<Item>) -> Result<(), (Vec<Item>, Break)> {
        let (items, records) = self.encode(items);
        let Session { exchange, confirm_timeout, unlistened, .. } = &*self.session;
        let published = confirm::publish(&self.connection, &self.channel, exchange, &records);
        match self.in_time(published, *confirm_timeout).await.unwrap_or(Err(Break::Timeout)) {
            Ok(fates) => {
                self.session.confirmed(&fates);
                if let Some(item) = items.first().filter(|_| fates.contains(&RecordOutcome::Stored)) {
                    self.session.stored(&item.message.topic);
                }
                for (item, fate) in items.into_iter().zip(fates) {
                    let topic = &item.message.topic;
                    let outcome = match fate {
                        RecordOutcome::Stored => Ok(()),
                        RecordOutcome::Unroutable => unlistened.outcome(topic),
                        RecordOutcome::Rejected => Err(fault::nacked(topic)),
                    };
                    item.pending.answer(outcome);
                }
                Ok(())
            }
            Err(cause) => Err((items, cause)),
        }
    }

    /// Waits for confirms. The timeout starts over while an alarm blocks publishers: a new
    /// connection would publish the same messages again, some of which the broker has already read.
    async fn in_time<T>(&self, confirms: impl Future<Output = T>, timeout: Duration) -> Option<T> {
        let (mut confirms, mut left, mut is_told) = (pin!(confirms), timeout, false);
        while !left.is_zero() {
            let slice = left.min(SLICE);
            if let Ok(confirmed) = tokio::time::timeout(slice, &mut confirms).await {
                return Some(confirmed);
            }
            left = if self.connection.is_blocked() { timeout } else { left - slice };
            if left == timeout && !is_told {
                tracing::warn!("{BLOCKED}; waiting until the alarm ends");
                is_told = true;
            }
        }
        None
    }

    /// Encodes a group. A message that cannot be encoded is answered at once.
    fn encode(&self, items: Vec<Item>) -> (Vec<Item>, Vec<Record>) {
        let mut accepted = Vec::with_capacity(items.len());
        let mut records = Vec::with_capacity(items.len());
        for item in items {
            match wire::encode(&item.message, &self.session.bounds, self.session.app_id.as_ref()) {
                Ok(record) => {
                    records.push(record);
                    accepted.push(item);
                }
                Err(error) => item.pending.answer(Err(error)),
            }
        }
        (accepted, records)
    }

    /// Abandons a window whose queue confirms nothing while others do. The session continues
    /// without it, on a new channel. Later confirms on the old channel are ignored.
    async fn give_up(&mut self, items: Vec<Item>) {
        for item in items {
            let error = fault::unanswered(&item.message.topic, self.session.confirm_timeout);
            item.pending.answer(Err(error));
        }
        match self.connection.confirming_channel().await {
            Ok(channel) => self.channel = channel,
            Err(error) => self.fail([], Break::Client(error)),
        }
    }

    /// Recovers after a window broke off: searches for the culprit if one message closed the
    /// channel, otherwise ends the session.
    async fn recover(&mut self, mut group: Vec<Item>, mut cause: Break) {
        let mut suspects = Suspects::new();
        loop {
            let error = match cause {
                Break::Client(error) if fault::has_culprit(&error) => error,
                cause => return self.fail(group.into_iter().chain(suspects.into_rest()), cause),
            };
            let topic = group.first().map(|item| &item.message.topic);
            if fault::is_refused_access(&error) && topic.is_some_and(|topic| self.session.has_stored(topic)) {
                return self.fail(group.into_iter().chain(suspects.into_rest()), Break::Revoked(error));
            }
            tracing::warn!(%error, messages = group.len(), "rabbitmq closed a channel; searching for the message");
            if group.len() == 1 {
                self.condemn(group, &error, &mut suspects);
            } else {
                suspects.split(group);
            }
            match self.connection.confirming_channel().await {
                Ok(channel) => self.channel = channel,
                Err(error) => return self.fail(suspects.into_rest(), Break::Client(error)),
            }
            (group, cause) = loop {
                let Some(next) = suspects.next() else { return };
                if let Err(broken) = self.attempt(next).await {
                    break broken;
                }
            };
        }
    }

    /// Answers a message that alone closed the channel, and also the rest of its topic if the topic
    /// is closed.
    fn condemn(&self, culprit: Vec<Item>, error: &Error, suspects: &mut Suspects) {
        for item in culprit {
            let topic = item.message.topic.clone();
            let verdict = || fault::of_culprit(error.clone(), &topic, self.session.exchange.as_str());
            if verdict().scope() == FaultScope::Topic {
                suspects.take_topic(&topic).into_iter().for_each(|item| item.pending.answer(Err(verdict())));
            }
            item.pending.answer(Err(verdict()));
        }
    }

    /// Ends the session for all lanes.
    fn fail(&self, items: impl IntoIterator<Item = Item>, cause: Break) {
        answer_all(items, self.session.fail(&self.connection, cause));
    }
}

fn answer_all(items: impl IntoIterator<Item = Item>, broken: &Broken) {
    for item in items {
        item.pending.answer(Err(broken.error()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rabbitmq::config::Config;
    use crate::rabbitmq::window::WindowLimit;

    /// Goal: beside a queue that confirms nothing, only an answer of the broker shows that the
    /// connection works. Oracle: the state of the session after windows without and with answers.
    #[test]
    fn a_window_of_which_nothing_was_sent_is_no_confirmation() {
        let session = Session {
            backlog: Backlog::new(WindowLimit { messages_max: 1, bytes_max: 1 }, 1),
            confirmed_at: Mutex::default(),
            published: Mutex::default(),
            broken: OnceLock::new(),
            exchange: ShortString::default(),
            unlistened: Arc::new(Unlistened::new(&Config::new("amqp://localhost"))),
            app_id: None,
            bounds: Bounds { payload_bytes_max: 1, frame_bytes_max: 1 },
            confirm_timeout: Duration::from_secs(1),
        };
        let begun_at = Instant::now();
        session.confirmed(&[]);
        assert!(!session.has_confirmed_since(begun_at));
        session.confirmed(&[RecordOutcome::Rejected]);
        assert!(session.has_confirmed_since(begun_at));
    }
}
