//! Checks of the prerequisites of publishing to Kafka in transactions. Pure.

use std::time::Duration;

use brokers::Inspected;
use brokers::kafka::{STATE_TOPIC, TopicFacts, TransactionFacts, TransactionalConnector};
use message::Fault;

use super::kafka::replication;
use super::report::{CheckState, Finding};

/// The position of a relay in the broker's transactions, according to its database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Known {
    /// The topic of its marks.
    pub(crate) topic: String,
    /// Its last transaction; 0 before the first.
    pub(crate) number: u64,
}

/// Returns the findings of all checks, for a relay whose leases have this length.
#[must_use]
pub(crate) fn check(
    facts: &TransactionFacts,
    known: Option<&Known>,
    lease: Duration,
    nodes: usize,
) -> Vec<Finding> {
    let mut findings = vec![
        time(&facts.timeout_max, TransactionalConnector::timeout(lease)),
        right(facts),
        state(facts, nodes),
    ];
    let lost = known.and_then(|known| missing(facts, known));
    if facts.marks.is_empty() && lost.is_none() {
        let measured = "no topic of marks yet: the relay creates it at its first start with transactions";
        findings.push(Finding::pass("marks", "transactions", measured));
    }
    findings.extend(lost);
    findings.extend(several(facts, known));
    findings.extend(facts.marks.iter().flat_map(|asked| marks(asked, nodes)));
    findings
}

fn time(most: &Result<Duration, String>, needed: Duration) -> Finding {
    let (check, subject) = ("transaction-time", "transactions");
    match most {
        Ok(most) => {
            let measured = format!(
                "transaction.max.timeout.ms={}, engine.lease_ttl needs {}",
                most.as_millis(),
                needed.as_millis()
            );
            let problem = (*most < needed).then(|| {
                let remedy = "the cluster refuses transactions that last as long as the lease: raise \
                              transaction.max.timeout.ms, or shorten engine.lease_ttl";
                (CheckState::Fail, remedy.to_owned())
            });
            Finding::unless(check, subject, measured, problem)
        }
        Err(problem) => {
            let remedy = "grant this user DESCRIBE_CONFIGS on the cluster";
            Finding::unknown(check, subject, problem.clone(), remedy)
        }
    }
}

fn right(facts: &TransactionFacts) -> Finding {
    let (check, subject) = ("transaction-right", "transactions");
    match &facts.may_begin {
        None => {
            let measured = "not tested: the test would be the cluster's first transaction";
            Finding::unknown(
                check,
                subject,
                measured,
                "run doctor again once the relay has started with transactions",
            )
        }
        Some(Ok(id)) => Finding::pass(check, subject, format!("began transactions as {id}")),
        Some(Err(error)) if error.fault == Fault::Operator => {
            let remedy = "the relay could not begin its transactions either: fix the reported cause";
            Finding::fail(check, subject, error.reason.clone(), remedy)
        }
        Some(Err(error)) => {
            let remedy = "check the brokers, above all the transaction coordinators";
            Finding::unknown(check, subject, error.reason.clone(), remedy)
        }
    }
}

fn state(facts: &TransactionFacts, nodes: usize) -> Finding {
    match &facts.state {
        Some(topic) => replication(&format!("topic {STATE_TOPIC}"), topic, nodes),
        None => Finding::unknown(
            "replication",
            format!("topic {STATE_TOPIC}"),
            "the cluster has had no transaction yet, or does not show this topic",
            "set transaction.state.log.replication.factor=3 and transaction.state.log.min.isr=2 before the first one",
        ),
    }
}

/// Checks that the topic of marks exists for a relay that has committed transactions. Without it,
/// it is unknown which messages were published.
fn missing(facts: &TransactionFacts, known: &Known) -> Option<Finding> {
    let is_there = facts.marks.iter().any(|asked| asked.topic == known.topic);
    (known.number > 0 && !is_there).then(|| {
        let measured =
            format!("missing, although the database has recorded transaction {} in it", known.number);
        let remedy = "the relay publishes nothing until the topic is restored or the relay starts over: see \
                      docs/kafka-exactly-once.md";
        Finding::fail("marks", format!("topic {}", known.topic), measured, remedy)
    })
}

/// Warns about several topics of marks. A relay has one for each time it started over; the cluster
/// does not show whether that was on purpose.
fn several(facts: &TransactionFacts, known: Option<&Known>) -> Option<Finding> {
    let is_own = |topic: &str| known.is_some_and(|known| known.topic == topic);
    let others: Vec<_> =
        facts.marks.iter().map(|asked| asked.topic.as_str()).filter(|topic| !is_own(topic)).collect();
    let (count, measured) = match known {
        Some(known) => (
            others.len(),
            format!("besides {}, which belongs to this relay: {}", known.topic, others.join(", ")),
        ),
        None => (others.len().saturating_sub(1), others.join(", ")),
    };
    (count > 0).then(|| {
        let remedy = "a relay with this name publishes from another database, or this relay started over: on \
                      purpose, or because its database was restored to a time before its first transaction \
                      (docs/kafka-exactly-once.md says what readers may have seen). Never delete this \
                      relay's own topic; delete the others when no relay uses them";
        Finding::warn("marks", "transactions", measured, remedy)
    })
}

fn marks(asked: &Inspected<TopicFacts>, nodes: usize) -> Vec<Finding> {
    let subject = format!("topic {}", asked.topic);
    let facts = match &asked.facts {
        Ok(facts) => facts,
        Err(error) => {
            let remedy = "grant this user DESCRIBE and DESCRIBE_CONFIGS on it";
            return vec![Finding::fail("marks", subject, error.reason.clone(), remedy)];
        }
    };
    let compacted = facts.cleanup_policy.as_deref() == Some("compact");
    let problem = (facts.partitions != 1 || !compacted).then(|| {
        let remedy = "the relay needs one partition and cleanup.policy=compact, otherwise the mark is lost: \
                      correct the topic's settings";
        (CheckState::Fail, remedy.to_owned())
    });
    let policy = facts.cleanup_policy.as_deref().unwrap_or("unknown");
    let measured = format!("partitions: {}, cleanup.policy: {policy}", facts.partitions);
    vec![Finding::unless("marks", subject.as_str(), measured, problem), replication(&subject, facts, nodes)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(replicas: usize, policy: &str) -> TopicFacts {
        let cleanup_policy = Some(policy.to_owned());
        TopicFacts { partitions: 1, replicas, in_sync: replicas, cleanup_policy, ..TopicFacts::default() }
    }

    fn healthy() -> TransactionFacts {
        let marks =
            Inspected { topic: String::from("outbox-marks.0a.orders"), facts: Ok(topic(3, "compact")) };
        TransactionFacts {
            state: Some(topic(3, "compact")),
            marks: vec![marks],
            timeout_max: Ok(Duration::from_secs(900)),
            may_begin: Some(Ok(String::from("outbox/0a/orders/doctor"))),
        }
    }

    fn states(facts: &TransactionFacts) -> Vec<(&'static str, CheckState)> {
        let known = Known { topic: String::from("outbox-marks.0a.orders"), number: 7 };
        let findings = check(facts, Some(&known), Duration::from_secs(15), 3);
        findings.iter().map(|finding| (finding.check, finding.state)).collect()
    }

    #[test]
    fn each_setting_that_risks_transactions_is_told() {
        use CheckState::{Fail, Pass, Unknown};
        assert!(states(&healthy()).iter().all(|(_, state)| *state == Pass));
        type Break = fn(&mut TransactionFacts);
        fn refused(fault: Fault) -> Option<Result<String, brokers::InspectError>> {
            Some(Err(brokers::InspectError { fault, reason: String::from("refused") }))
        }
        let table: [(&str, CheckState, Break); 12] = [
            ("transaction-time", Fail, |facts| facts.timeout_max = Ok(Duration::from_secs(14))),
            ("transaction-time", Unknown, |facts| facts.timeout_max = Err(String::from("not permitted"))),
            ("transaction-right", Fail, |facts| facts.may_begin = refused(Fault::Operator)),
            ("transaction-right", Unknown, |facts| facts.may_begin = None),
            ("transaction-right", Unknown, |facts| facts.may_begin = refused(Fault::Broker)),
            ("replication", Fail, |facts| facts.state = Some(topic(1, "compact"))),
            ("replication", Unknown, |facts| facts.state = None),
            ("marks", Fail, |facts| facts.marks[0].facts = Ok(topic(3, "compact,delete"))),
            ("marks", Fail, |facts| facts.marks.clear()),
            ("marks", Fail, |facts| facts.marks[0].topic = String::from("outbox-marks.1b.orders")),
            ("marks", CheckState::Warn, |facts| {
                let topic = String::from("outbox-marks.1b.orders");
                facts.marks.push(Inspected { topic, ..facts.marks[0].clone() });
            }),
            ("replication", Fail, |facts| facts.marks[0].facts = Ok(topic(1, "compact"))),
        ];
        for (name, expected, spoil) in table {
            let mut facts = healthy();
            spoil(&mut facts);
            let found = states(&facts);
            assert!(found.contains(&(name, expected)), "{name}: {found:?}");
        }
    }
}
