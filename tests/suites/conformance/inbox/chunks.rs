//! Messages in chunks: the handler runs once with the whole message, in spite of reordering,
//! repetition and crashes.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use crate::inbox::broker::Broker;
use crate::inbox::database::{Database, TestDatabase};
use crate::inbox::runner::{Effect, assert_once_and_in_order, builder, start};
use crate::inbox::{consumer, keyed, message};
use inbox::{
    Admission, AdmitError, Candidate, CommitError, ConfirmError, CrashPoint, DeadLetterQuery, Gathered,
    HandlerError, Inbox, Reason, RedriveError, RedriveOptions, Redriven, Refusal, Resolution, RunError,
    Shutdown, Tenant,
};
use message::{Chunk, Committed, Fingerprint, Message, PayloadEncoding, SizeLimit, Splitter};
use migrations::Dialect as Name;
use rand::seq::SliceRandom as _;

tests::cases! { "inbox/chunks/{on}/{case}":
    every {
        chunks_between_others_take_effect_once_in_the_order_of_their_key,
        any_order_and_any_repetition_gives_the_whole_once,
        of_the_last_two_chunks_the_second_sees_the_first,
        racing_consumers_of_chunks_apply_once,
        a_crash_between_chunks_is_harmless,
        chunks_of_two_splits_do_not_mix,
        a_whole_that_is_tried_again_does_not_expire,
        chunks_of_a_message_that_came_whole_afterwards_leave_no_dead_letter,
        a_chunk_that_could_not_be_kept_is_kept_later_and_leaves_no_failure,
        missing_chunks_expire_for_all_to_see,
        a_consumer_leaves_the_incomplete_messages_of_another,
        hostile_chunks_are_refused_and_harm_nobody,
        a_message_that_is_split_in_ever_new_ways_is_refused,
        a_damaged_whole_is_dead_lettered_before_any_effect,
        a_failing_message_dies_whole_and_is_redriven_whole,
        late_chunks_of_a_dead_letter_make_no_second_one,
        a_chunk_that_was_rolled_back_gives_no_proof,
        all_chunks_in_one_transaction_are_proven_together,
        a_whole_that_was_not_admitted_gives_no_proof,
    }
}

const LARGE: usize = 5_000;

/// Splits a message with a limit so small that a large one has several chunks.
fn split_at(message_bytes_max: usize, message: &Message) -> Vec<Message> {
    let limit = SizeLimit { destination: "the test", message_bytes_max };
    let splitter = Splitter { limit, encoding: PayloadEncoding::Raw, chunked_bytes_max: 1 << 20 };
    splitter.split(message).unwrap().expect("larger than the limit")
}

pub(super) fn chunks_of(message: &Message) -> Vec<Message> {
    let chunks = split_at(2_000, message);
    assert!(chunks.len() >= 3, "{}", chunks.len());
    chunks
}

fn large(text: &str) -> Message {
    message(&format!("{text}{}", "x".repeat(LARGE)))
}

/// Gathers one delivery and applies a whole message, like a service that does not use the runner.
async fn consume<DB: TestDatabase>(
    inbox: &Inbox<DB>,
    message: &Message,
) -> Result<(bool, Committed), AdmitError> {
    let billing = consumer("billing");
    let mut tx = inbox.begin().await.unwrap();
    let mut applied = false;
    if let Gathered::Whole(whole) = tx.gather(&billing, &Tenant::none(), message).await?
        && let Admission::Fresh(_) = tx.admit(&billing, &Tenant::none(), &whole).await?
    {
        assert_eq!(whole.chunk, None);
        DB::apply(&mut tx, "billing", &whole).await.unwrap();
        applied = true;
    }
    let [proof] = <[Committed; 1]>::try_from(tx.commit().await.unwrap()).unwrap();
    Ok((applied, proof))
}

async fn assert_nothing_waits<DB: TestDatabase>(inbox: &Inbox<DB>) {
    assert_eq!(inbox.incomplete(NonZeroU32::MAX).await.unwrap(), []);
}

pub(super) async fn chunks_between_others_take_effect_once_in_the_order_of_their_key<DB: TestDatabase>(
    database: &Database<DB>,
) {
    // A batch of 40 is large enough to hold chunks and the messages behind them on their key.
    for batch in [None, NonZeroUsize::new(40)] {
        let inbox = database.inbox().await;
        let mut deliveries = Vec::new();
        for number in 0..30 {
            let key = number % 3;
            let text = format!("{key}:{number:03}");
            if number % 4 == 1 {
                let whole = keyed(&format!("key-{key}"), &format!("{text}{}", "x".repeat(LARGE)));
                let chunks = chunks_of(&whole);
                // The relay crashed half-way once, and sent all chunks again.
                deliveries.extend(chunks[..2].iter().chain(&chunks).cloned());
            } else {
                deliveries.push(keyed(&format!("key-{key}"), &text));
            }
        }
        let sent = deliveries.len();
        let broker = Broker::new(deliveries);
        let consumer = builder(&inbox, &broker, Effect::works());
        let running = start(if let Some(batch) = batch { consumer.batch(batch) } else { consumer });
        broker.drained().await;
        running.stop().await;
        assert_once_and_in_order(&DB::effects(&database.pool, "billing").await, 30);
        assert_eq!(broker.counts(), (sent, 0, 1));
        assert_nothing_waits(&inbox).await;
        let mut tx = database.admin.begin().await.unwrap();
        for statement in ["DELETE FROM effect", "DELETE FROM inbox_message"] {
            DB::sql(&mut tx, statement).await.unwrap();
        }
        tx.commit().await.unwrap();
    }
}

async fn any_order_and_any_repetition_gives_the_whole_once<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let mut expected = Vec::new();
    for round in 0..20 {
        let whole = large(&format!("{round}:"));
        let chunks = chunks_of(&whole);
        let mut arrivals: Vec<_> = chunks.iter().chain(&chunks).chain(&chunks[..1]).collect();
        arrivals.shuffle(&mut rand::rng());
        let order: Vec<_> = arrivals.iter().map(|chunk| chunk.chunk.as_ref().unwrap().index()).collect();
        let mut applied = 0;
        for chunk in &arrivals {
            let (fresh, proof) = consume(&inbox, chunk).await.unwrap();
            assert_eq!(proof.subject(), whole.id.as_uuid());
            applied += u32::from(fresh);
        }
        assert_eq!(applied, 1, "{order:?}");
        // The same message is a duplicate when a relay without the limit sends it whole.
        assert!(!consume(&inbox, &whole).await.unwrap().0, "{order:?}");
        expected.push(String::from_utf8(whole.payload.to_vec()).unwrap());
    }
    assert_eq!(DB::effects(&database.pool, "billing").await, expected);
    assert_nothing_waits(&inbox).await;
}

async fn of_the_last_two_chunks_the_second_sees_the_first<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let billing = consumer("billing");
    let whole = large("one");
    let chunks = chunks_of(&whole);
    let (last, others) = chunks.split_last().unwrap();
    let (first, between) = others.split_first().unwrap();
    for chunk in between {
        assert!(!consume(&inbox, chunk).await.unwrap().0);
    }
    let mut tx = inbox.begin().await.unwrap();
    let gathered = tx.gather(&billing, &Tenant::none(), first).await.unwrap();
    assert!(matches!(gathered, Gathered::Kept { .. }), "{gathered:?}");
    let mut racing = {
        let (inbox, last) = (inbox.clone(), last.clone());
        tokio::spawn(async move { consume(&inbox, &last).await.unwrap().0 })
    };
    // It has to wait. A consumer that ignored the lock would report a missing chunk at once.
    let early = tokio::time::timeout(Duration::from_millis(300), &mut racing).await;
    assert!(early.is_err(), "did not wait: {early:?}");
    drop(tx.commit().await.unwrap());
    assert!(racing.await.unwrap(), "the first chunk was there");
    assert_eq!(DB::effects(&database.pool, "billing").await.len(), 1);
    assert_nothing_waits(&inbox).await;
}

async fn racing_consumers_of_chunks_apply_once<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    for round in 0..10 {
        let whole = large(&format!("{round}:"));
        let chunks = chunks_of(&whole);
        let racing = chunks.iter().chain(&chunks).map(|chunk| {
            let (inbox, chunk) = (inbox.clone(), chunk.clone());
            tokio::spawn(async move { consume(&inbox, &chunk).await.unwrap().0 })
        });
        let mut applied = 0;
        for task in racing.collect::<Vec<_>>() {
            applied += u32::from(task.await.unwrap());
        }
        assert_eq!(applied, 1);
    }
    assert_eq!(DB::effects(&database.pool, "billing").await.len(), 10);
    assert_nothing_waits(&inbox).await;
}

/// Keeps the first chunk of a message for a consumer.
async fn keep_one<DB: TestDatabase>(inbox: &Inbox<DB>, name: &str, chunk: &Message) {
    let mut tx = inbox.begin().await.unwrap();
    let gathered = tx.gather(&consumer(name), &Tenant::none(), chunk).await.unwrap();
    assert!(matches!(gathered, Gathered::Kept { .. }), "{gathered:?}");
    tx.commit().await.unwrap();
}

async fn incomplete_of<DB: TestDatabase>(inbox: &Inbox<DB>) -> Vec<String> {
    let incomplete = inbox.incomplete(NonZeroU32::MAX).await.unwrap();
    incomplete.into_iter().map(|waiting| waiting.consumer).collect()
}

/// One consumer has stopped, and another one in the same inbox continues. Messages that were
/// confirmed to the broker for the first one must exist when it returns.
async fn a_consumer_leaves_the_incomplete_messages_of_another<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    keep_one(&inbox, "mail", &chunks_of(&large("one"))[0]).await;
    keep_one(&inbox, "billing", &chunks_of(&large("two"))[0]).await;
    two_days_pass(database).await;
    let broker = Broker::new(Vec::new());
    let often = Some(Duration::from_millis(20));
    let running = start(builder(&inbox, &broker, Effect::works()).maintain_interval(often));
    while incomplete_of(&inbox).await != ["mail"] {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    running.stop().await;
    let letters = inbox.dead_letters(&DeadLetterQuery::default()).await.unwrap();
    assert!(matches!(&letters[..], [letter] if letter.consumer == "billing"), "{letters:?}");
    // The inbox would no longer admit it.
    for _ in 0..8 {
        two_days_pass(database).await;
    }
    let running = start(builder(&inbox, &broker, Effect::works()).maintain_interval(often));
    while !incomplete_of(&inbox).await.is_empty() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    running.stop().await;
}

async fn a_crash_between_chunks_is_harmless<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let whole = large("one");
    let chunks = chunks_of(&whole);
    let broker = Broker::new(chunks.clone());
    // Each consumer completes one commit more than the previous one, then crashes before it
    // settles.
    for commits in 1..=2 * chunks.len() {
        let shutdown = Shutdown::new();
        let abort = shutdown.abort.clone();
        let left = AtomicUsize::new(commits);
        let crash = move |point, _| {
            if point == CrashPoint::AfterCommit && left.fetch_sub(1, Ordering::Relaxed) == 1 {
                abort.cancel();
            }
        };
        let one_at_a_time = builder(&inbox, &broker, Effect::works()).concurrency(NonZeroUsize::MIN);
        let crashed = one_at_a_time.prefetch(NonZeroUsize::MIN).crash_hook(crash).build().unwrap();
        let crashed = crashed.run(shutdown.clone());
        tokio::select! {
            crashed = crashed => assert!(matches!(crashed, Err(RunError::Aborted { .. })), "{crashed:?}"),
            () = broker.drained() => {}
        }
    }
    let running = start(builder(&inbox, &broker, Effect::works()));
    broker.drained().await;
    running.stop().await;
    let effects = DB::effects(&database.pool, "billing").await;
    assert_eq!(effects, [String::from_utf8(whole.payload.to_vec()).unwrap()]);
    assert_nothing_waits(&inbox).await;
}

async fn chunks_of_two_splits_do_not_mix<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let whole = large("one");
    let (few, many) = (split_at(3_000, &whole), split_at(1_800, &whole));
    assert_ne!(few.len(), many.len());
    for chunk in many[..many.len() - 1].iter().chain(&few[1..]) {
        assert!(!consume(&inbox, chunk).await.unwrap().0);
    }
    let [waiting] = &inbox.incomplete(NonZeroU32::MAX).await.unwrap()[..] else { panic!("one message") };
    let missing: Vec<Vec<u32>> = waiting.splits.iter().map(|split| split.missing().collect()).collect();
    assert_eq!(missing, [vec![0], vec![u32::try_from(many.len()).unwrap() - 1]]);
    assert!(consume(&inbox, &few[0]).await.unwrap().0);
    assert!(!consume(&inbox, &many[0]).await.unwrap().0, "late");
    assert_eq!(DB::effects(&database.pool, "billing").await.len(), 1);
    assert_nothing_waits(&inbox).await;
}

/// Moves the time at which every incomplete message began back by two days.
async fn two_days_pass<DB: TestDatabase>(database: &Database<DB>) {
    let mut tx = database.admin.begin().await.unwrap();
    let statement = match DB::DIALECT {
        Name::Postgres => "UPDATE inbox_chunk_set SET begun_at = begun_at - interval '2 days'",
        Name::Sqlite => "UPDATE inbox_chunk_set SET begun_at = begun_at - 172800000000",
    };
    DB::sql(&mut tx, statement).await.unwrap();
    tx.commit().await.unwrap();
}

pub(super) async fn missing_chunks_expire_for_all_to_see<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let whole = large("one");
    let chunks = chunks_of(&whole);
    for (at, chunk) in chunks.iter().enumerate() {
        if at != 1 {
            assert!(!consume(&inbox, chunk).await.unwrap().0);
        }
    }
    let [waiting] = &inbox.incomplete(NonZeroU32::MAX).await.unwrap()[..] else { panic!("one message") };
    assert_eq!(
        (waiting.id, waiting.consumer.as_str(), waiting.bytes),
        (whole.id, "billing", whole.payload.len() as u64)
    );
    assert_eq!(waiting.splits[0].missing().collect::<Vec<_>>(), [1]);
    assert_eq!(inbox.maintain().await.unwrap().incomplete_expired, 0, "it is not overdue");
    two_days_pass(database).await;
    assert_eq!(inbox.maintain().await.unwrap().incomplete_expired, 1);
    assert_eq!(inbox.maintain().await.unwrap().incomplete_expired, 0);
    assert_nothing_waits(&inbox).await;
    let [letter] = &inbox.dead_letters(&DeadLetterQuery::default()).await.unwrap()[..] else { panic!("one") };
    assert_eq!((letter.reason, letter.message_id), (Reason::Incomplete, Some(whole.id)));
    let told = format!("{} of {} chunks, missing 2", chunks.len() - 1, chunks.len());
    assert!(letter.error.contains(&told), "{}", letter.error);
    // A fragment cannot be redriven, because it never reaches a handler.
    let handler = Effect::works();
    let redriven = inbox.redrive(&consumer("billing"), letter.id, &handler, RedriveOptions::default()).await;
    assert!(matches!(redriven, Err(RedriveError::NotAMessage { .. })), "{redriven:?}");
    assert!(DB::effects(&database.pool, "billing").await.is_empty());
    // Published again, the message takes effect, even when the broker redelivers it.
    let broker = Broker::new(chunks);
    broker.lose_settlements(1);
    let running = start(builder(&inbox, &broker, Effect::works()));
    broker.drained().await;
    running.stop().await;
    assert_eq!(DB::effects(&database.pool, "billing").await.len(), 1);
}

/// While a whole message waits for its next attempt, no consumer holds its chunks.
async fn a_whole_that_is_tried_again_does_not_expire<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let (whole, billing) = (large("one"), consumer("billing"));
    assert!(!consume(&inbox, &chunks_of(&whole)[0]).await.unwrap().0);
    let backoff = Some(inbox::Backoff::MESSAGES);
    let failures = inbox.record_failure(&billing, &Tenant::none(), whole.id, "not yet", backoff).await;
    assert_eq!(failures.unwrap().attempts, 1);
    two_days_pass(database).await;
    assert_eq!(inbox.maintain().await.unwrap().incomplete_expired, 0);
    assert_eq!(inbox.incomplete(NonZeroU32::MAX).await.unwrap().len(), 1, "it is still told");
    let mut tx = database.admin.begin().await.unwrap();
    let statement = match DB::DIALECT {
        Name::Postgres => "UPDATE inbox_attempt SET next_at = next_at - interval '2 days'",
        Name::Sqlite => "UPDATE inbox_attempt SET next_at = next_at - 172800000000",
    };
    DB::sql(&mut tx, statement).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(inbox.maintain().await.unwrap().incomplete_expired, 1, "it was not tried for long");
}

/// Goal: a message that was published in chunks at first, and then as a whole, leaves nothing for
/// an operator to publish again. Oracle: no dead letter, and no chunks.
async fn chunks_of_a_message_that_came_whole_afterwards_leave_no_dead_letter<DB: TestDatabase>(
    database: &Database<DB>,
) {
    let inbox = database.inbox().await;
    let whole = large("one");
    assert!(!consume(&inbox, &chunks_of(&whole)[0]).await.unwrap().0);
    assert!(consume(&inbox, &whole).await.unwrap().0);
    two_days_pass(database).await;
    assert_eq!(inbox.maintain().await.unwrap().incomplete_expired, 0);
    assert_nothing_waits(&inbox).await;
    assert_eq!(inbox.dead_letters(&DeadLetterQuery::default()).await.unwrap(), []);
}

/// The table of chunks is missing for longer than a failing message would live, but other messages
/// succeed.
async fn a_chunk_that_could_not_be_kept_is_kept_later_and_leaves_no_failure<DB: TestDatabase>(
    database: &Database<DB>,
) {
    let rename = async |statement: &'static str| {
        let mut tx = database.admin.begin().await.unwrap();
        DB::sql(&mut tx, statement).await.unwrap();
        tx.commit().await.unwrap();
    };
    let inbox = database.inbox().await;
    let (whole, billing, scope) = (large("one"), consumer("billing"), Tenant::none());
    let chunks = chunks_of(&whole);
    rename("ALTER TABLE inbox_chunk RENAME TO inbox_chunk_away").await;
    // There is only one chunk, which is stored alone later, so no whole message clears its
    // failures.
    let broker =
        Broker::new(std::iter::once(chunks[0].clone()).chain((0..40).map(|n| message(&n.to_string()))));
    let handler = Effect::new(|_, _| {
        std::thread::sleep(Duration::from_millis(25));
        Ok(())
    });
    let quick = builder(&inbox, &broker, handler).attempts_max(1);
    let running = start(quick.concurrency(NonZeroUsize::new(2).unwrap()));
    broker.settled_at_least(40).await;
    tokio::time::timeout(Duration::from_secs(120), async {
        while inbox.attempt(&billing, &scope, whole.id).await.unwrap().is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .expect("the failure is on record");
    rename("ALTER TABLE inbox_chunk_away RENAME TO inbox_chunk").await;
    broker.drained().await;
    running.stop().await;
    assert_eq!(inbox.attempt(&billing, &scope, whole.id).await.unwrap().map(|a| a.attempts), None);
    assert_eq!(inbox.dead_letters(&DeadLetterQuery::default()).await.unwrap().len(), 0);
    for chunk in &chunks[1..] {
        let _ = consume(&inbox, chunk).await.unwrap();
    }
    assert_eq!(DB::effects(&database.pool, "billing").await.len(), 41);
}

async fn hostile_chunks_are_refused_and_harm_nobody<DB: TestDatabase>(database: &Database<DB>) {
    let options = database.options().chunked_bytes_max(LARGE + 100);
    let inbox = Inbox::<DB>::open(database.pool.clone(), options).await.unwrap();
    let billing = consumer("billing");
    let whole = large("one");
    let chunks = chunks_of(&whole);
    let fingerprint = chunks[0].chunk.as_ref().unwrap().fingerprint();
    let count = u32::try_from(chunks.len()).unwrap();
    assert!(!consume(&inbox, &chunks[0]).await.unwrap().0);

    // Three faults: a different total for the same message, a payload of a different length, and
    // more bytes than this inbox accepts.
    let mut longer = chunks[1].clone();
    let total = Chunk::new(1, count, LARGE as u64 + 50, fingerprint).unwrap();
    longer.payload = vec![b'y'; usize::try_from(total.range().end - total.range().start).unwrap()].into();
    longer.chunk = Some(Box::new(total));
    let mut cut = chunks[1].clone();
    cut.payload = cut.payload.slice(1..);
    let huge = split_at(2_000, &message(&"x".repeat(2 * LARGE)));
    for (hostile, told) in
        [(&longer, "an earlier chunk gave"), (&cut, "must have"), (&huge[0], "assembles at most")]
    {
        let refused = consume(&inbox, hostile).await.unwrap_err();
        assert!(matches!(&refused, AdmitError::Refused(Refusal::Chunk { .. })), "{refused:?}");
        assert!(refused.to_string().contains(told), "{refused}");
    }
    // A consumer that does not gather refuses fragments, alone and in a batch.
    let mut tx = inbox.begin().await.unwrap();
    let admitted = tx.admit(&billing, &Tenant::none(), &chunks[1]).await;
    assert!(matches!(admitted, Err(AdmitError::Refused(Refusal::Fragment { index: 1, .. }))), "{admitted:?}");
    let other = message("other");
    let candidates = [&chunks[1], &other].map(|message| Candidate { tenant: Tenant::none(), message });
    let admitted = tx.admit_batch(&billing, &candidates).await.unwrap();
    assert!(matches!(admitted[..], [Err(Refusal::Fragment { .. }), Ok(Admission::Fresh(_))]), "{admitted:?}");
    tx.rollback().await.unwrap();

    // The runner dead-letters these chunks, but the message itself takes effect.
    let broker = Broker::new([longer, cut, huge[0].clone()]);
    let running = start(builder(&inbox, &broker, Effect::works()));
    broker.settled_at_least(3).await;
    chunks.into_iter().for_each(|chunk| broker.send(Ok(chunk)));
    broker.drained().await;
    running.stop().await;
    assert_eq!(DB::effects(&database.pool, "billing").await.len(), 1);
    let letters = inbox.dead_letters(&DeadLetterQuery::default()).await.unwrap();
    assert_eq!(letters.len(), 3);
    for letter in letters {
        assert_eq!(letter.reason, Reason::Malformed);
        assert!(letter.headers.iter().any(|(name, _)| name == "ce_chunkindex"), "{letter:?}");
        assert!(letter.message().is_err(), "a fragment is nothing to redrive");
    }
    assert_nothing_waits(&inbox).await;
}

/// Goal: a producer that splits one message in ever new ways does not fill the tables. Oracle: the
/// chunks of the 17th way are refused with an error that says so; the message takes effect from
/// those of the first.
async fn a_message_that_is_split_in_ever_new_ways_is_refused<DB: TestDatabase>(database: &Database<DB>) {
    const WAYS: u32 = 16;
    let inbox = database.inbox().await;
    let whole = large("one");
    let part = |index: u32, count: u32| {
        let chunk = Chunk::new(index, count, whole.payload.len() as u64, Fingerprint::of(&whole)).unwrap();
        let start = usize::try_from(chunk.range().start).unwrap();
        let end = usize::try_from(chunk.range().end).unwrap();
        Message { payload: whole.payload.slice(start..end), chunk: Some(Box::new(chunk)), ..whole.clone() }
    };
    for count in 2..2 + WAYS {
        assert!(!consume(&inbox, &part(0, count)).await.unwrap().0);
    }
    for count in [2 + WAYS, 40] {
        let refused = consume(&inbox, &part(0, count)).await.unwrap_err();
        assert!(matches!(&refused, AdmitError::Refused(Refusal::Chunk { .. })), "{refused:?}");
        assert!(refused.to_string().contains("more than 16 different sizes"), "{refused}");
    }
    let [waiting] = &inbox.incomplete(NonZeroU32::MAX).await.unwrap()[..] else { panic!("one message") };
    assert_eq!(waiting.splits.len(), WAYS as usize);
    assert!(!consume(&inbox, &part(1, 17)).await.unwrap().0, "it is of a known way");
    assert!(consume(&inbox, &part(1, 2)).await.unwrap().0);
    assert_eq!(DB::effects(&database.pool, "billing").await.len(), 1);
    assert_nothing_waits(&inbox).await;
}

async fn a_damaged_whole_is_dead_lettered_before_any_effect<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let whole = large("one");
    let mut chunks = chunks_of(&whole);
    let intact = chunks.clone();
    let mut bytes = chunks[1].payload.to_vec();
    bytes[7] ^= 1;
    chunks[1].payload = bytes.into();
    for chunk in &chunks[..chunks.len() - 1] {
        assert!(!consume(&inbox, chunk).await.unwrap().0);
    }
    let damaged = consume(&inbox, chunks.last().unwrap()).await;
    assert!(matches!(damaged, Err(AdmitError::Damaged { .. })), "{damaged:?}");
    let broker = Broker::new([chunks.last().unwrap().clone()]);
    let running = start(builder(&inbox, &broker, Effect::works()));
    broker.drained().await;
    running.stop().await;
    assert!(DB::effects(&database.pool, "billing").await.is_empty());
    let [letter] = &inbox.dead_letters(&DeadLetterQuery::default()).await.unwrap()[..] else { panic!("one") };
    assert_eq!((letter.reason, letter.payload.len()), (Reason::Malformed, whole.payload.len()));
    assert!(letter.message().is_err(), "what is damaged is nothing to redrive");
    assert_nothing_waits(&inbox).await;
    // Sent again undamaged, the message takes effect.
    for chunk in intact {
        broker.send(Ok(chunk));
    }
    let running = start(builder(&inbox, &broker, Effect::works()));
    broker.drained().await;
    running.stop().await;
    assert_eq!(DB::effects(&database.pool, "billing").await.len(), 1);
}

async fn a_failing_message_dies_whole_and_is_redriven_whole<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let whole = large("one");
    let chunks = chunks_of(&whole);
    let broker = Broker::new(chunks.clone());
    let calls = std::sync::Arc::new(AtomicU32::new(0));
    let counted = std::sync::Arc::clone(&calls);
    let failing = Effect::new(move |message, _| {
        assert_eq!(message.chunk, None);
        counted.fetch_add(1, Ordering::Relaxed);
        Err(HandlerError::retry("always"))
    });
    let running = start(builder(&inbox, &broker, failing).attempts_max(3));
    broker.drained().await;
    running.stop().await;
    assert_eq!(calls.load(Ordering::Relaxed), 3);
    assert_nothing_waits(&inbox).await;
    let [letter] = &inbox.dead_letters(&DeadLetterQuery::default()).await.unwrap()[..] else { panic!("one") };
    assert_eq!((letter.reason, letter.attempts), (Reason::Poison, 3));
    assert_eq!(letter.message().unwrap(), whole);
    let handler = Effect::works();
    let redriven = inbox.redrive(&consumer("billing"), letter.id, &handler, RedriveOptions::default()).await;
    assert_eq!(redriven.unwrap(), Redriven::Now(Resolution::Applied));
    assert_eq!(DB::effects(&database.pool, "billing").await.len(), 1);
    for chunk in &chunks {
        assert!(!consume(&inbox, chunk).await.unwrap().0, "late");
    }
    assert_nothing_waits(&inbox).await;
}

/// Of two redelivered chunks, the first can arrive just before a consumer that seemed dead
/// dead-letters the whole message.
async fn late_chunks_of_a_dead_letter_make_no_second_one<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let chunks = chunks_of(&large("one"));
    let broker = Broker::new(chunks.clone());
    let failing = Effect::new(|_, _| Err(HandlerError::reject("never")));
    let running = start(builder(&inbox, &broker, failing));
    broker.drained().await;
    running.stop().await;
    assert!(!consume(&inbox, &chunks[0]).await.unwrap().0);
    assert!(inbox.incomplete(NonZeroU32::MAX).await.unwrap().is_empty(), "a late chunk is a duplicate");
    two_days_pass(database).await;
    assert_eq!(inbox.maintain().await.unwrap().incomplete_expired, 0);
    assert_nothing_waits(&inbox).await;
    let [letter] = &inbox.dead_letters(&DeadLetterQuery::default()).await.unwrap()[..] else { panic!("one") };
    assert_eq!((letter.reason, letter.deliveries), (Reason::Rejected, 1));
}

async fn a_chunk_that_was_rolled_back_gives_no_proof<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let billing = consumer("billing");
    let chunks = chunks_of(&large("one"));
    let mut tx = inbox.begin().await.unwrap();
    DB::sql(&mut tx, "SAVEPOINT before").await.unwrap();
    let gathered = tx.gather(&billing, &Tenant::none(), &chunks[0]).await.unwrap();
    assert!(matches!(gathered, Gathered::Kept { held: 1, .. }), "{gathered:?}");
    DB::sql(&mut tx, "ROLLBACK TO SAVEPOINT before").await.unwrap();
    let committed = tx.commit().await;
    assert!(matches!(committed, Err(CommitError::RolledBack { .. })), "{committed:?}");
    let confirmed = inbox.confirm(&billing, &Tenant::none(), &chunks[0]).await;
    assert!(matches!(confirmed, Err(ConfirmError::NotCommitted { .. })), "{confirmed:?}");
    assert_nothing_waits(&inbox).await;
    assert!(!consume(&inbox, &chunks[0]).await.unwrap().0);
    drop(inbox.confirm(&billing, &Tenant::none(), &chunks[0]).await.unwrap());
}

async fn all_chunks_in_one_transaction_are_proven_together<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let billing = consumer("billing");
    let whole = large("one");
    let chunks = chunks_of(&whole);
    let mut tx = inbox.begin().await.unwrap();
    let (last, others) = chunks.split_last().unwrap();
    for chunk in others {
        let gathered = tx.gather(&billing, &Tenant::none(), chunk).await.unwrap();
        assert!(matches!(gathered, Gathered::Kept { .. }), "{gathered:?}");
    }
    let gathered = tx.gather(&billing, &Tenant::none(), last).await.unwrap();
    assert_eq!(gathered, Gathered::Whole(whole.clone()));
    let admitted = tx.admit(&billing, &Tenant::none(), &whole).await.unwrap();
    assert!(matches!(admitted, Admission::Fresh(_)), "{admitted:?}");
    let proofs = tx.commit().await.unwrap();
    assert_eq!(proofs.len(), chunks.len());
    assert_nothing_waits(&inbox).await;
}

/// The commit removes its chunks, so proofs for them would lose the message.
async fn a_whole_that_was_not_admitted_gives_no_proof<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let message = large("forgotten");
    let mut tx = inbox.begin().await.unwrap();
    let mut is_whole = false;
    for chunk in &chunks_of(&message) {
        let gathered = tx.gather(&consumer("billing"), &Tenant::none(), chunk).await.unwrap();
        is_whole = matches!(gathered, Gathered::Whole(_));
    }
    assert!(is_whole);
    let error = tx.commit().await.unwrap_err();
    assert!(matches!(error, CommitError::RolledBack { source: None, .. }), "{error}");
    for chunk in &chunks_of(&message) {
        drop(consume(&inbox, chunk).await.unwrap());
    }
    assert_eq!(DB::effects(&database.pool, "billing").await.len(), 1);
}
