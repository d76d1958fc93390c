//! Checks of SQS queues. Pure.

use std::time::Duration;

use brokers::sqs::{Config, QueueFacts};
use brokers::{BrokerFacts, Inspected};

use super::horizon::{Horizon, Redelivers};
use super::report::{CheckState, Finding};
use super::text::age;

/// A handler with its own retry may take this long.
const VISIBILITY_MIN: Duration = Duration::from_secs(30);
/// Enough for the attempts of an inbox and a few lost sessions.
const RECEIVES_MIN: u32 = 10;
/// A shorter retention would end within a long weekend.
const RETENTION_MIN: Duration = Duration::from_secs(4 * 86_400);

/// Returns the findings of all checks of the queues.
#[must_use]
pub(crate) fn check(facts: &BrokerFacts<QueueFacts>, config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    for Inspected { topic, facts } in &facts.topics {
        match facts {
            Ok(facts) => findings.extend(of_queue(facts, config)),
            Err(error) => {
                let down = error.fault.is_temporary();
                let remedy = "create the queue or name it in sqs.queues, and grant sqs:GetQueueAttributes";
                let subject = format!("topic {topic}");
                findings.push(
                    Finding::fail("topic", subject, error.reason.clone(), remedy).because_unavailable(down),
                );
            }
        }
    }
    findings
}

/// Returns how long the queues can redeliver a message, including redrives from their dead-letter
/// queues.
#[must_use]
pub(crate) fn horizons(facts: &BrokerFacts<QueueFacts>) -> Vec<Horizon> {
    let of = |asked: &Inspected<QueueFacts>| {
        let facts = asked.facts.as_ref().ok()?;
        let dead = facts.redrive.as_ref().and_then(|redrive| redrive.retention);
        let redelivers = facts.retention.max(dead).map_or(Redelivers::Unknown, Redelivers::For);
        let remedy = "MessageRetentionPeriod of the queue and its dead-letter queue";
        Some(Horizon {
            topic: asked.topic.clone(),
            place: format!("queue {}", facts.queue),
            redelivers,
            remedy,
        })
    };
    facts.topics.iter().filter_map(of).collect()
}

fn of_queue(facts: &QueueFacts, config: &Config) -> Vec<Finding> {
    let subject = &format!("queue {}", facts.queue);
    let mut findings = vec![order(subject, facts)];
    if let Some(timeout) = facts.visibility_timeout {
        let problem = (timeout < VISIBILITY_MIN).then(|| {
            let remedy = format!(
                "if a handler takes longer, SQS delivers the message again: set VisibilityTimeout to {} or \
                 more, at least six times the handler's time",
                VISIBILITY_MIN.as_secs()
            );
            (CheckState::Warn, remedy)
        });
        let measured = format!("VisibilityTimeout {}", age(timeout));
        findings.push(Finding::unless("visibility-timeout", subject, measured, problem));
    }
    if let Some(retention) = facts.retention {
        let problem = (retention < RETENTION_MIN).then(|| {
            let remedy = "SQS deletes unread messages after this time: set MessageRetentionPeriod to 1209600 \
                          (14 days)";
            (CheckState::Warn, remedy.to_owned())
        });
        let measured = format!("MessageRetentionPeriod {}", age(retention));
        findings.push(Finding::unless("queue-retention", subject, measured, problem));
    }
    if let Some(limit) = facts.message_bytes_max {
        let configured = config.message_bytes_max as u64;
        let problem = (limit < configured).then(|| {
            let remedy = format!(
                "SQS refuses larger messages: set MaximumMessageSize to {configured}, or \
                 sqs.message_bytes_max to {limit}"
            );
            (CheckState::Fail, remedy)
        });
        let measured = format!("MaximumMessageSize {limit}, sqs.message_bytes_max {configured}");
        findings.push(Finding::unless("message-size", subject, measured, problem));
    }
    if let Some(delay) = facts.delay.filter(|delay| !delay.is_zero()) {
        let remedy = "SQS delays every message by this time: set DelaySeconds to 0, and schedule single \
                      messages in the outbox";
        findings.push(Finding::warn("delay", subject, format!("DelaySeconds {}", age(delay)), remedy));
    }
    findings.push(redrive(subject, facts));
    findings
}

fn order(subject: &str, facts: &QueueFacts) -> Finding {
    if !facts.fifo {
        let remedy = "a standard queue does not keep the order: use a FIFO queue if the order of a key \
                      matters";
        return Finding::warn("fifo", subject, "a standard queue", remedy);
    }
    let scope = facts.deduplication_scope.as_deref().unwrap_or("queue");
    Finding::pass("fifo", subject, format!("FIFO, deduplication per {scope}"))
}

fn redrive(subject: &str, facts: &QueueFacts) -> Finding {
    let Some(redrive) = &facts.redrive else {
        let remedy = "SQS redelivers an unreadable message until its retention ends: set a redrive policy";
        return Finding::warn("redrive", subject, "no dead-letter queue", remedy);
    };
    let measured = format!("to {} after {} receives", redrive.queue, redrive.receives_max);
    let problem = if redrive.receives_max < RECEIVES_MIN {
        Some(format!(
            "each lost session counts as a receive: set maxReceiveCount to {RECEIVES_MIN} or more, well \
             above the inbox's attempts"
        ))
    } else if redrive.retention.is_some() && redrive.retention <= facts.retention {
        // The age of a message counts from its first sending.
        Some(String::from(
            "a message may expire in the dead-letter queue before an operator sees it: give that queue a \
             longer retention than this one",
        ))
    } else {
        None
    };
    Finding::unless("redrive", subject, measured, problem.map(|remedy| (CheckState::Warn, remedy)))
}

#[cfg(test)]
mod tests {
    use brokers::sqs::Redrive;

    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn healthy() -> QueueFacts {
        QueueFacts {
            queue: String::from("orders.fifo"),
            fifo: true,
            visibility_timeout: Some(Duration::from_secs(60)),
            retention: Some(7 * DAY),
            message_bytes_max: Some(1 << 20),
            delay: Some(Duration::ZERO),
            redrive: Some(Redrive {
                queue: String::from("dead.fifo"),
                receives_max: 20,
                retention: Some(14 * DAY),
            }),
            ..QueueFacts::default()
        }
    }

    #[test]
    fn a_healthy_queue_passes() {
        let findings = of_queue(&healthy(), &Config::default());
        assert!(findings.iter().all(|finding| finding.state == CheckState::Pass), "{findings:?}");
    }

    #[test]
    fn each_attribute_that_risks_messages_is_told() {
        use CheckState::{Fail, Warn};
        type Break = fn(&mut QueueFacts);
        let table: [(&str, CheckState, Break); 8] = [
            ("fifo", Warn, |queue| queue.fifo = false),
            ("visibility-timeout", Warn, |queue| queue.visibility_timeout = Some(Duration::from_secs(5))),
            ("queue-retention", Warn, |queue| queue.retention = Some(DAY)),
            ("message-size", Fail, |queue| queue.message_bytes_max = Some(262_144)),
            ("delay", Warn, |queue| queue.delay = Some(Duration::from_secs(5))),
            ("redrive", Warn, |queue| queue.redrive = None),
            ("redrive", Warn, |queue| queue.redrive.as_mut().unwrap().receives_max = 3),
            ("redrive", Warn, |queue| queue.redrive.as_mut().unwrap().retention = Some(DAY)),
        ];
        for (name, expected, spoil) in table {
            let mut facts = healthy();
            spoil(&mut facts);
            let findings = of_queue(&facts, &Config::default());
            let found = findings.iter().find(|finding| finding.check == name).map(|finding| finding.state);
            assert_eq!(found, Some(expected), "{name}: {findings:?}");
        }
    }
}
