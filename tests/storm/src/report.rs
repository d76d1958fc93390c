//! The report of a storm: tables for people, JSON for machines.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use checker::{Breach, Event, Verdict};
use comfy_table::{Table, presets};
use harness::faults::Record;

use crate::Failure;
use crate::lag::LagSeries;
use crate::memory::MemorySeries;
use crate::pair::Pair;
use crate::phases::Phase;
use crate::read::{Pending, Unapplied};
use crate::stage::Role;
use crate::topic_reader::Waiting;
use crate::verdict::{Ending, Grounds, StormVerdict};

/// Numbers of one storm.
#[derive(Debug, Clone, Default, serde::Serialize)]
pub struct Counts {
    /// Operations that were reported to their client as done.
    pub operations_ok: usize,
    /// Operations that were reported to their client as failed.
    pub operations_failed: usize,
    /// Operations whose client got no answer.
    pub operations_unknown: usize,
    /// Rows in the outbox.
    pub messages: usize,
    /// Messages that were lost because the database was reset to an earlier state.
    pub forgotten: usize,
    /// Parked entries at the end.
    pub parked: usize,
    /// Messages at the broker, copies included; for SQS, deliveries.
    pub published: usize,
    /// Number of copies among the published messages.
    pub copies: usize,
    /// Deliveries to consumers.
    pub deliveries: usize,
    /// Effects, over all consumers.
    pub effects: usize,
    /// Deliveries without an effect, because they are copies.
    pub duplicates_suppressed: usize,
    /// Open dead letters, over all consumers.
    pub dead_letters: usize,
    /// Number of requeues of dead messages by the operator while faults were injected.
    pub requeues: usize,
    /// Requeues that failed.
    pub requeues_failed: usize,
    /// Number of process starts.
    pub process_starts: u64,
    /// Sagas that ran to their end.
    pub sagas_finished: usize,
    /// Sagas that were undone.
    pub sagas_undone: usize,
    /// Steps that were done and undone for sagas.
    pub steps: usize,
}

/// The report of a storm over one pair.
#[derive(Debug, Clone, serde::Serialize)]
pub struct PairReport {
    /// The pair.
    pub pair: Pair,
    /// The seed of the plan.
    pub seed: u64,
    /// The duration of the whole storm.
    pub seconds: f64,
    /// The phases of the storm.
    pub phases: Vec<Phase>,
    /// Numbers.
    pub counts: Counts,
    /// The end of the wait for everything to arrive.
    pub ending: Ending,
    /// The messages still in flight when every process had ended.
    pub pending: Pending,
    /// Partitions and queues that a consumer has not read to the end.
    pub waiting: Vec<Waiting>,
    /// Partitions and queues with messages that a consumer has not applied.
    pub unapplied: Vec<Unapplied>,
    /// Roles with a process that did not end on request.
    pub unruly: Vec<&'static str>,
    /// Time for which producers were held back because consumers were far behind.
    pub held_back: Duration,
    /// The messages in flight after the last fault was healed.
    pub lag: LagSeries,
    /// Resident memory.
    pub memory: MemorySeries,
    /// The checker's verdict.
    pub promises: Verdict,
    /// Every planned fault.
    pub records: Vec<Record>,
    /// Whether relays published in transactions.
    pub transactional: bool,
    /// The tables that PostgreSQL analysed although this was disabled.
    pub analysed: Vec<String>,
    /// Whether the broker removed messages before a consumer had read them.
    pub removed_unread: bool,
    /// The folder with journals, logs and history. It is removed if the storm holds.
    pub folder: PathBuf,
}

/// The file in a storm's folder with the report for people, or with the reason why there is no
/// report.
pub(crate) const TEXT_FILE: &str = "report.txt";
/// Maximum number of breaches that are shown in full.
const BREACHES_SHOWN: usize = 3;
/// A fault is named with a breach if it was healed less than this time before the breach began, in
/// microseconds.
const BEFORE: u64 = 20_000_000;

impl PairReport {
    /// Returns the storm's verdict.
    #[must_use]
    pub fn verdict(&self) -> StormVerdict {
        StormVerdict::decide(Grounds {
            ending: self.ending,
            pending: self.pending,
            promises: &self.promises,
            misbehaved: !self.misbehaviour().is_empty(),
            removed_unread: self.removed_unread,
        })
    }

    /// Lists problems other than broken promises.
    fn misbehaviour(&self) -> Vec<String> {
        let unruly = self.unruly.iter().map(|role| format!("a {role} did not end when it was asked to"));
        let Counts { copies, .. } = self.counts;
        let seen_twice = (self.transactional && copies > 0)
            .then(|| format!("a reader of committed records saw {copies} copies; there must be none"));
        let analysed = (!self.analysed.is_empty())
            .then(|| format!("PostgreSQL has analysed {}; it must not", self.analysed.join(", ")));
        let wrong = unruly.chain(self.lag.breach()).chain(self.memory.breaches()).chain(seen_twice);
        wrong.chain(analysed).collect()
    }

    /// Returns for each fault the number of successful and of failed injections.
    #[must_use]
    pub fn injected(&self) -> BTreeMap<&'static str, (usize, usize)> {
        let mut injected: BTreeMap<_, (usize, usize)> = BTreeMap::new();
        for record in &self.records {
            let (injected, missed) = injected.entry(record.fault).or_default();
            *(if record.happened { injected } else { missed }) += 1;
        }
        injected
    }

    /// Writes the report into the storm's folder.
    pub(crate) fn write_down(&self) -> Result<(), Failure> {
        std::fs::write(self.folder.join("report.json"), serde_json::to_vec_pretty(&self.json()?)?)?;
        Ok(std::fs::write(self.folder.join(TEXT_FILE), self.table())?)
    }

    /// Returns the report for machines.
    ///
    /// # Errors
    /// The report cannot be represented in JSON.
    pub fn json(&self) -> Result<serde_json::Value, Failure> {
        let mut report = serde_json::to_value(self)?;
        report["verdict"] = serde_json::to_value(self.verdict())?;
        Ok(report)
    }

    /// Returns the report for people.
    #[must_use]
    pub fn table(&self) -> String {
        let Counts { operations_ok: ok, operations_failed: failed, operations_unknown: unknown, .. } =
            self.counts;
        let Counts { messages, forgotten, parked, published, copies, .. } = self.counts;
        let Counts { deliveries, effects, duplicates_suppressed, dead_letters, process_starts, .. } =
            self.counts;
        let Counts { requeues, requeues_failed, sagas_finished, sagas_undone, steps, .. } = self.counts;
        let word = self.verdict().as_str();
        let mut text = format!(
            "{}: {word}, seed {}, {:.0} s\n\
             operations: {ok} ok, {failed} failed, {unknown} unknown; processes started {process_starts} times\n\
             messages: {messages}, {parked} parked, {forgotten} more forgotten; \
             published {published}, {copies} of them copies; delivered {deliveries}, {duplicates_suppressed} suppressed; \
             {effects} effects, {dead_letters} dead letters\n\
             operator: {requeues} requeues of dead messages, {requeues_failed} of them failed\n\
             sagas: {sagas_finished} finished, {sagas_undone} undone, {steps} steps and undos\n",
            self.pair, self.seed, self.seconds,
        );
        let mut faults = table(["fault", "injected", "could not"]);
        for (name, (injected, missed)) in self.injected() {
            faults.add_row([name.to_owned(), injected.to_string(), missed.to_string()]);
        }
        let mut promises = table(["promise", "checked", "broken"]);
        for ruling in &self.promises.rulings {
            let checked = ruling.not_checked.map_or_else(|| ruling.checked.to_string(), str::to_owned);
            promises.add_row([ruling.promise.to_string(), checked, ruling.breached.to_string()]);
        }
        // Writing to a String cannot fail.
        let _ = write!(text, "{faults}\n{promises}\n");
        let caught_up =
            self.lag.caught_up().map_or("never".to_owned(), |at| format!("after {:.0} s", at.as_secs_f64()));
        let limit = self.lag.limit.as_secs_f64();
        let (relay, consumer) = (self.memory.peak_mib(Role::Relay), self.memory.peak_mib(Role::Consumer));
        let _ = writeln!(
            text,
            "after healing the lag was gone {caught_up}, of {limit:.0} s at most; \
             relays had {relay} MiB at most, consumers {consumer}"
        );
        if !self.held_back.is_zero() {
            let seconds = self.held_back.as_secs_f64();
            let _ = writeln!(
                text,
                "producers were held back for {seconds:.0} s, because consumers were far behind"
            );
        }
        if self.removed_unread {
            text.push_str(
                "the broker removed messages before a consumer had read them: effects are not judged\n",
            );
        }
        if self.verdict() != StormVerdict::Holds {
            self.show_what_is_left(&mut text);
        }
        for wrong in self.misbehaviour() {
            let _ = writeln!(text, "{wrong}");
        }
        for breach in self.promises.breaches().take(BREACHES_SHOWN) {
            self.show(breach, &mut text);
        }
        if self.verdict() != StormVerdict::Holds {
            let _ = writeln!(text, "journals, logs, history: {}", self.folder.display());
        }
        text
    }

    fn show_what_is_left(&self, text: &mut String) {
        let ended = match self.ending {
            Ending::Quiet => "everything was quiet",
            Ending::Stalled => "nothing moved any more",
            Ending::Moving => "the time was over and something still moved",
        };
        let _ = writeln!(text, "waiting ended because {ended}; still on its way: {}", self.pending);
        for Waiting { place, count } in &self.waiting {
            let _ = writeln!(text, "not read: {count} deliveries of {place}");
        }
        for unapplied in &self.unapplied {
            let _ = writeln!(text, "{unapplied}");
        }
        for Phase { name, began_at, began_at_utc } in &self.phases {
            let _ = writeln!(text, "phase from {began_at} ({began_at_utc}): {name}");
        }
    }

    fn show(&self, breach: &Breach, text: &mut String) {
        let _ = writeln!(text, "\n{breach}");
        for event in &breach.events {
            let _ = writeln!(text, "  {event}");
        }
        let began = breach.events.iter().find_map(|event| match event {
            Event::Operation { started, .. } => *started,
            _ => None,
        });
        let near = |record: &&Record| {
            began.is_none_or(|began| record.struck_at <= began + BEFORE && record.healed_at + BEFORE >= began)
        };
        for Record { struck_at, healed_at, fault, what, .. } in self.records.iter().filter(near) {
            let _ = writeln!(text, "  fault from {struck_at} to {healed_at}: {fault} {what}");
        }
    }
}

fn table<const N: usize>(headers: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(headers.map(str::to_uppercase));
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table
}
