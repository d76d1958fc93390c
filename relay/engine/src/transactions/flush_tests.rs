//! A leader that commits under an endless stream of pages. Each mark names only pages that a flush
//! covers, and the flushes do not delay the commits. A closed transaction that waits for its flush
//! survives when the next batch is refused.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use message::{
    Capabilities, ClosedTransaction, Connector, EventType, MaxInFlightPerKey, Message, MessageId,
    PublishError, Publisher, Receipts, Submission, Topic, TransactionMark, TransactionScope, Transactions,
};
use outbox_log::{
    Acquired, CheckpointStore, Cursor, Difference, DuePage, DuePosition, Entry, EntryId, ExceptionChange,
    ExceptionSummary, Fenced, HeldAsk, HeldPage, HeldQueues, Lease, LogError, LogReader, LogStore, Mark,
    Page, PageLimit, RelayName,
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
#[derive(Clone, Default)]
struct Memory {
    steps: Arc<Mutex<Vec<Step>>>,
    batches: Arc<AtomicUsize>,
    /// The number of the last session, and whether it is still open.
    session: Arc<Mutex<(u64, bool)>>,
    refused: Option<usize>,
    /// Whether the next reader that begins has lost its session.
    is_idle_ended: Arc<AtomicBool>,
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
impl LogStore for Memory {
    fn origin(&self) -> &str {
        "memory"
    }

    async fn reader(&self, _: &RelayName) -> Result<Box<dyn LogReader>, LogError> {
        Ok(Box::new(self.clone()))
    }

    async fn checkpoint_store(&self, _: &RelayName, _: &str) -> Result<Box<dyn CheckpointStore>, LogError> {
        Ok(Box::new(self.clone()))
    }
}

#[async_trait]
impl LogReader for Memory {
    async fn begin(&mut self) -> Result<(), LogError> {
        if !self.is_idle_ended.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        Err(LogError::Unavailable { reason: String::from("idle-session timeout"), source: None })
    }

    async fn next_difference(&mut self, base: &Mark) -> Result<Option<Difference>, LogError> {
        let before: i64 = base.as_str().parse().unwrap();
        let ceiling = before + PAGE;
        Ok(Some(Difference { base: base.clone(), head: mark_at(ceiling), ceiling }))
    }

    async fn read_page(
        &mut self,
        difference: &Difference,
        _: EntryId,
        _: PageLimit,
    ) -> Result<Page, LogError> {
        tokio::time::sleep(PAGE_TIME).await;
        let last = difference.ceiling;
        let message = || Message::new(Topic::new("orders").unwrap(), EventType::new("e").unwrap(), "x");
        let entry = |id| Entry { id: EntryId(id), message: Ok(message()), deliver_in: None };
        self.note(Step::Read(last));
        Ok(Page { entries: (last - PAGE + 1..=last).map(entry).collect(), exhausted: true })
    }

    async fn read_due(&mut self, _: Option<DuePosition>, _: PageLimit) -> Result<DuePage, LogError> {
        Ok(DuePage { exceptions: Vec::new(), position: None, exhausted: true, next_in: None })
    }

    async fn read_held(&mut self, _: &[HeldAsk], _: PageLimit) -> Result<Vec<HeldPage>, LogError> {
        unreachable!("nothing is held")
    }

    async fn held_queues(
        &mut self,
        _: Option<&outbox_log::QueueName>,
        _: usize,
    ) -> Result<HeldQueues, LogError> {
        Ok(HeldQueues { queues: Vec::new(), exhausted: true })
    }

    async fn stuck(&mut self, _: EntryId, _: usize) -> Result<Vec<ExceptionSummary>, LogError> {
        Ok(Vec::new())
    }
}

#[async_trait]
impl CheckpointStore for Memory {
    async fn acquire(&mut self, ttl: Duration) -> Result<Acquired, LogError> {
        self.note(Step::Acquired);
        let lease = Lease { epoch: 1, ttl };
        Ok(Acquired::Granted { lease, cursor: Cursor::at(mark_at(0)), taken_over_from: None })
    }

    async fn renew(&mut self, _: i64, _: Duration) -> Result<Fenced, LogError> {
        self.note(Step::FlushBegan);
        tokio::time::sleep(FLUSH_TIME).await;
        self.note(Step::FlushEnded);
        Ok(Fenced::Held)
    }

    async fn checkpoint(&mut self, _: i64, _: &Cursor, _: &[ExceptionChange]) -> Result<Fenced, LogError> {
        Ok(Fenced::Held)
    }

    async fn doubt(
        &mut self,
        _: &Cursor,
        _: Option<(EntryId, MessageId)>,
    ) -> Result<Option<String>, LogError> {
        unreachable!("the broker has no mark")
    }

    async fn release(&mut self, _: i64) -> Result<Fenced, LogError> {
        Ok(Fenced::Held)
    }
}

#[async_trait]
impl Connector for Memory {
    fn destination(&self) -> &str {
        "memory"
    }

    async fn connect(&self, receipts: Receipts) -> Result<Box<dyn Publisher>, PublishError> {
        let mut session = self.session.lock().unwrap();
        *session = (session.0 + 1, true);
        Ok(Box::new(Taker { memory: self.clone(), receipts }))
    }
}

#[async_trait]
impl Transactions for Memory {
    async fn take_over(&self, _: &TransactionScope) -> Result<Option<TransactionMark>, PublishError> {
        Ok(None)
    }

    fn session(&self) -> u64 {
        self.session.lock().unwrap().0
    }

    fn close(&self, session: u64) -> ClosedTransaction {
        ClosedTransaction { session, producer: 0 }
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

    fn is_superseded(&self) -> bool {
        false
    }
}

struct Taker {
    memory: Memory,
    receipts: Receipts,
}

#[async_trait]
impl Publisher for Taker {
    fn profile(&self) -> Capabilities {
        Capabilities { max_in_flight_per_key: MaxInFlightPerKey::Pipelined, batch_len: 100 }
    }

    async fn submit(&mut self, batch: Vec<Submission>) {
        let number = self.memory.batches.fetch_add(1, Ordering::Relaxed) + 1;
        let is_refused = self.memory.refused.is_some_and(|every| number.is_multiple_of(every));
        if is_refused {
            self.memory.note(Step::Refused);
        }
        for submission in batch {
            let lost = || PublishError::session_lost("refused");
            self.receipts.send(submission.ticket, if is_refused { Err(lost()) } else { Ok(()) });
        }
    }

    async fn close(self: Box<Self>, _: Duration) {
        self.memory.session.lock().unwrap().1 = false;
    }
}

/// Leads for a second and returns what happened.
async fn steps_of_a_second(memory: Memory) -> Vec<Step> {
    let transactions: Arc<dyn Transactions> = Arc::new(memory.clone());
    let store = Arc::new(memory.clone());
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
    let steps = steps_of_a_second(Memory::default()).await;
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
    let steps = steps_of_a_second(Memory::default()).await;
    let commits = steps.iter().filter(|step| matches!(step, Step::Committed(_))).count();
    // Rows that were read during one flush need another, so a round may take two.
    let round = PAGE_TIME + FLUSH_TIME * 2 + COMMIT_TIME;
    let fair = usize::try_from(Duration::from_secs(1).as_micros() / round.as_micros()).unwrap();
    assert!(commits >= fair, "{commits} commits in a second, where {fair} are fair");
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_is_refused_takes_no_closed_transaction_with_it() {
    let steps = steps_of_a_second(Memory { refused: Some(2), ..Memory::default() }).await;
    let count = |wanted: fn(&Step) -> bool| steps.iter().filter(|step| wanted(step)).count();
    let refused = count(|step| *step == Step::Refused);
    let commits = count(|step| matches!(step, Step::Committed(_)));
    assert!(refused >= 3, "{refused} batches were refused: {steps:?}");
    assert!(commits >= refused, "{commits} commits beside {refused} refusals: {steps:?}");
    assert_eq!(count(|step| *step == Step::Acquired), 1, "no refusal ends the term: {steps:?}");
}

#[tokio::test(start_paused = true)]
async fn a_reader_whose_session_ended_before_it_began_is_opened_again() {
    let memory = Memory { is_idle_ended: Arc::new(AtomicBool::new(true)), ..Memory::default() };
    let is_idle_ended = Arc::clone(&memory.is_idle_ended);
    let steps = steps_of_a_second(memory).await;
    assert!(!is_idle_ended.load(Ordering::Relaxed), "it has begun");
    let count = |wanted: fn(&Step) -> bool| steps.iter().filter(|step| wanted(step)).count();
    assert!(count(|step| matches!(step, Step::Committed(_))) > 10, "{steps:?}");
    assert_eq!(count(|step| *step == Step::Acquired), 1, "the term goes on: {steps:?}");
}
