use message::{
    Connector as _, Fault, FaultScope, MaxInFlightPerKey, PayloadEncoding, Receipts, SizeLimit, Splitter,
};

use super::super::mock::{ApiKey, ResponseError};
use super::*;
use crate::kafka::Sasl;

fn classified(receipt: &Receipt) -> Result<(), (Fault, FaultScope)> {
    match &receipt.outcome {
        Ok(()) => Ok(()),
        Err(error) => Err((error.fault(), error.scope())),
    }
}

const LOST: Result<(), (Fault, FaultScope)> = Err((Fault::Broker, FaultScope::Session));

#[tokio::test]
async fn twenty_thousand_messages_are_confirmed_each_once() {
    let (_mock, config) = cluster(8);
    let connector = Connector::new(config).unwrap();
    let (mut publisher, mut received) = session(&connector).await;
    assert_eq!(publisher.profile().max_in_flight_per_key, MaxInFlightPerKey::Pipelined);
    let messages = (0..20_000).map(|n| keyed(TOPIC, &format!("k{}", n % 100), format!("{n}")));
    publisher.submit(batch(0, messages)).await;
    let receipts = take(&mut received, 20_000).await;
    let mut tickets: Vec<u64> = receipts.iter().map(|receipt| receipt.ticket.0).collect();
    tickets.sort_unstable();
    assert!(receipts.iter().all(|receipt| receipt.outcome.is_ok()));
    assert!(tickets.into_iter().eq(0..20_000));
    publisher.close(LONG).await;
    assert!(received.recv().await.is_none(), "no further receipt, and the session is gone");
}

#[tokio::test]
async fn an_oversize_message_is_blamed_alone_and_ends_the_session_after_what_was_sent() {
    let (_mock, mut config) = cluster(1);
    config.message_bytes_max = 10_000;
    let connector = Connector::new(config).unwrap();
    let (mut publisher, mut received) = session(&connector).await;
    let messages = [vec![0; 10], vec![0; 10], vec![0; 10_000], vec![0; 10], vec![0; 10]];
    publisher.submit(batch(0, messages.map(|payload| keyed(TOPIC, "a", payload)))).await;
    let mut receipts = take(&mut received, 5).await;
    receipts.sort_by_key(|receipt| receipt.ticket);
    let outcomes: Vec<_> = receipts.iter().map(classified).collect();
    assert_eq!(outcomes, [Ok(()), Ok(()), Err((Fault::Message, FaultScope::Message)), LOST, LOST]);
    let text = receipts[2].outcome.as_ref().unwrap_err().to_string();
    assert!(text.contains("takes at most 10000") && text.contains(TOPIC), "{text}");
}

#[tokio::test]
async fn an_unknown_topic_is_the_operators_and_named_at_once() {
    let (_mock, config) = cluster(1);
    let connector = Connector::new(config).unwrap();
    let (mut publisher, mut received) = session(&connector).await;
    let messages = [keyed(TOPIC, "a", "1"), keyed("no-such-topic", "a", "2"), keyed(TOPIC, "a", "3")];
    publisher.submit(batch(0, messages)).await;
    let mut receipts = take(&mut received, 3).await;
    receipts.sort_by_key(|receipt| receipt.ticket);
    let outcomes: Vec<_> = receipts.iter().map(classified).collect();
    assert_eq!(outcomes, [Ok(()), Err((Fault::Operator, FaultScope::Topic)), LOST]);
    let text = receipts[1].outcome.as_ref().unwrap_err().to_string();
    assert!(text.contains("\"no-such-topic\"") && text.contains("create it"), "{text}");
}

/// Goal: a large message that probes a missing topic again and again ends no session. Oracle: the
/// receipts of its chunks and of another key, and the message, once its topic exists.
#[tokio::test]
async fn a_message_in_chunks_for_a_missing_topic_leaves_the_session_to_others() {
    let (mock, config) = cluster(1);
    let (mut publisher, mut received) = session(&Connector::new(config.clone()).unwrap()).await;
    let limit = SizeLimit { message_bytes_max: 2_000, ..SizeLimit::KAFKA };
    let splitter = Splitter { limit, encoding: PayloadEncoding::Raw, chunked_bytes_max: 100_000 };
    let chunks = splitter.split(&keyed("late", "large", vec![7; 3_000])).unwrap().unwrap();
    let count = chunks.len();
    assert!(count > 1);
    for turn in (0..).map(|turn| turn * 100).take(3) {
        publisher.submit(batch(turn, chunks.clone())).await;
        let mut receipts = take(&mut received, count).await;
        receipts.sort_by_key(|receipt| receipt.ticket);
        let probe = classified(&receipts[0]);
        assert_eq!(probe, Err((Fault::Operator, FaultScope::Topic)), "{:?}", receipts[0]);
        assert!(receipts[0].outcome.as_ref().unwrap_err().is_contained());
        assert!(receipts[1..].iter().all(|receipt| classified(receipt) == LOST), "{receipts:?}");
        publisher.submit(batch(turn + 50, [keyed(TOPIC, "another", "1")])).await;
        assert_eq!(classified(&take(&mut received, 1).await[0]), Ok(()));
    }
    mock.create_topic("late", 1).unwrap();
    // The cluster is asked about a missing topic again some time after the last answer.
    let leaves = async {
        loop {
            publisher.submit(batch(1_000, chunks.clone())).await;
            let receipts = take(&mut received, count).await;
            if receipts.iter().all(|receipt| receipt.outcome.is_ok()) {
                return;
            }
        }
    };
    tokio::time::timeout(LONG, leaves).await.expect("it leaves once its topic is there");
    publisher.close(LONG).await;
}

/// Goal: many missing topics do not delay the messages of another topic by one request each.
/// Oracle: a cluster that answers late, and the time until the last receipt, counted in requests: a
/// busy machine makes both longer.
#[tokio::test]
async fn many_missing_topics_are_asked_for_at_once() {
    const MISSING: u32 = 48;
    const LATE: Duration = Duration::from_millis(200);
    let (mock, config) = cluster(1);
    let connector = Connector::new(config).unwrap();
    let (mut publisher, mut received) = session(&connector).await;
    mock.answer_late(1, LATE).unwrap();
    let missing = (0..MISSING).map(|n| keyed(&format!("no-such-topic-{n}"), &format!("k{n}"), "x"));
    let begun_at = std::time::Instant::now();
    publisher.submit(batch(100, [keyed("no-such-topic", "alone", "x")])).await;
    take(&mut received, 1).await;
    let question = begun_at.elapsed();
    assert!(question >= LATE);
    let begun_at = std::time::Instant::now();
    publisher.submit(batch(0, missing.chain([keyed(TOPIC, "a", "behind them")]))).await;
    let receipts = take(&mut received, MISSING as usize + 1).await;
    let took = begun_at.elapsed();
    let refused = receipts
        .iter()
        .filter(|receipt| classified(receipt) == Err((Fault::Operator, FaultScope::Topic)))
        .count();
    let confirmed = receipts.iter().filter(|receipt| receipt.outcome.is_ok()).count();
    assert_eq!((refused, confirmed), (48, 1), "{:?}", receipts.iter().map(classified).collect::<Vec<_>>());
    assert!(took < question * MISSING / 2, "{took:?}, and {question:?} for one: one after another");
    publisher.close(LONG).await;
}

#[tokio::test]
async fn a_refused_batch_blames_nobody_then_the_culprit_is_found_one_by_one() {
    let (mock, config) = cluster(1);
    let connector = Connector::new(config).unwrap();
    let (mut publisher, mut received) = session(&connector).await;
    publisher.submit(batch(0, [keyed(TOPIC, "a", "opens the partition")])).await;
    assert!(take(&mut received, 1).await[0].outcome.is_ok());
    mock.request_errors(ApiKey::Produce, &[ResponseError::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE]).unwrap();
    publisher.submit(batch(1, (1..=50).map(|n| keyed(TOPIC, "a", format!("{n}"))))).await;
    let receipts = take(&mut received, 50).await;
    assert!(receipts.iter().all(|receipt| classified(receipt) == LOST), "{receipts:?}");
    publisher.submit(batch(51, [keyed(TOPIC, "a", "too late")])).await;
    assert_eq!(classified(&take(&mut received, 1).await[0]), LOST);
    publisher.close(LONG).await;

    // One by one: the first is refused, the others pass, and the session continues.
    let (mut publisher, mut received) = session(&connector).await;
    assert_eq!(publisher.profile().max_in_flight_per_key, MaxInFlightPerKey::One);
    mock.request_errors(ApiKey::Produce, &[ResponseError::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE]).unwrap();
    let mut outcomes = Vec::new();
    for n in 0..51 {
        publisher.submit(batch(n, [keyed(TOPIC, "a", format!("{n}"))])).await;
        outcomes.push(classified(&take(&mut received, 1).await[0]));
        if outcomes.last() == Some(&LOST) {
            break;
        }
    }
    // Every message that was sent before the refusal is a suspect. Their number depends on the
    // machine.
    let Some(([culprit, others @ ..], [last])) = outcomes.split_last_chunk() else {
        panic!("{outcomes:?}");
    };
    assert_eq!(*culprit, Err((Fault::Message, FaultScope::Message)));
    assert!(others.iter().all(Result::is_ok), "{outcomes:?}");
    assert_eq!(*last, LOST, "no suspect is left: back to batches");
    publisher.close(LONG).await;
    let (publisher, _received) = session(&connector).await;
    assert_eq!(publisher.profile().max_in_flight_per_key, MaxInFlightPerKey::Pipelined);
}

#[tokio::test]
async fn a_message_that_is_refused_alone_is_blamed_without_another_session() {
    let (mock, config) = cluster(1);
    let connector = Connector::new(config).unwrap();
    let (mut publisher, mut received) = session(&connector).await;
    mock.request_errors(ApiKey::Produce, &[ResponseError::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE]).unwrap();
    publisher.submit(batch(0, [keyed(TOPIC, "a", "too large")])).await;
    let receipts = take(&mut received, 1).await;
    assert_eq!(classified(&receipts[0]), Err((Fault::Message, FaultScope::Message)));
    let text = receipts[0].outcome.as_ref().unwrap_err().to_string();
    assert!(text.contains("\"orders\"") && text.contains("max.message.bytes"), "{text}");
    publisher.submit(batch(1, [keyed(TOPIC, "a", "of its key"), keyed(TOPIC, "b", "of another")])).await;
    let receipts = take(&mut received, 2).await;
    assert!(receipts.iter().all(|receipt| classified(receipt) == LOST), "{receipts:?}");
    publisher.close(LONG).await;
    let (publisher, _received) = session(&connector).await;
    assert_eq!(publisher.profile().max_in_flight_per_key, MaxInFlightPerKey::Pipelined, "no suspects");
}

#[tokio::test]
async fn a_forbidden_topic_is_the_operators() {
    let (mock, config) = cluster(1);
    let connector = Connector::new(config).unwrap();
    let (mut publisher, mut received) = session(&connector).await;
    let denied = ResponseError::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
    mock.request_errors(ApiKey::Produce, &[denied]).unwrap();
    publisher.submit(batch(0, [keyed(TOPIC, "a", "1"), keyed(TOPIC, "a", "2")])).await;
    let mut receipts = take(&mut received, 2).await;
    receipts.sort_by_key(|receipt| receipt.ticket);
    let outcomes: Vec<_> = receipts.iter().map(classified).collect();
    assert_eq!(outcomes, [Err((Fault::Operator, FaultScope::Topic)), LOST]);
}

#[tokio::test]
async fn a_broker_that_goes_down_and_comes_back_loses_nothing() {
    let (mock, config) = cluster(4);
    let connector = Connector::new(config.clone()).unwrap();
    let (mut publisher, mut received) = session(&connector).await;
    let message = |n: u64| keyed(TOPIC, &format!("k{}", n % 10), format!("{n}"));
    publisher.submit(batch(0, (0..500).map(message))).await;
    assert!(take(&mut received, 500).await.iter().all(|receipt| receipt.outcome.is_ok()));
    mock.down().unwrap();
    publisher.submit(batch(500, (500..1_000).map(message))).await;
    mock.up().unwrap();
    publisher.submit(batch(1_000, (1_000..1_500).map(message))).await;
    assert!(take(&mut received, 1_000).await.iter().all(|receipt| receipt.outcome.is_ok()));
    publisher.close(LONG).await;
}

#[tokio::test]
async fn what_is_unconfirmed_when_the_grace_is_over_is_unknown() {
    let (mock, config) = cluster(1);
    let connector = Connector::new(config).unwrap();
    let (mut publisher, mut received) = session(&connector).await;
    publisher.submit(batch(0, [keyed(TOPIC, "a", "opens the partition")])).await;
    assert!(take(&mut received, 1).await[0].outcome.is_ok());
    mock.down().unwrap();
    publisher.submit(batch(1, (1..=10).map(|n| keyed(TOPIC, "a", format!("{n}"))))).await;
    publisher.close(Duration::ZERO).await;
    let receipts = take(&mut received, 10).await;
    assert!(receipts.iter().all(|receipt| classified(receipt) == LOST), "{receipts:?}");
    assert!(received.recv().await.is_none());
}

#[tokio::test]
async fn a_dropped_session_answers_for_everything() {
    let (mock, config) = cluster(1);
    let connector = Connector::new(config).unwrap();
    let (mut publisher, mut received) = session(&connector).await;
    publisher.submit(batch(0, [keyed(TOPIC, "a", "opens the partition")])).await;
    assert!(take(&mut received, 1).await[0].outcome.is_ok());
    mock.down().unwrap();
    publisher.submit(batch(1, (1..=10).map(|n| keyed(TOPIC, "a", format!("{n}"))))).await;
    drop(publisher);
    assert_eq!(take(&mut received, 10).await.len(), 10);
}

#[tokio::test]
async fn an_unreachable_cluster_is_the_brokers_fault_and_named() {
    let (mock, mut config) = cluster(1);
    mock.down().unwrap();
    config.connect_timeout_ms = 300;
    let connector = Connector::new(config).unwrap();
    let (receipts, _received) = Receipts::channel();
    let error = connector.connect(receipts).await.err().unwrap();
    assert_eq!((error.fault(), error.scope()), (Fault::Broker, FaultScope::Session));
    assert!(error.to_string().contains("not reachable within 300 ms"), "{error}");
    assert!(error.to_string().contains(connector.destination()), "{error}");
}

#[tokio::test]
async fn credentials_that_the_cluster_does_not_take_are_the_operators() {
    let (_mock, mut config) = cluster(1);
    // The mock cluster speaks no SASL at all, which librdkafka reports like a refused login.
    config.sasl = Some(Sasl::new("outbox").mechanism(crate::kafka::Mechanism::Plain).password("wrong"));
    let (receipts, _received) = Receipts::channel();
    let error = Connector::new(config).unwrap().connect(receipts).await.err().unwrap();
    assert_eq!((error.fault(), error.scope()), (Fault::Operator, FaultScope::Session), "{error}");
    assert!(error.to_string().contains("kafka.sasl"), "{error}");
}

/// Returns a key of this partition, in a topic of two.
fn key_in(partition: usize) -> String {
    let keys = (0..).map(|n| format!("k{n}"));
    keys.into_iter()
        .find(|key| super::super::partitioner::partition_of(key.as_bytes(), 2) == partition)
        .unwrap()
}

#[tokio::test]
async fn a_partition_without_a_leader_delays_no_other_and_goes_on_in_order() {
    let (mock, config) = cluster(2);
    mock.create_topic("other", 1).unwrap();
    mock.lead(TOPIC, 0, None).unwrap();
    let (silent, alive) = (key_in(0), key_in(1));
    let connector = Connector::new(config.clone()).unwrap();
    let (mut publisher, mut received) = session(&connector).await;
    let submit = publisher.submit(batch(0, (0..50).map(|n| keyed(TOPIC, &silent, format!("{n}")))));
    tokio::time::timeout(LONG, submit).await.expect("submitting waits for no partition");
    publisher.submit(batch(50, (50..100).map(|n| keyed(TOPIC, &alive, format!("{n}"))))).await;
    publisher.submit(batch(100, (100..150).map(|n| keyed("other", &silent, format!("{n}"))))).await;
    let mut others: Vec<u64> = Vec::new();
    for receipt in take(&mut received, 100).await {
        assert_eq!(classified(&receipt), Ok(()), "{receipt:?}");
        others.push(receipt.ticket.0);
    }
    assert!(others.iter().all(|ticket| *ticket >= 50), "{others:?}");
    mock.lead(TOPIC, 0, Some(1)).unwrap();
    let late = take(&mut received, 50).await;
    assert!(late.iter().all(|receipt| receipt.outcome.is_ok()), "{late:?}");
    let tickets: Vec<u64> = late.iter().map(|receipt| receipt.ticket.0).collect();
    assert!(tickets.into_iter().eq(0..50), "in the order of submission");
    publisher.close(LONG).await;
    assert!(received.recv().await.is_none(), "each has one receipt");
}

#[tokio::test]
async fn what_waits_for_a_partition_without_a_leader_is_answered_when_the_session_ends() {
    let (mock, config) = cluster(1);
    mock.lead(TOPIC, 0, None).unwrap();
    let connector = Connector::new(config).unwrap();
    let (mut publisher, mut received) = session(&connector).await;
    publisher.submit(batch(0, (0..10).map(|n| keyed(TOPIC, "a", format!("{n}"))))).await;
    publisher.close(Duration::ZERO).await;
    let receipts = take(&mut received, 10).await;
    assert!(receipts.iter().all(|receipt| classified(receipt) == LOST), "{receipts:?}");
    assert!(received.recv().await.is_none());
}

#[tokio::test]
async fn a_confirmation_that_names_no_place_is_unknown_and_ends_the_session() {
    let (mock, config) = cluster(1);
    let connector = Connector::new(config).unwrap();
    let (mut publisher, mut received) = session(&connector).await;
    publisher.submit(batch(0, [keyed(TOPIC, "a", "1")])).await;
    assert_eq!(classified(&take(&mut received, 1).await[0]), Ok(()));
    // librdkafka treats a duplicate as stored. This one is not: the mock cluster has not examined
    // it.
    let duplicate = ResponseError::RD_KAFKA_RESP_ERR_DUPLICATE_SEQUENCE_NUMBER;
    mock.request_errors(ApiKey::Produce, &[duplicate]).unwrap();
    publisher.submit(batch(1, [keyed(TOPIC, "a", "2")])).await;
    let receipts = take(&mut received, 1).await;
    assert_eq!(classified(&receipts[0]), LOST);
    let text = receipts[0].outcome.as_ref().unwrap_err().to_string();
    assert!(text.contains("without its offset"), "{text}");
}
