//! A leader's transactions against a broker and a database that only record their calls.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use message::testing::{BrokerScript, ScriptedBroker};
use message::{
    ClosedTransaction, MessageId, PublishError, Runtime, TransactionMark, TransactionScope, Transactions,
};
use outbox_log::testing::{LogScript, ScriptedLog};
use outbox_log::{
    BrokerTransaction, Cursor, EntryId, ExceptionChange, ExceptionState, Fenced, Lease, LogError, Parked,
    RelayName,
};
use tokio::time::Instant;

use super::commits::Commits;
use super::mark::Mark;
use super::recovery::{Continued, Recovered, Recovering, Recovery};
use crate::machine::{Checkpoint, TransactionCheckpoint};
use crate::telemetry::Telemetry;

const EPOCH: i64 = 9;

/// A recorded call.
#[derive(Debug, Clone, PartialEq)]
enum Done {
    Stored(Cursor, usize),
    TakenOver { is_new: bool },
    Committed(TransactionMark),
}

type Log = Arc<Mutex<Vec<Done>>>;

/// A broker that has this mark.
struct Broker {
    last: Option<TransactionMark>,
    done: Log,
}

#[async_trait]
impl BrokerScript for Broker {
    fn take_over(&self, scope: &TransactionScope) -> Result<Option<TransactionMark>, PublishError> {
        self.done.lock().unwrap().push(Done::TakenOver { is_new: scope.is_new });
        Ok(self.last.clone())
    }

    async fn commit(&self, _: ClosedTransaction, mark: TransactionMark) -> Result<(), PublishError> {
        self.done.lock().unwrap().push(Done::Committed(mark));
        Ok(())
    }
}

/// A database in which the lease still holds, or is lost.
struct Database {
    fenced: Fenced,
    doubt: Option<String>,
    done: Log,
}

#[async_trait]
impl LogScript for Database {
    async fn renew(&self, _: i64, _: Duration) -> Result<Fenced, LogError> {
        Ok(self.fenced)
    }

    async fn checkpoint(
        &self,
        epoch: i64,
        cursor: &Cursor,
        changes: &[ExceptionChange],
    ) -> Result<Fenced, LogError> {
        assert_eq!(epoch, EPOCH);
        if self.fenced == Fenced::Held {
            self.done.lock().unwrap().push(Done::Stored(cursor.clone(), changes.len()));
        }
        Ok(self.fenced)
    }

    async fn doubt(
        &self,
        cursor: &Cursor,
        last_read: Option<(EntryId, MessageId)>,
    ) -> Result<Option<String>, LogError> {
        let TransactionCheckpoint { checkpoint, last_read: expected, .. } = content();
        assert_eq!((cursor, last_read), (&checkpoint.cursor, expected));
        Ok(self.doubt.clone())
    }
}

fn broker(last: Option<TransactionMark>, done: &Log) -> Arc<dyn Transactions> {
    Arc::new(ScriptedBroker(Arc::new(Broker { last, done: Arc::clone(done) })))
}

fn transaction(number: u64) -> BrokerTransaction {
    BrokerTransaction { log: String::from("0a1b"), number, is_rebased: false }
}

fn cursor(base: &str, transaction: Option<BrokerTransaction>) -> Cursor {
    Cursor { transaction, ..Cursor::at(outbox_log::Mark::new(base)) }
}

fn parked() -> Parked {
    Parked {
        id: EntryId(7),
        message_id: String::from("m-7"),
        topic: String::from("orders"),
        key: Some(String::from("k")),
        state: ExceptionState::Retrying,
        attempts: 1,
        due_in: Some(Duration::from_secs(1)),
        fault: None,
        error: None,
    }
}

fn content() -> TransactionCheckpoint {
    let changes = vec![ExceptionChange::Park(parked()), ExceptionChange::Resolve(EntryId(5))];
    let checkpoint = Checkpoint { cursor: cursor("20@1:1:", None), changes };
    let last_read = Some((EntryId(23), "0190b5a2-0000-7000-8000-000000000001".parse().unwrap()));
    TransactionCheckpoint { checkpoint, settled: [EntryId(23)].into(), last_read }
}

/// Returns a mark of `log`, as a leader of `epoch` writes it.
fn written(number: u64, log: &str, epoch: i64) -> TransactionMark {
    let mark = Mark { log: log.to_owned(), epoch, content: content() };
    TransactionMark { number, content: mark.write().unwrap() }
}

/// Takes over from a cursor, with this mark at the broker.
async fn recover(
    cursor: &Cursor,
    last: Option<TransactionMark>,
    fenced: Fenced,
) -> (Result<Recovery, LogError>, Vec<Done>) {
    recover_in(cursor, last, fenced, None).await
}

/// Does the same with a database that does not trust the mark.
async fn recover_in(
    cursor: &Cursor,
    last: Option<TransactionMark>,
    fenced: Fenced,
    doubt: Option<String>,
) -> (Result<Recovery, LogError>, Vec<Done>) {
    let done = Log::default();
    let broker = broker(last, &done);
    let mut database = ScriptedLog(Arc::new(Database { fenced, doubt, done: Arc::clone(&done) }));
    let ttl = Duration::from_secs(30);
    let recovering = Recovering {
        transactions: &broker,
        checkpointer: &mut database,
        relay: &RelayName::new("orders").unwrap(),
        lease: Lease { epoch: EPOCH, ttl },
        asked_at: Instant::now(),
        renew_interval: ttl / 3,
        timeout: ttl,
        telemetry: &Telemetry::new(&RelayName::new("orders").unwrap(), "", "", 1),
    };
    let outcome = recovering.run(cursor).await;
    let done = done.lock().unwrap().clone();
    (outcome, done)
}

fn operators(outcome: Result<Recovery, LogError>) -> String {
    match outcome {
        Err(error @ LogError::Operator { .. }) => error.to_string(),
        other => panic!("not the operator's: {other:?}"),
    }
}

#[tokio::test]
async fn an_identity_is_stored_before_the_first_mark_is_asked_for() {
    let (outcome, done) = recover(&cursor("3@1:1:", None), None, Fenced::Held).await;
    let Ok(Recovery::Done(Recovered { log, number: 0, settled, .. })) = outcome else {
        panic!("{outcome:?}")
    };
    assert!(settled.is_empty());
    let known = BrokerTransaction { log, number: 0, is_rebased: false };
    let stored = Done::Stored(cursor("3@1:1:", Some(known)), 0);
    assert_eq!(done, [stored, Done::TakenOver { is_new: true }]);
}

#[tokio::test]
async fn a_mark_that_both_know_is_gone_on_from_without_its_settled_entries() {
    let known = cursor("20@1:1:", Some(transaction(4)));
    let (outcome, done) = recover(&known, Some(written(4, "0a1b", 8)), Fenced::Held).await;
    let Ok(Recovery::Done(Recovered { log, number: 4, settled, .. })) = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!((log.as_str(), settled), ("0a1b", BTreeSet::from([EntryId(23)])));
    assert_eq!(done, [Done::TakenOver { is_new: false }]);
}

#[tokio::test]
async fn a_mark_that_only_the_broker_knows_is_brought_to_the_database() {
    let known = cursor("10@1:1:", Some(transaction(3)));
    let (outcome, done) = recover(&known, Some(written(4, "0a1b", 8)), Fenced::Held).await;
    assert!(matches!(outcome, Ok(Recovery::Again)), "{outcome:?}");
    let stored = Done::Stored(cursor("20@1:1:", Some(transaction(4))), 2);
    assert_eq!(done, [Done::TakenOver { is_new: false }, stored]);
}

#[tokio::test]
async fn numbers_that_lie_apart_stop_the_relay() {
    let last = |number| Some(written(number, "0a1b", 8));
    for (known, found, said) in [(4, last(6), "6"), (4, last(3), "3"), (4, None, "none"), (0, last(2), "2")] {
        let before = cursor("10@1:1:", Some(transaction(known)));
        let (outcome, done) = recover(&before, found, Fenced::Held).await;
        let error = operators(outcome);
        assert!(error.contains(&format!("has recorded transaction {known}")), "{error}");
        assert!(error.contains(&format!("last mark is {said}")), "{error}");
        assert_eq!(done, [Done::TakenOver { is_new: known == 0 }], "nothing is stored");
    }
}

#[tokio::test]
async fn a_mark_of_another_log_stops_the_relay() {
    for number in [4, 5] {
        let known = cursor("10@1:1:", Some(transaction(4)));
        let (outcome, done) = recover(&known, Some(written(number, "ffff", 8)), Fenced::Held).await;
        let error = operators(outcome);
        assert!(error.contains("belongs to log \"ffff\", but this log is \"0a1b\""), "{error}");
        assert_eq!(done.len(), 1, "nothing is stored");
    }
}

#[tokio::test]
async fn a_cursor_that_was_moved_back_stops_the_relay_before_it_asks_the_broker() {
    let known = BrokerTransaction { is_rebased: true, ..transaction(4) };
    let (outcome, done) =
        recover(&cursor("0@1:1:", Some(known)), Some(written(4, "0a1b", 8)), Fenced::Held).await;
    assert!(operators(outcome).contains("restored or has another history"));
    assert_eq!(done, []);
}

#[tokio::test]
async fn a_mark_of_a_later_lease_ends_this_one() {
    let known = cursor("10@1:1:", Some(transaction(3)));
    let (outcome, done) = recover(&known, Some(written(4, "0a1b", EPOCH + 1)), Fenced::Lost).await;
    assert!(matches!(outcome, Ok(Recovery::LeaseLost)), "{outcome:?}");
    assert_eq!(done.len(), 1, "nothing is stored");
}

#[tokio::test]
async fn a_restored_database_says_so_although_it_counts_its_leases_anew() {
    let known = cursor("10@1:1:", Some(transaction(1)));
    let (outcome, done) = recover(&known, Some(written(4, "0a1b", EPOCH + 1)), Fenced::Held).await;
    assert!(operators(outcome).contains("has recorded transaction 1"));
    assert_eq!(done.len(), 1, "nothing is stored");
}

#[tokio::test]
async fn a_mark_of_a_history_that_the_database_has_lost_stops_the_relay() {
    let known = cursor("10@1:1:", Some(transaction(3)));
    let doubt = Some(String::from("the entry 23 is not in this log"));
    let (outcome, done) =
        recover_in(&known, Some(written(4, "0a1b", EPOCH)), Fenced::Held, doubt.clone()).await;
    let error = operators(outcome);
    assert!(error.contains("the entry 23 is not in this log"), "{error}");
    assert_eq!(done.len(), 1, "nothing is stored");
    // A mark that both the broker and the database know needs no storing, and the cursor is checked
    // like any other.
    let known = cursor("20@1:1:", Some(transaction(4)));
    let (outcome, _) = recover_in(&known, Some(written(4, "0a1b", EPOCH)), Fenced::Held, doubt).await;
    assert!(matches!(outcome, Ok(Recovery::Done(_))), "{outcome:?}");
}

#[tokio::test]
async fn a_lease_that_is_lost_meanwhile_brings_nothing_to_the_database() {
    let known = cursor("10@1:1:", Some(transaction(3)));
    let (outcome, _) = recover(&known, Some(written(4, "0a1b", 8)), Fenced::Lost).await;
    assert!(matches!(outcome, Ok(Recovery::LeaseLost)), "{outcome:?}");
    let (outcome, done) = recover(&cursor("3@1:1:", None), None, Fenced::Lost).await;
    assert!(matches!(outcome, Ok(Recovery::LeaseLost)), "{outcome:?}");
    assert_eq!(done, [], "the broker is asked by nobody without a lease");
}

#[tokio::test]
async fn a_mark_holds_all_of_its_checkpoint() {
    let done = Log::default();
    let transactions = broker(None, &done);
    let recovered = Recovered {
        log: String::from("0a1b"),
        number: 3,
        settled: BTreeSet::new(),
        asked_at: Instant::now(),
    };
    let mut commits = Commits::new(&Continued { transactions, recovered }, EPOCH);
    commits.submitted();
    commits.confirmed();
    assert!(!commits.may_submit(), "each batch is a transaction of its own");
    commits.close(content(), &Runtime::default()).unwrap();
    assert!(
        commits.may_submit() && !commits.is_due(),
        "the next one fills, and is not closed before this one's end"
    );
    let stored = commits.committed().await.unwrap();
    assert!(commits.may_submit() && commits.is_idle());
    let Some(Done::Committed(mark)) = done.lock().unwrap().pop() else { panic!("nothing was committed") };
    assert_eq!(mark, written(4, "0a1b", EPOCH));
    // The database gets the same, with its number.
    let TransactionCheckpoint { checkpoint, .. } = Mark::read(&mark.content).unwrap().content;
    assert_eq!(stored.changes, checkpoint.changes);
    assert_eq!(stored.cursor, Cursor { transaction: Some(transaction(4)), ..checkpoint.cursor });
}
