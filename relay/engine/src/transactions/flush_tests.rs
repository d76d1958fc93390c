//! A leader that commits under an endless stream of pages. Each mark names only pages that a flush
//! covers, and the flushes do not delay the commits. A closed transaction that waits for its flush
//! survives when the next batch is refused.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use message::testing::{BrokerScript, ScriptedBroker};
use message::{
    ClosedTransaction, EventType, Message, PublishError, Receipts, Submission, Topic, TransactionMark,
    Transactions,
};
use outbox_log::testing::{LogScript, ScriptedLog};
use outbox_log::{
    Acquired, Cursor, Difference, Entry, EntryId, Fenced, Lease, LogError, Mark, Page, PageLimit, RelayName,
};
use tokio_util::sync::CancellationToken;

use super::mark;
use crate::options::EngineOptions;
use crate::pipeline::Pipeline;

/// Entries per page.
const PAGE: i64 = 10;
/// How long reading a page, flushing and committing take.
const PAGE_TIME: Duration = Duration::from_millis(2);
const FLUSH_TIME: Duration = Duration::from_millis(9);
const COMMIT_TIME: Duration = Duration::from_millis(5);

/// An event that the test records.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Step {
    /// The page that ends with this entry was read.
    Read(i64),
    FlushBegan,
    FlushEnded,
    /// The commit of a mark began; its relay had read up to this entry.
    Committed(i64),
    /// The lease was taken.
    Acquired,
    /// The broker refused a batch, and its session ended.
    Refused,
}

/// A database that always has another page, and a broker that accepts every batch, or all but every
/// nth.
#[derive(Default)]
struct Memory {
    steps: Mutex<Vec<Step>>,
    batches: AtomicUsize,
    /// The number of the last session, and whether it is still open.
    session: Mutex<(u64, bool)>,
    refused: Option<usize>,
    /// Whether the next reader that begins has lost its session.
    is_idle_ended: AtomicBool,
}

impl Memory {
    fn note(&self, step: Step) {
        self.steps.lock().unwrap().push(step);
    }
}

fn mark_at(id: i64) -> Mark {
    Mark::new(id.to_string())
}

#[async_trait]
impl LogScript for Memory {
    async fn begin(&self) -> Result<(), LogError> {
        if !self.is_idle_ended.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        Err(LogError::Unavailable { reason: String::from("idle-session timeout"), source: None })
    }

    async fn next_difference(&self, base: &Mark) -> Result<Option<Difference>, LogError> {
        let before: i64 = base.as_str().parse().unwrap();
        let ceiling = before + PAGE;
        Ok(Some(Difference { base: base.clone(), head: mark_at(ceiling), ceiling }))
    }

    async fn read_page(&self, difference: &Difference, _: EntryId, _: PageLimit) -> Result<Page, LogError> {
        tokio::time::sleep(PAGE_TIME).await;
        let last = difference.ceiling;
        let message = || Message::new(Topic::new("orders").unwrap(), EventType::new("e").unwrap(), "x");
        let entry = |id| Entry { id: EntryId(id), message: Ok(message()), deliver_in: None };
        self.note(Step::Read(last));
        Ok(Page { entries: (last - PAGE + 1..=last).map(entry).collect(), exhausted: true })
    }

    async fn acquire(&self, ttl: Duration) -> Result<Acquired, LogError> {
        self.note(Step::Acquired);
        let lease = Lease { epoch: 1, ttl };
        Ok(Acquired::Granted { lease, cursor: Cursor::at(mark_at(0)), taken_over_from: None })
    }

    async fn renew(&self, _: i64, _: Duration) -> Result<Fenced, LogError> {
        self.note(Step::FlushBegan);
        tokio::time::sleep(FLUSH_TIME).await;
        self.note(Step::FlushEnded);
        Ok(Fenced::Held)
    }
}

#[async_trait]
impl BrokerScript for Memory {
    fn connect(&self) -> Result<(), PublishError> {
        let mut session = self.session.lock().unwrap();
        *session = (session.0 + 1, true);
        Ok(())
    }

    fn submit(&self, batch: Vec<Submission>, receipts: &Receipts) {
        let number = self.batches.fetch_add(1, Ordering::Relaxed) + 1;
        let is_refused = self.refused.is_some_and(|every| number.is_multiple_of(every));
        if is_refused {
            self.note(Step::Refused);
        }
        for submission in batch {
            let lost = || PublishError::session_lost("refused");
            receipts.send(submission.ticket, if is_refused { Err(lost()) } else { Ok(()) });
        }
    }

    fn closed(&self) {
        self.session.lock().unwrap().1 = false;
    }

    fn session(&self) -> u64 {
        self.session.lock().unwrap().0
    }

    /// Behaves as a broker does: when a session ends, its open transactions are aborted.
    async fn commit(
        &self,
        closed: ClosedTransaction,
        committed: TransactionMark,
    ) -> Result<(), PublishError> {
        if *self.session.lock().unwrap() != (closed.session, true) {
            return Err(PublishError::session_lost("its session has ended"));
        }
        let read = mark::Mark::read(&committed.content).unwrap().content.last_read;
        self.note(Step::Committed(read.map_or(0, |(id, _)| id.0)));
        tokio::time::sleep(COMMIT_TIME).await;
        Ok(())
    }
}

/// Leads for a second and returns what happened.
async fn steps_of_a_second(memory: &Arc<Memory>) -> Vec<Step> {
    let transactions: Arc<dyn Transactions> = Arc::new(ScriptedBroker(Arc::clone(memory)));
    let store = Arc::new(ScriptedLog(Arc::clone(memory)));
    let options = EngineOptions::default();
    let pipeline = Pipeline::new(RelayName::new("orders").unwrap(), store, transactions, options);
    let stop = CancellationToken::new();
    let running = tokio::spawn(pipeline.run(stop.clone()));
    tokio::time::sleep(Duration::from_secs(1)).await;
    stop.cancel();
    running.await.unwrap();
    std::mem::take(&mut *memory.steps.lock().unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_mark_names_only_what_a_flush_is_behind() {
    let steps = steps_of_a_second(&Arc::default()).await;
    let mut marks = 0;
    for (at, step) in steps.iter().enumerate() {
        let Step::Committed(last_read @ 1..) = *step else { continue };
        marks += 1;
        let before = &steps[..at];
        let read = before.iter().rposition(|step| *step == Step::Read(last_read)).expect("it was read");
        let began = before.iter().skip(read).position(|step| *step == Step::FlushBegan);
        let is_behind = began.is_some_and(|began| before[read + began..].contains(&Step::FlushEnded));
        assert!(is_behind, "the mark {marks} names {last_read}, and no flush is behind it: {steps:?}");
    }
    assert!(marks > 10, "{marks} marks with what was read last");
}

#[tokio::test(start_paused = true)]
async fn pages_without_end_do_not_put_commits_off() {
    let steps = steps_of_a_second(&Arc::default()).await;
    let commits = steps.iter().filter(|step| matches!(step, Step::Committed(_))).count();
    // Rows that were read during one flush need another, so a round may take two.
    let round = PAGE_TIME + FLUSH_TIME * 2 + COMMIT_TIME;
    let fair = usize::try_from(Duration::from_secs(1).as_micros() / round.as_micros()).unwrap();
    assert!(commits >= fair, "{commits} commits in a second, where {fair} are fair");
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_is_refused_takes_no_closed_transaction_with_it() {
    let memory = Memory { refused: Some(2), ..Memory::default() };
    let steps = steps_of_a_second(&Arc::new(memory)).await;
    let count = |wanted: fn(&Step) -> bool| steps.iter().filter(|step| wanted(step)).count();
    let refused = count(|step| *step == Step::Refused);
    let commits = count(|step| matches!(step, Step::Committed(_)));
    assert!(refused >= 3, "{refused} batches were refused: {steps:?}");
    assert!(commits >= refused, "{commits} commits beside {refused} refusals: {steps:?}");
    assert_eq!(count(|step| *step == Step::Acquired), 1, "no refusal ends the term: {steps:?}");
}

#[tokio::test(start_paused = true)]
async fn a_reader_whose_session_ended_before_it_began_is_opened_again() {
    let memory = Arc::new(Memory { is_idle_ended: true.into(), ..Memory::default() });
    let steps = steps_of_a_second(&memory).await;
    assert!(!memory.is_idle_ended.load(Ordering::Relaxed), "it has begun");
    let count = |wanted: fn(&Step) -> bool| steps.iter().filter(|step| wanted(step)).count();
    assert!(count(|step| matches!(step, Step::Committed(_))) > 10, "{steps:?}");
    assert_eq!(count(|step| *step == Step::Acquired), 1, "the term goes on: {steps:?}");
}
