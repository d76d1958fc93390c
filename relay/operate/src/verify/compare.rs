//! The comparison of one pipeline: reads everything, reconciles each message, and checks again
//! whatever looks wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use inbox::reconcile::Unfinished;
use message::MessageId;
use tokio::time::Instant;
use uuid::Uuid;

use super::bounded::{InboxIds, OutboxRows};
use super::range::Range;
use super::reconcile::{Committed, Context, InboxContext, Kind, MessageState, Reconciled, Seen};
use super::report::{Compared, InboxCounts};
use super::sources::{self, BrokerRead, PAGE_ROWS, Reading};
use super::spool::{At, Spool};
use super::suspects::{self, Suspects};
use crate::error::{OperateError, OperateErrorKind};
use crate::operator::{Operator, Role};
use crate::{InboxConfig, PipelineConfig};

/// Maximum number of suspects that are checked again. Their ids are kept in memory, 16 bytes each.
const SUSPECTS_MAX: usize = 1_000_000;
/// Pause before suspects are checked again. It doubles each time, until the grace period ends.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Producers' clocks differ from the broker's, and a topic's log follows neither.
const CLOCK_SKEW_MS: u64 = 600_000;

/// The comparison of one pipeline: its places, range and pace.
pub struct Comparison<'a> {
    /// The pipeline.
    pub pipeline: &'a PipelineConfig,
    /// The inboxes of its consumers.
    pub inboxes: Vec<InboxConfig>,
    /// Only messages of these topics are compared; if empty, all.
    pub topics: BTreeSet<String>,
    /// The messages to compare.
    pub range: Range,
    /// Published messages that are in no inbox count as missing when none of them has arrived for
    /// this long.
    pub grace: Duration,
    /// Maximum findings to name. All are counted.
    pub findings_max: usize,
    /// How the places are read.
    pub reading: Reading,
}

/// Connections and results of a running comparison.
struct Open {
    rows: OutboxRows,
    memories: Vec<InboxIds>,
    spool: Spool,
    context: Context,
    broker: BrokerRead,
}

impl Comparison<'_> {
    /// Runs the comparison. Takes at least the grace period if something is missing. Cancel-safe.
    ///
    /// # Errors
    /// [`OperateError`] when the operator may not view messages, when a place cannot be read, or
    /// when too many messages look wrong.
    pub async fn run(mut self, operator: &Operator) -> Result<Compared, OperateError> {
        operator.permit(Role::Viewer, "compare messages")?;
        self.reading.progress.say(format!("{}: connecting", self.pipeline.name));
        let mut open = self.open().await?;
        self.read(&mut open).await?;
        let mut compared = self.new_report();
        let mut suspects = Suspects::default();
        let (spool, context) = (&mut open.spool, &open.context);
        let too_many = suspects.read(spool, context, &mut compared, SUSPECTS_MAX).await?;
        if too_many {
            let message = format_args!("more than {SUSPECTS_MAX} messages differ");
            let help = "check that the inboxes belong to this pipeline, or narrow the range with --since and --until";
            return Err(OperateError::new(OperateErrorKind::Broken, message).with_help(help));
        }
        self.examine(&mut open, suspects, &mut compared).await?;
        // Before the outbox was read, its topics were not known.
        let is_unasked = |inbox: &InboxContext| inbox.committed.as_ref().is_some_and(BTreeMap::is_empty);
        if open.context.inboxes.iter().any(is_unasked) {
            self.read_committed(&mut open).await?;
        }
        for (inbox, context) in compared.inboxes.iter_mut().zip(&open.context.inboxes) {
            // In an empty outbox there is no topic to ask about.
            let is_known = |topics: &Committed| {
                topics.is_empty() || topics.values().any(|partitions| !partitions.is_empty())
            };
            inbox.is_group_known = inbox.group.is_some() && context.committed.as_ref().is_some_and(is_known);
            inbox.is_unopened = context.is_unopened;
        }
        compared.records =
            sources::unreadable(&self.pipeline.broker).is_none().then_some(open.broker.records);
        compared.unreadable_records = open.broker.unreadable;
        compared.broker_checked_from = open.broker.cut_at.clone();
        Ok(compared)
    }

    fn new_report(&self) -> Compared {
        let unread = sources::unreadable(&self.pipeline.broker);
        let inboxes = self.inboxes.iter().map(|inbox| InboxCounts {
            consumer: inbox.consumer.to_string(),
            has_effects: inbox.effects.is_some(),
            group: inbox.group.clone().filter(|_| unread.is_none()),
            ..InboxCounts::default()
        });
        Compared::new(self.pipeline.name.as_str(), inboxes.collect(), unread, self.findings_max)
    }

    async fn open(&self) -> Result<Open, OperateError> {
        let timeout = self.reading.statement_timeout;
        let mut rows = sources::outbox(self.pipeline, timeout).await?;
        let mut context =
            Context { topics: self.topics.clone(), outbox_from: rows.first().await?, ..Context::default() };
        let mut memories = Vec::new();
        for inbox in &self.inboxes {
            let mut memory = sources::inbox(inbox, timeout).await?;
            let retained = memory.retained_from().await?;
            context.inboxes.push(InboxContext {
                topics: inbox.topics.clone(),
                is_unopened: retained.is_none(),
                remembers_from: retained.and_then(|from| MessageId::floor(from).ok()),
                has_effects: inbox.effects.is_some(),
                effects_kinds: inbox.effects_kinds.clone(),
                committed: None,
            });
            memories.push(memory);
        }
        let spool = Spool::create(self.inboxes.len()).await?;
        Ok(Open { rows, memories, spool, context, broker: BrokerRead::default() })
    }

    /// Reads effects before their inboxes: by then the inboxes remember them.
    async fn read(&mut self, open: &mut Open) -> Result<(), OperateError> {
        self.read_effects(open).await?;
        self.read_committed(open).await?;
        for (place, memory) in open.memories.iter_mut().enumerate() {
            self.reading.inbox(memory, place, self.range, &mut open.spool).await?;
        }
        let filter = &self.pipeline.settings.filter;
        self.reading.outbox(&mut open.rows, filter, self.range, &mut open.spool).await?;
        self.read_broker(open).await
    }

    async fn read_effects(&mut self, open: &mut Open) -> Result<(), OperateError> {
        for (place, inbox) in self.inboxes.iter().enumerate() {
            if let Some(sql) = &inbox.effects {
                self.reading.effects(inbox, sql, place, self.range, &mut open.spool).await?;
            }
        }
        Ok(())
    }

    /// Reads the consumers' positions before their inboxes. When the inboxes are read, they
    /// remember everything up to these positions.
    async fn read_committed(&mut self, open: &mut Open) -> Result<(), OperateError> {
        for (inbox, context) in self.inboxes.iter().zip(&mut open.context.inboxes) {
            let Some(group) = &inbox.group else { continue };
            // Without configured topics, those in the outbox are used.
            let topics = if inbox.topics.is_empty() {
                open.spool.topics().iter().cloned().collect()
            } else {
                inbox.topics.clone()
            };
            self.reading.progress.say(format!("asking for the position of the group {group}"));
            context.committed = Some(self.reading.committed(&self.pipeline.broker, group, &topics).await?);
        }
        Ok(())
    }

    /// Reads the requested topics of the outbox at the broker.
    async fn read_broker(&mut self, open: &mut Open) -> Result<(), OperateError> {
        if sources::unreadable(&self.pipeline.broker).is_some() {
            return Ok(());
        }
        let asked = |topic: &&String| self.topics.is_empty() || self.topics.contains(*topic);
        let mut topics: BTreeSet<String> = open.spool.topics().iter().filter(asked).cloned().collect();
        // A requested topic may hold nothing but phantoms.
        topics.extend(self.topics.iter().cloned());
        let from_ms = self.range.from_ms.map(|ms| ms.saturating_sub(CLOCK_SKEW_MS).cast_signed());
        let broker = &self.pipeline.broker;
        open.broker = self.reading.broker(broker, &topics, from_ms, self.range, &mut open.spool).await?;
        open.context.broker_from = Some(open.broker.cut_at.clone());
        Ok(())
    }

    /// Checks suspects again until all that remain stay wrong, and counts each suspect.
    async fn examine(
        &mut self,
        open: &mut Open,
        mut suspects: Suspects,
        compared: &mut Compared,
    ) -> Result<(), OperateError> {
        let mut deadline = Instant::now() + self.grace;
        let mut pause = LOOK_INTERVAL;
        let mut is_first = true;
        while !suspects.ids.is_empty() {
            let before = suspects.ids.len();
            self.reading.progress.say(format!("checking {before} messages again"));
            self.look_again(open, &suspects.ids, is_first).await?;
            suspects.read_again(&mut open.spool, &open.context, compared).await?;
            if Instant::now() >= deadline || !suspects.may_pass {
                return suspects::convict(&mut open.spool, &open.context, compared).await;
            }
            // A consumer that makes progress has not lost anything: the grace period starts over.
            if suspects.ids.len() < before {
                (deadline, pause) = (Instant::now() + self.grace, LOOK_INTERVAL);
            }
            if is_first {
                self.reading.progress.waiting(suspects.ids.len(), self.grace);
            }
            tokio::time::sleep_until(deadline.min(Instant::now() + pause)).await;
            (is_first, pause) = (false, pause * 2);
        }
        Ok(())
    }

    /// Reads the suspects again, the outbox before what is downstream of it.
    async fn look_again(
        &mut self,
        open: &mut Open,
        suspects: &[Uuid],
        is_first: bool,
    ) -> Result<(), OperateError> {
        open.spool.suspect(suspects).await?;
        // Retention may have removed more rows meanwhile.
        let first = open.rows.first().await?;
        open.context.outbox_from = first.map(|first| first.max(open.context.outbox_from.unwrap_or_default()));
        for ids in suspects.chunks(PAGE_ROWS as usize) {
            open.spool.forget(At::Outbox, ids).await?;
            let mut left = ids.to_vec();
            // A call ends early where rows are large.
            while !left.is_empty() {
                let mut rows = open.rows.find(&left).await?;
                let Some(last) = rows.last().map(|row| row.id) else { break };
                left.retain(|id| *id > last);
                sources::leave_out(&mut rows, &self.pipeline.settings.filter);
                open.spool.add_rows(&rows).await?;
            }
            self.reading.pace.rows(ids.len()).await;
        }
        // Every message that the cursor has passed is at the broker by now, so one more reading
        // decides.
        if is_first && !with_fault(open, Kind::Unpublished).await?.is_empty() {
            open.spool.clear(At::Broker).await?;
            self.read_broker(open).await?;
        }
        self.read_committed(open).await?;
        self.look_into_inboxes(open, suspects).await?;
        if !with_fault(open, Kind::Effectless).await?.is_empty() {
            for place in 0..self.inboxes.len() {
                open.spool.clear(At::Effects(place)).await?;
            }
            self.read_effects(open).await?;
            // By now the inbox remembers every message that took effect since it was read.
            let unremembered = with_fault(open, Kind::Unremembered).await?;
            self.look_into_inboxes(open, &unremembered).await?;
        }
        Ok(())
    }

    async fn look_into_inboxes(&mut self, open: &mut Open, suspects: &[Uuid]) -> Result<(), OperateError> {
        for (place, memory) in open.memories.iter_mut().enumerate() {
            for ids in suspects.chunks(PAGE_ROWS as usize) {
                // Unfinished messages first: those that finish in between are remembered by the
                // next query.
                let unfinished = memory.unfinished(ids).await?;
                let found = memory.find(ids).await?;
                let found: Vec<_> =
                    found.iter().map(|row| (row.id, row.fingerprint.as_bytes().to_vec())).collect();
                open.spool.forget(At::Inbox(place), ids).await?;
                open.spool.add(At::Inbox(place), &found).await?;
                open.spool.add_unfinished(place, &unfinished).await?;
                self.reading.pace.rows(ids.len()).await;
            }
        }
        Ok(())
    }
}

/// Returns the suspects that have this fault by now.
async fn with_fault(open: &mut Open, kind: Kind) -> Result<Vec<Uuid>, OperateError> {
    suspects::with_fault(&mut open.spool, &open.context, kind).await
}

impl Compared {
    /// Adds a message to the counts.
    pub(super) fn count(&mut self, seen: &Seen, reconciled: &Reconciled) {
        match reconciled.fate {
            None => return,
            Some(MessageState::Published) => self.published += 1,
            Some(MessageState::Pending) => self.pending += 1,
            Some(MessageState::Parked) => self.parked += 1,
            Some(MessageState::Discarded) => {
                self.parked += 1;
                self.discarded += 1;
            }
        }
        self.enqueued += 1;
        for (inbox, applied) in self.inboxes.iter_mut().zip(&seen.inboxes) {
            inbox.applied += u64::from(applied.remembered.is_some());
            match applied.unfinished.filter(|_| applied.remembered.is_none()) {
                Some(Unfinished::Retrying) => inbox.retrying += 1,
                Some(Unfinished::DeadLetter) => inbox.dead_letters += 1,
                Some(Unfinished::Closed) => inbox.closed += 1,
                None => {}
            }
        }
        for place in &reconciled.waits {
            self.inboxes[*place].waiting += 1;
        }
    }
}
