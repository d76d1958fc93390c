//! Reads and checks the topic of a relay's marks, and finds the last mark in it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use message::{PublishError, TransactionMark};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::FromClientConfig as _;
use rdkafka::config::{FromClientConfigAndContext as _, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::{ClientContext, Message as _, Offset, TopicPartitionList};
use tokio::runtime::Handle;

use super::inspect::{MARKS, owner_of};
use super::parts::Parts;
use crate::kafka::config::Config;
use crate::kafka::connector::operator;
use crate::kafka::fault;
use crate::kafka::log;
use crate::kafka::login::Login;

/// Number of records first read back from the end. It is multiplied by sixteen for as long as the
/// last mark does not begin within them.
const TAIL: i64 = 64;
const TAIL_GROWS: i64 = 16;
const POLL: Duration = Duration::from_millis(100);
/// Minimum time allowed for finding the last mark.
const LAST_MIN: Duration = Duration::from_secs(10);
/// The topic's settings. Its segments are short, so that compaction keeps it small.
const SETTINGS: [(&str, &str); 4] = [
    ("cleanup.policy", "compact"),
    ("segment.bytes", "16777216"),
    ("min.cleanable.dirty.ratio", "0.1"),
    ("max.compaction.lag.ms", "86400000"),
];
/// Stands for the cluster's default.
const REPLICAS: i32 = -1;

type Reader = BaseConsumer<Quiet>;

/// A context for which the end of a partition is not an error.
struct Quiet;

impl ClientContext for Quiet {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        log::forward(level, facility, text);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        log::error(&error, reason);
    }
}

impl ConsumerContext for Quiet {}

/// The topic of the marks.
pub(super) struct Marks<'a> {
    pub(super) config: &'a Config,
    pub(super) topic: &'a str,
    pub(super) login: &'a Login,
}

impl Marks<'_> {
    /// Ensures that the topic exists and keeps its records. Blocks, on a thread that may block
    /// inside `runtime`.
    ///
    /// # Errors
    /// The operator's error when the topic is missing although marks were written, or has other
    /// settings.
    pub(super) fn check(&self, is_new: bool, runtime: &Handle) -> Result<(), PublishError> {
        let client = self.config.client().map_err(operator)?;
        let admin = AdminClient::from_config(&client).map_err(|error| self.failed("reach", &error))?;
        self.login.give(admin.inner())?;
        let topics = self.topics(&admin)?;
        match topics.get(self.topic) {
            Some(1) => {}
            Some(count) => {
                return Err(self.refused(&format!("has {count} partitions; it must have 1: recreate it")));
            }
            None if is_new => {
                self.warn_of_earlier(topics.keys());
                self.make(&admin, runtime)?;
            }
            None => {
                return Err(self.refused(
                    "is missing, although transactions were committed with it: restore it. Without it, it \
                     is unknown which messages were published; docs/kafka-exactly-once.md says how to start \
                     over, which may publish copies",
                ));
            }
        }
        let policy = self.policy(&admin, runtime)?;
        if policy != "compact" {
            let problem = format!("has cleanup.policy={policy}, which removes marks; set it to compact");
            return Err(self.refused(&problem));
        }
        Ok(())
    }

    /// Returns the topics of marks with their partition counts.
    fn topics(
        &self,
        admin: &AdminClient<DefaultClientContext>,
    ) -> Result<BTreeMap<String, usize>, PublishError> {
        // Asks for all topics: a request for one by its name would let the brokers create it.
        let metadata = admin.inner().fetch_metadata(None, self.config.connect_timeout());
        let metadata = metadata.map_err(|error| self.failed("find", &error))?;
        let marks = metadata.topics().iter().filter(|found| found.name().starts_with(MARKS));
        Ok(marks.map(|found| (found.name().to_owned(), found.partitions().len())).collect())
    }

    /// Warns when topics of marks of this relay's name exist although it creates its own only now.
    /// It may have started over on purpose, or belong to another database. Or its database was
    /// restored to a time before its first transaction, which only these topics record.
    fn warn_of_earlier<'t>(&self, topics: impl Iterator<Item = &'t String>) {
        let earlier = earlier(self.topic, topics);
        if !earlier.is_empty() {
            tracing::warn!(
                target: "brokers::kafka",
                topic = self.topic,
                earlier = earlier.join(", "),
                "this relay starts new marks, but the cluster already has marks of a relay with the same name: if its database was restored to a time before its first transaction, readers may now see copies; docs/kafka-exactly-once.md says what to do"
            );
        }
    }

    fn make(&self, admin: &AdminClient<DefaultClientContext>, runtime: &Handle) -> Result<(), PublishError> {
        let plan = NewTopic::new(self.topic, 1, TopicReplication::Fixed(REPLICAS));
        let plan = SETTINGS.iter().fold(plan, |plan, (name, value)| plan.set(name, value));
        let made = runtime.block_on(admin.create_topics([&plan], &self.options()));
        let made = made.map_err(|error| self.failed("create", &error))?;
        match made.into_iter().find_map(Result::err) {
            None | Some((_, Code::TopicAlreadyExists)) => Ok(()),
            Some((_, code)) => Err(self.failed("create", &KafkaError::AdminOp(code))),
        }
    }

    fn policy(
        &self,
        admin: &AdminClient<DefaultClientContext>,
        runtime: &Handle,
    ) -> Result<String, PublishError> {
        let asked = [ResourceSpecifier::Topic(self.topic)];
        let deadline = Instant::now() + self.config.connect_timeout();
        loop {
            let described = runtime.block_on(admin.describe_configs(&asked, &self.options()));
            let described = described.map_err(|error| self.failed("describe", &error))?;
            match described.into_iter().next() {
                Some(Ok(found)) => match found.get("cleanup.policy").and_then(|entry| entry.value.clone()) {
                    Some(policy) if !policy.is_empty() => return Ok(policy),
                    // A broker that does not know the topic yet may return an empty answer.
                    _ if Instant::now() < deadline => std::thread::sleep(POLL),
                    _ => return Err(self.refused("has no cleanup.policy; grant this user DESCRIBE_CONFIGS")),
                },
                // Not every broker knows a topic that was created just now.
                Some(Err(Code::UnknownTopicOrPartition)) | None if Instant::now() < deadline => {
                    std::thread::sleep(POLL);
                }
                Some(Err(code)) => return Err(self.failed("describe", &KafkaError::AdminOp(code))),
                None => return Err(self.refused("was not described by the cluster")),
            }
        }
    }

    fn options(&self) -> AdminOptions {
        let timeout = Some(self.config.connect_timeout());
        AdminOptions::new().request_timeout(timeout).operation_timeout(timeout)
    }

    /// Returns the last committed mark. Must be called after `init_transactions`: then no
    /// transaction is open, and no earlier producer can add a mark. Blocks.
    ///
    /// # Errors
    /// The broker's error when it does not answer; the operator's when the topic holds other
    /// records.
    pub(super) fn last(&self) -> Result<Option<TransactionMark>, PublishError> {
        let deadline = Instant::now() + last_max(self.config);
        let reader = self.consumer("read_committed")?;
        let (low, high) = self.ends(&reader, deadline)?;
        let mut tail = TAIL;
        loop {
            let from = (high - tail).max(low);
            let parts = self.read(&reader, from, deadline)?;
            match parts.mark() {
                Some(mark) => return Ok(Some(mark)),
                None if from > low => tail = tail.saturating_mul(TAIL_GROWS),
                None => return Ok(None),
            }
        }
    }

    /// Returns where the topic begins and ends. Uses the end of the written records, not of the
    /// committed ones. Any open transaction hides everything behind its first record, and a mark
    /// there would be missed. Waits until nothing is hidden.
    fn ends(&self, reader: &Reader, deadline: Instant) -> Result<(i64, i64), PublishError> {
        let everything = self.consumer("read_uncommitted")?;
        let timeout = self.config.connect_timeout();
        loop {
            let written = everything.fetch_watermarks(self.topic, 0, timeout);
            let committed =
                written.and_then(|written| Ok((written, reader.fetch_watermarks(self.topic, 0, timeout)?.1)));
            match committed {
                Ok(((low, high), committed)) if committed >= high => return Ok((low, high)),
                Ok(((_, high), committed)) if Instant::now() >= deadline => {
                    return Err(PublishError::session_lost(format!(
                        "kafka topic {:?} ends at {high}, but an open transaction hides records from {committed} on; retrying",
                        self.topic
                    )));
                }
                Err(error) if Instant::now() >= deadline => return Err(self.failed("read", &error)),
                Ok(_) | Err(_) => std::thread::sleep(POLL),
            }
        }
    }

    fn consumer(&self, isolation: &str) -> Result<Reader, PublishError> {
        let mut client = self.config.client().map_err(operator)?;
        client
            // The client requires a group's name; nothing is committed, so the group is never
            // created.
            .set("group.id", format!("{}-marks", self.config.client_id))
            .set("auto.offset.reset", "error")
            .set("enable.auto.commit", "false")
            .set("enable.partition.eof", "true")
            .set("isolation.level", isolation)
            .set("allow.auto.create.topics", "false")
            .set("fetch.wait.max.ms", "10")
            // Reads from the leader: a follower may end before the last mark.
            .set("client.rack", "");
        let reader =
            Reader::from_config_and_context(&client, Quiet).map_err(|error| self.failed("read", &error))?;
        self.login.give(reader.client())?;
        Ok(reader)
    }

    /// Reads from an offset to the end.
    fn read(&self, reader: &Reader, from: i64, deadline: Instant) -> Result<Parts, PublishError> {
        let mut from_there = TopicPartitionList::new();
        from_there
            .add_partition_offset(self.topic, 0, Offset::Offset(from))
            .and_then(|()| reader.assign(&from_there))
            .map_err(|error| self.failed("read", &error))?;
        let mut parts = Parts::default();
        loop {
            match reader.poll(POLL) {
                Some(Ok(record)) => {
                    let taken = parts.take(record.payload().unwrap_or_default());
                    taken.map_err(|problem| {
                        let at = record.offset();
                        self.refused(&format!("has a record at offset {at} that is not a mark: {problem}"))
                    })?;
                }
                Some(Err(KafkaError::PartitionEOF(_))) => return Ok(parts),
                // A mark that cannot be read may be the last one.
                Some(Err(error))
                    if fault::is_unreadable(fault::code(&error), "") || Instant::now() >= deadline =>
                {
                    return Err(self.failed("read", &error));
                }
                None if Instant::now() >= deadline => {
                    let error = KafkaError::MessageConsumption(Code::OperationTimedOut);
                    return Err(self.failed("read", &error));
                }
                Some(Err(_)) | None => {}
            }
        }
    }

    fn refused(&self, problem: &str) -> PublishError {
        let text = format!("kafka topic {:?}, which contains the marks of this relay, {problem}", self.topic);
        PublishError::new(message::Fault::Operator, message::FaultScope::Session, text)
    }

    fn failed(&self, verb: &str, error: &KafkaError) -> PublishError {
        let code = fault::code(error);
        fault::session(code, &format!("cannot {verb} topic {:?}", self.topic))
    }
}

/// Returns the maximum time for finding the last mark, besides the questions that begin within it.
pub(super) fn last_max(config: &Config) -> Duration {
    config.connect_timeout().max(LAST_MIN)
}

/// Returns the topics of marks that belong to a relay of the same name and another log.
fn earlier<'t>(own: &str, topics: impl Iterator<Item = &'t String>) -> Vec<&'t str> {
    let others = topics.map(String::as_str).filter(|topic| *topic != own);
    let relay_of = |topic| owner_of(topic).map(|(_, relay)| relay);
    others.filter(|topic| relay_of(topic) == relay_of(own)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_the_same_relay_over_another_log_are_found() {
        let topics = ["a1.orders", "b2.orders", "b2.orders.eu", "orders", "c3.more.orders"];
        let topics = topics.map(|topic| format!("{MARKS}{topic}"));
        let found = |own: &str| earlier(own, topics.iter()).join(" ");
        assert_eq!(found("outbox-marks.a1.orders"), "outbox-marks.b2.orders");
        assert_eq!(found("outbox-marks.d4.orders.eu"), "outbox-marks.b2.orders.eu");
        assert_eq!(found("outbox-marks.d4.payments"), "");
    }
}
