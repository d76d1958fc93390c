//! Leads: moves pages, receipts and checkpoints between database, machine and broker while the lease is held.

use std::sync::Arc;
use std::time::Duration;

use message::crash_points::reached;
use message::{Connector, Host};
use outbox::log::{Cursor, EntryId, ExceptionSummary, Lease, LogError, LogKeeper, LogReader};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::crash_points;
use crate::engine::keeper::{Command, Keeper, KeeperEnd, Report};
use crate::engine::link::{Link, LinkEvent};
use crate::engine::machine::Machine;
use crate::engine::reader::{Answer, Ask, ReadPage, Reader};
use crate::engine::settings::Settings;
use crate::engine::wake::Pace;
use crate::telemetry::Telemetry;

/// Why leading ended.
#[derive(Debug)]
pub enum Ended {
    /// Asked to stop: drained, checkpointed, lease given back.
    Stopped,
    /// Another process has taken over.
    LeaseLost,
    /// The database failed: take the lease and load the cursor anew.
    Failed(LogError),
}

/// What leading needs.
pub(crate) struct Lead {
    pub(crate) reader: Box<dyn LogReader>,
    pub(crate) keeper: Box<dyn LogKeeper>,
    pub(crate) lease: Lease,
    /// When the lease was asked for.
    pub(crate) asked_at: Instant,
    pub(crate) cursor: Cursor,
    pub(crate) blocking: Vec<ExceptionSummary>,
    pub(crate) connector: Arc<dyn Connector>,
    pub(crate) settings: Settings,
    pub(crate) hint: Arc<Notify>,
    pub(crate) stop: CancellationToken,
    pub(crate) telemetry: Telemetry,
    pub(crate) host: Host,
}

/// Checkpoints with many changes are stored at once: memory stays bounded while a topic is down.
const CHANGES_MAX: usize = 1_000;

/// How often silent destinations are looked for while one falls silent.
const SILENCE_LOOKS: u32 = 20;

struct Driver {
    machine: Machine,
    link: Link,
    settings: Settings,
    telemetry: Telemetry,
    host: Host,
    pages: mpsc::Receiver<ReadPage>,
    asks: mpsc::Sender<Ask>,
    answers: mpsc::Receiver<Answer>,
    commands: mpsc::Sender<Command>,
    reports: mpsc::UnboundedReceiver<Report>,
    batch_len: usize,
    /// A checkpoint is on its way.
    storing: bool,
    /// Checkpoints stored so far: an answer that was asked for before the last one is out of date.
    stored: u64,
    /// The question that is on its way, and `stored` when it was asked.
    asked: Option<(Ask, u64)>,
    due_at: Option<Instant>,
    /// Held entries wait to be read, from this id on.
    held_from: Option<EntryId>,
    draining: Option<Instant>,
    /// When the lease was taken: the engine counts time from here.
    began_at: Instant,
}

impl Lead {
    /// Leads until asked to stop, the lease is lost or the database fails. Not cancel-safe: stop it with the
    /// token.
    pub(crate) async fn run(self) -> Ended {
        let (pages_in, pages) = mpsc::channel(1);
        let (asks, asks_out) = mpsc::channel(1);
        let (answers_in, answers) = mpsc::channel(1);
        let (commands, commands_out) = mpsc::channel(2);
        let (reports_in, reports) = mpsc::unbounded_channel();
        let settings = self.settings;
        let (trust, renew_interval, look_interval) = Keeper::intervals(&settings);
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
        let keeper = Keeper {
            log: self.keeper,
            lease: self.lease,
            commands: commands_out,
            reports: reports_in,
            trusted_until: trusted_in,
            trust,
            renew_interval,
            look_interval,
        };
        // Nobody holds on to the connections when this future is dropped.
        let mut reader = AbortOnDropHandle::new(self.host.spawn(reader.run(self.cursor.clone())));
        let mut keeper = AbortOnDropHandle::new(self.host.spawn(keeper.run()));
        let mut driver = Driver {
            machine: Machine::new(settings.clone(), self.cursor, self.blocking),
            link: Link::new(self.connector, settings.retry, trusted.clone(), self.host.clone()),
            settings,
            telemetry: self.telemetry,
            host: self.host,
            pages,
            asks,
            answers,
            commands,
            reports,
            batch_len: 1,
            storing: false,
            stored: 0,
            asked: None,
            due_at: None,
            held_from: None,
            draining: None,
            began_at: Instant::now(),
        };
        driver.drive(&mut reader, &mut keeper, trusted, &self.stop).await
    }
}

impl Driver {
    async fn drive(
        &mut self,
        reader: &mut AbortOnDropHandle<Result<(), LogError>>,
        keeper: &mut AbortOnDropHandle<Result<KeeperEnd, LogError>>,
        mut trusted: watch::Receiver<Instant>,
        stop: &CancellationToken,
    ) -> Ended {
        let mut tick = tokio::time::interval(self.settings.checkpoint_interval);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut silence = tokio::time::interval(self.settings.silent_after / SILENCE_LOOKS);
        silence.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.act();
            if self.drained() {
                return self.finish(keeper).await;
            }
            let trusted_until = *trusted.borrow_and_update();
            // In this order: what ends the term, then what comes at most once per checkpoint, question or interval and
            // so cannot shut the rest out, then the two streams. Pages go before receipts, to keep the publisher busy;
            // the room in the window bounds how many of them can come in a row.
            tokio::select! {
                biased;
                ended = &mut *keeper => return ended_by_keeper(ended),
                ended = &mut *reader => return ended_by_reader(ended),
                // The lease could not be renewed in time: whatever the database says later, stop now.
                () = tokio::time::sleep_until(trusted_until) => {
                    if *trusted.borrow() <= trusted_until {
                        return Ended::LeaseLost;
                    }
                }
                () = sleep_until(self.draining) => return self.finish(keeper).await,
                () = stop.cancelled(), if self.draining.is_none() => self.begin_draining(),
                Some(report) = self.reports.recv() => self.on_report(&report),
                Some(answer) = self.answers.recv() => self.on_answer(answer),
                _ = tick.tick() => {
                    self.telemetry.gauges(&self.machine);
                    self.store();
                }
                _ = silence.tick() => {
                    self.machine.set_now(self.began_at.elapsed());
                    self.machine.look_for_silence(self.host.uniform());
                }
                () = sleep_until(self.due_at), if self.may_ask() => self.ask_due(EntryId::default()),
                Some(page) = self.pages.recv(), if self.draining.is_none() && self.machine.has_room() => {
                    self.machine.page(&page.difference, page.page);
                }
                event = self.link.next() => self.on_link(event),
            }
        }
    }

    /// Everything that can be done without waiting.
    fn act(&mut self) {
        self.machine.set_now(self.began_at.elapsed());
        while self.draining.is_none()
            && let Some(permit) = self.link.permit()
        {
            let batch = self.machine.submissions(self.batch_len);
            if batch.is_empty() {
                break;
            }
            permit.send(batch);
        }
        if self.machine.session_broken() && self.link.is_up() {
            self.link.close(Duration::ZERO);
        }
        if self.machine.changes_len() >= CHANGES_MAX {
            self.store();
        }
        if self.machine.take_released() {
            self.held_from = Some(EntryId::default());
            self.store();
        }
        self.ask_held();
        self.telemetry.events(self.machine.take_events());
    }

    fn on_link(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Up(profile) => {
                self.batch_len = profile.batch_len.max(1);
                self.machine.session_started(profile.key_window);
                self.telemetry.connected();
            }
            LinkEvent::Receipts(receipts) => {
                for receipt in receipts {
                    if receipt.outcome.is_ok() {
                        reached(crash_points::AFTER_CONFIRM);
                        self.link.confirmed();
                    }
                    self.telemetry.receipt(&receipt);
                    self.machine.receipt(receipt, self.host.uniform());
                }
            }
            LinkEvent::Ended => self.telemetry.disconnected(),
            LinkEvent::Refused { error, pause } => self.telemetry.refused(&error, pause),
        }
    }

    fn store(&mut self) {
        if self.storing {
            return;
        }
        if let Some(checkpoint) = self.machine.checkpoint() {
            // Room for one checkpoint and the release; a keeper that is gone ends the driver by itself.
            self.storing = self.commands.try_send(Command::Store(checkpoint)).is_ok();
        }
    }

    fn on_report(&mut self, report: &Report) {
        match report {
            Report::Stored => {
                self.storing = false;
                self.stored += 1;
                self.machine.checkpointed();
                self.telemetry.checkpointed();
            }
            Report::DueIn(due_in) => self.due_at = due_in.map(|due_in| Instant::now() + due_in),
        }
    }

    fn may_ask(&self) -> bool {
        self.asked.is_none() && self.draining.is_none() && self.due_at.is_some() && self.machine.has_room()
    }

    fn ask_due(&mut self, after: EntryId) {
        self.due_at = None;
        self.ask(Ask::Due(after));
    }

    /// Held entries are read only when the database knows all of them.
    fn ask_held(&mut self) {
        if self.asked.is_none()
            && self.draining.is_none()
            && self.machine.has_room()
            && !self.storing
            && self.machine.changes_len() == 0
            && let Some(after) = self.held_from
        {
            self.ask(Ask::Held(after));
        }
    }

    fn ask(&mut self, ask: Ask) {
        if self.asks.try_send(ask).is_ok() {
            self.asked = Some((ask, self.stored));
        }
    }

    fn on_answer(&mut self, answer: Answer) {
        let fresh = self.asked.take() == Some((answer.ask, self.stored)) && !self.storing;
        let last = answer.exceptions.last().map(|exception| exception.entry.id);
        match answer.ask {
            // A checkpoint was stored meanwhile: what was read may be out of date, so it is read again.
            Ask::Due(after) if !fresh => self.ask_due(after),
            Ask::Due(_) => {
                self.machine.due(answer.exceptions, self.host.uniform());
                if let (true, Some(last)) = (answer.full, last) {
                    self.ask_due(last);
                }
            }
            Ask::Held(_) if !fresh => {}
            Ask::Held(_) => {
                self.machine.held(answer.exceptions);
                self.held_from = last.filter(|_| answer.full);
            }
        }
    }

    fn begin_draining(&mut self) {
        self.draining = Some(Instant::now() + self.settings.shutdown_grace);
        self.telemetry.draining(self.machine.in_flight_len());
    }

    fn drained(&self) -> bool {
        self.draining.is_some() && (self.machine.in_flight_len() == 0 || !self.link.is_up())
    }

    /// Stores what is settled and gives the lease back.
    async fn finish(&mut self, keeper: &mut AbortOnDropHandle<Result<KeeperEnd, LogError>>) -> Ended {
        self.telemetry.events(self.machine.take_events());
        while self.storing {
            match self.reports.recv().await {
                Some(report) => self.on_report(&report),
                None => break,
            }
        }
        if let Some(checkpoint) = self.machine.checkpoint() {
            let _ = self.commands.send(Command::Store(checkpoint)).await;
        }
        let _ = self.commands.send(Command::Release).await;
        ended_by_keeper(keeper.await)
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

type Joined<T> = Result<Result<T, LogError>, tokio::task::JoinError>;

fn ended_by_keeper(ended: Joined<KeeperEnd>) -> Ended {
    match ended {
        Ok(Ok(KeeperEnd::Released)) => Ended::Stopped,
        Ok(Ok(KeeperEnd::Lost)) => Ended::LeaseLost,
        Ok(Err(error)) => Ended::Failed(error),
        Err(panic) => crashed(&panic),
    }
}

fn ended_by_reader(ended: Joined<()>) -> Ended {
    match ended {
        Ok(Ok(())) => Ended::Stopped,
        Ok(Err(error)) => Ended::Failed(error),
        Err(panic) => crashed(&panic),
    }
}

fn crashed(error: &tokio::task::JoinError) -> Ended {
    Ended::Failed(LogError::Unavailable {
        reason: format!("a task of the relay ended: {error}"),
        source: None,
    })
}
