//! Leads: moves pages, receipts and checkpoints between database, machine and broker while the
//! lease is held.

mod asking;
mod ending;
mod storing;
mod trial;

use std::sync::Arc;
use std::time::Duration;

use message::crash_points::reached;
use message::{Connector, FaultScope, PublishError, Runtime};
use outbox_log::{BrokerTrouble, CheckpointStore, Cursor, EntryId, Lease, LogError, LogReader};
use time::OffsetDateTime;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use self::ending::{ended_by_checkpointer, ended_by_reader};
use self::storing::committed;
use self::trial::Trial;
use crate::blocks::Blocks;
use crate::broker_session::{BrokerEvent, BrokerSession};
use crate::checkpointer::{Checkpointer, CheckpointerEnd, Command, Report};
use crate::crash_points;
use crate::due::Due;
use crate::event::{Event, News};
use crate::machine::Machine;
use crate::options::EngineOptions;
use crate::reader::{Answer, Ask, ReadPage, Reader};
use crate::telemetry::Telemetry;
use crate::transactions::{Commits, Continued};
use crate::wake::Pace;

/// The reason why leading ended.
#[derive(Debug)]
pub(crate) enum Ended {
    /// Asked to stop: drained, checkpointed, lease released.
    Stopped,
    /// Another process has taken over.
    LeaseLost,
    /// The database failed: take the lease and load the cursor again.
    Failed(LogError),
    /// Two entries share this id. Their state in memory must not be stored.
    SharedId(EntryId),
}

/// The end of a term.
#[derive(Debug)]
pub(crate) struct Term {
    pub(crate) ended: Ended,
    /// Whether some published messages may be unstored, so that the next term publishes them again:
    /// a checkpoint was on its way, or the term was still in its trial.
    pub(crate) is_unstored: bool,
}

/// Callback that sees the machine after every step.
pub type Observer = Arc<dyn Fn(&Machine) + Send + Sync>;

/// The parts and settings that leading needs.
pub(crate) struct Lead {
    pub(crate) reader: Box<dyn LogReader>,
    pub(crate) checkpointer: Box<dyn CheckpointStore>,
    pub(crate) lease: Lease,
    /// When the lease was requested.
    pub(crate) asked_at: Instant,
    pub(crate) cursor: Cursor,
    pub(crate) blocks: Blocks,
    pub(crate) connector: Arc<dyn Connector>,
    pub(crate) settings: EngineOptions,
    pub(crate) hint: Arc<Notify>,
    pub(crate) stop: CancellationToken,
    pub(crate) telemetry: Telemetry,
    pub(crate) host: Runtime,
    pub(crate) observer: Option<Observer>,
    /// The broker transactions to publish in, and where they continue.
    pub(crate) continued: Option<Continued>,
    /// Whether the term has had a session with the broker.
    pub(crate) session: watch::Sender<bool>,
    /// Whether the term before could not store its last checkpoint.
    pub(crate) follows_unstored: bool,
}

/// Interval between checks for pauses, short enough that a pause takes effect within a second.
const PAUSE_LOOK_INTERVAL: Duration = Duration::from_millis(400);

/// Number of checks for silent destinations within `silent_after`.
const SILENCE_LOOKS: u32 = 20;

struct Driver {
    machine: Machine,
    broker_session: BrokerSession,
    settings: EngineOptions,
    telemetry: Telemetry,
    host: Runtime,
    pages: mpsc::Receiver<ReadPage>,
    asks: mpsc::Sender<Ask>,
    answers: mpsc::Receiver<Answer>,
    commands: mpsc::Sender<Command>,
    /// The error that keeps the relay from its broker, for operators.
    trouble: watch::Sender<Option<BrokerTrouble>>,
    /// Whether the term has had a session. Then the problem that an earlier term recorded is
    /// cleared.
    session: watch::Sender<bool>,
    reports: mpsc::UnboundedReceiver<Report>,
    batch_len: usize,
    /// Whether a checkpoint is on its way.
    storing: bool,
    /// Whether that checkpoint stores an exception that will become due.
    stores_due: bool,
    /// Whether a query is in flight.
    asked: bool,
    /// The kind of query to try next; the kinds take turns.
    turn: usize,
    due: Due,
    /// When to check for pauses again.
    pauses_at: Instant,
    draining: Option<Instant>,
    /// When the lease was taken: the engine counts time from here.
    began_at: Instant,
    observer: Option<Observer>,
    /// The state of the broker transactions, if messages are published in them.
    commits: Option<Commits>,
    /// Set while few messages are published, until checkpoints are stored again.
    trial: Option<Trial>,
}

impl Lead {
    /// Leads until asked to stop, the lease is lost or the database fails. Not cancel-safe: stop it
    /// with the token.
    pub(crate) async fn run(self) -> Term {
        let (pages_in, pages) = mpsc::channel(1);
        let (asks, asks_out) = mpsc::channel(1);
        let (answers_in, answers) = mpsc::channel(1);
        // Room for one checkpoint, one flush and the release.
        let (commands, commands_out) = mpsc::channel(3);
        let (reports_in, reports) = mpsc::unbounded_channel();
        let (trouble, trouble_out) = watch::channel(None);
        let settings = self.settings;
        let (trust, renew_interval) = Checkpointer::intervals(&settings);
        let (trusted_in, trusted) = watch::channel(self.asked_at + trust);
        let reader = Reader {
            log: self.reader,
            pages: pages_in,
            asks: asks_out,
            answers: answers_in,
            hint: self.hint,
            limit: Reader::limit(&settings),
            pace: Pace::new(settings.poll_min, settings.poll_max),
        };
        let checkpointer = Checkpointer {
            log: self.checkpointer,
            lease: self.lease,
            commands: commands_out,
            reports: reports_in,
            trouble: trouble_out,
            trusted_until: trusted_in,
            trust,
            renew_interval,
        };
        // With a broker transaction, the broker has stored the checkpoint already.
        let trial = (self.follows_unstored && self.continued.is_none()).then(Trial::new);
        let machine = Machine::new(settings.clone(), self.cursor.clone(), self.blocks);
        let commits = self.continued.as_ref().map(|continued| Commits::new(continued, self.lease.epoch));
        let machine = match self.continued {
            Some(continued) => machine.with_left_before(continued.recovered.settled),
            None => machine,
        };
        // Aborted when this future is dropped, so that no task keeps its connection.
        let mut reader = AbortOnDropHandle::new(self.host.spawn(reader.run(self.cursor)));
        let mut checkpointer = AbortOnDropHandle::new(self.host.spawn(checkpointer.run()));
        let mut driver = Driver {
            machine,
            broker_session: BrokerSession::new(
                self.connector,
                settings.backoff(),
                trusted.clone(),
                self.telemetry.clone(),
                self.host.clone(),
            ),
            settings,
            telemetry: self.telemetry,
            host: self.host,
            pages,
            asks,
            answers,
            commands,
            trouble,
            session: self.session,
            reports,
            batch_len: 1,
            storing: false,
            stores_due: false,
            asked: false,
            turn: 0,
            due: Due::new(Instant::now()),
            pauses_at: Instant::now() + PAUSE_LOOK_INTERVAL,
            draining: None,
            began_at: Instant::now(),
            observer: self.observer,
            commits,
            trial,
        };
        let ended = driver.drive(&mut reader, &mut checkpointer, trusted, &self.stop).await;
        // The cause does not matter: a checkpoint that hangs ends the term by its lease, and the
        // reader may be the first to notice that the database is gone.
        let is_unstored = !matches!(ended, Ended::Stopped) && (driver.storing || driver.trial.is_some());
        Term { ended, is_unstored }
    }
}

impl Driver {
    async fn drive(
        &mut self,
        reader: &mut AbortOnDropHandle<Result<(), LogError>>,
        checkpointer: &mut AbortOnDropHandle<Result<CheckpointerEnd, LogError>>,
        mut trusted: watch::Receiver<Instant>,
        stop: &CancellationToken,
    ) -> Ended {
        let mut tick = tokio::time::interval(self.settings.checkpoint_interval);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut silence = tokio::time::interval(self.settings.silent_after / SILENCE_LOOKS);
        silence.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if let Some(observe) = &self.observer {
                observe(&self.machine);
            }
            if let Some(id) = self.machine.shared_id() {
                return Ended::SharedId(id);
            }
            self.act();
            if let Some(ended) = self.commit() {
                return ended;
            }
            if self.drained() {
                return self.finish(checkpointer).await;
            }
            let trusted_until = *trusted.borrow_and_update();
            // The order: first events that end the term; then events that come at most once per
            // checkpoint, query or interval, and so cannot starve the rest; then the two streams.
            // Pages go before receipts, to keep the publisher busy. The room in the window bounds
            // how many pages can come in a row.
            tokio::select! {
                biased;
                ended = &mut *checkpointer => return ended_by_checkpointer(ended),
                ended = &mut *reader => return ended_by_reader(ended),
                // The lease could not be renewed in time: stop now, whatever the database answers
                // later.
                () = tokio::time::sleep_until(trusted_until) => {
                    if *trusted.borrow() <= trusted_until {
                        return Ended::LeaseLost;
                    }
                }
                () = sleep_until(self.draining) => return self.finish(checkpointer).await,
                () = stop.cancelled(), if self.draining.is_none() => self.begin_draining(),
                Some(report) = self.reports.recv() => self.on_report(&report),
                committed = committed(&mut self.commits) => match committed {
                    Ok(checkpoint) => self.storing = self.commands.try_send(Command::Store(checkpoint)).is_ok(),
                    Err(error) => return Ended::Failed(error),
                },
                Some(answer) = self.answers.recv() => self.on_answer(answer),
                _ = tick.tick() => {
                    self.telemetry.load(self.machine.load());
                    self.telemetry.unrouted(&self.broker_session.take_unrouted());
                    // A trial and the end of a term store as little as they can.
                    if self.trial.is_none() && self.draining.is_none() {
                        self.machine.make_room();
                    }
                    self.store();
                }
                // A transaction has its own timeout, and is answered as a whole.
                _ = silence.tick(), if self.commits.is_none() => {
                    self.machine.set_now(self.began_at.elapsed());
                    self.machine.look_for_silence(self.host.uniform());
                    self.prolong_trial();
                }
                () = sleep_until(self.due.at()), if self.draining.is_none() => {
                    let is_cheap = self.machine.readmitted_len() < self.settings.page_entries;
                    self.due.begin(Instant::now(), is_cheap);
                }
                () = tokio::time::sleep_until(self.pauses_at), if !self.asked && self.draining.is_none() => {}
                Some(page) = self.pages.recv(), if self.may_read() => {
                    self.telemetry.read(page.page.entries.len());
                    if let Some(commits) = &mut self.commits {
                        commits.read();
                    }
                    self.machine.page(&page.difference, page.page);
                }
                event = self.broker_session.next() => {
                    self.on_broker_event(event);
                    if self.commits.as_ref().is_some_and(Commits::is_superseded) {
                        return Ended::LeaseLost;
                    }
                }
            }
        }
    }

    /// Returns whether a page may be taken in.
    fn may_read(&self) -> bool {
        self.draining.is_none() && self.machine.has_room()
    }

    /// Does everything that can be done without waiting.
    fn act(&mut self) {
        self.machine.set_now(self.began_at.elapsed());
        while self.draining.is_none()
            && self.commits.as_ref().is_none_or(Commits::may_submit)
            && let left @ 1.. = self.trial.as_ref().map_or(usize::MAX, Trial::left)
            && let Some(permit) = self.broker_session.permit()
        {
            let batch = self.machine.submissions(self.batch_len.min(left));
            if batch.is_empty() {
                break;
            }
            self.telemetry.submitted(batch.len());
            if let Some(trial) = &mut self.trial {
                trial.submitted(batch.len(), self.began_at.elapsed());
            }
            permit.send(batch);
            if let Some(commits) = &mut self.commits {
                commits.submitted();
            }
        }
        // A closed transaction is complete, even if the batch behind it failed: commit it first.
        let has_closed = self.commits.as_ref().is_some_and(Commits::has_closed);
        if self.machine.session_end().is_some() && self.broker_session.is_up() && !has_closed {
            self.broker_session.close();
        }
        self.machine.give_way();
        if self.machine.changes_len() >= self.settings.checkpoint_changes || self.machine.wants_store() {
            self.store();
        }
        self.try_storing();
        self.ask();
        self.emit();
    }

    fn emit(&mut self) {
        let events = self.machine.take_events();
        for event in &events {
            match event {
                Event::Session(News::Silent(lasts)) => {
                    let since = OffsetDateTime::now_utc() - *lasts;
                    let reason = self.broker_session.silence();
                    let trouble = BrokerTrouble::of(&reason, true, since);
                    self.trouble.send_replace(Some(trouble));
                }
                Event::Session(News::Answers) => self.note_session(),
                _ => {}
            }
        }
        self.telemetry.events(events, self.began_at.elapsed());
    }

    fn on_broker_event(&mut self, event: BrokerEvent) {
        match event {
            BrokerEvent::Up(profile) => {
                self.batch_len = profile.batch_len.max(1);
                self.machine.session_started(profile.max_in_flight_per_key);
                if let Some(commits) = &mut self.commits {
                    commits.connected();
                }
                self.telemetry.connected();
                self.note_session();
            }
            BrokerEvent::Receipts(receipts) => {
                for receipt in receipts {
                    if receipt.outcome.is_ok() {
                        reached(crash_points::AFTER_CONFIRM);
                        if let Some(commits) = &mut self.commits {
                            commits.confirmed();
                        }
                        if let Some(trial) = &mut self.trial {
                            trial.confirmed();
                        }
                    }
                    if receipt.outcome.as_ref().err().is_none_or(|error| error.scope() != FaultScope::Session)
                    {
                        self.broker_session.answered();
                    }
                    self.machine.receipt(receipt, self.host.uniform());
                }
            }
            BrokerEvent::Ended => self.telemetry.disconnected(),
            BrokerEvent::Refused { error, pause } => {
                self.telemetry.refused(&error, pause);
                self.note_refusal(&error);
            }
        }
    }

    /// Reports to operators that there is a session, if that has changed.
    fn note_session(&mut self) {
        let is_first = !self.session.send_replace(true);
        self.trouble.send_if_modified(|trouble| trouble.take().is_some() || is_first);
    }

    /// Reports to operators why there is no session, if the reason has changed.
    fn note_refusal(&mut self, error: &PublishError) {
        self.trouble.send_if_modified(|trouble| {
            let since = trouble.as_ref().map_or_else(OffsetDateTime::now_utc, |trouble| trouble.since);
            let now = Some(BrokerTrouble::new(error, since));
            let is_news = *trouble != now;
            *trouble = now;
            is_news
        });
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
