//! Checks of a Kafka cluster and its topics. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use brokers::kafka::{Config, Listener, Retained, TopicFacts};
use brokers::{BrokerFacts, Inspected};

use super::horizon::{Horizon, Redelivers};
use super::report::{CheckState, Finding};

/// Minimum retention: it outlasts a night without a consumer.
const RETENTION_MIN: Duration = Duration::from_secs(86_400);
/// More than the difference of synchronized clocks.
const TIMESTAMP_LIMIT_MIN: Duration = Duration::from_secs(300);

/// Returns the findings of all checks of the topics. `recorded` has the expected numbers of
/// partitions.
#[must_use]
pub(crate) fn check(
    facts: &BrokerFacts<TopicFacts>,
    config: &Config,
    recorded: &BTreeMap<String, usize>,
) -> Vec<Finding> {
    let nodes = facts.nodes.unwrap_or_default();
    let mut findings = vec![Finding::pass("server", "broker", format!("Kafka, brokers: {nodes}"))];
    for Inspected { topic, facts } in &facts.topics {
        let subject = format!("topic {topic}");
        let facts = match facts {
            Ok(facts) => facts,
            Err(error) => {
                let down = error.fault.is_temporary();
                let remedy = "create the topic or correct its name, and grant this user DESCRIBE on it";
                findings.push(
                    Finding::fail("topic", subject, error.reason.clone(), remedy).because_unavailable(down),
                );
                continue;
            }
        };
        findings.push(partitions(&subject, facts, recorded.get(topic).copied()));
        findings.push(replication(&subject, facts, nodes));
        findings.extend(settings(&subject, facts, config));
    }
    findings
}

/// Checks whether this machine can reach each address that a broker advertises.
#[must_use]
pub(crate) fn listeners(found: &[Listener]) -> Finding {
    let check = "listeners";
    let told = |listener: &Listener| {
        let problem = listener.problem.as_ref()?;
        Some(format!("broker {} advertises {}: {problem}", listener.broker, listener.address))
    };
    let told: Vec<String> = found.iter().filter_map(told).collect();
    if told.is_empty() {
        let count = found.len();
        return Finding::pass(
            check,
            "broker",
            format!("this machine reaches all {count} advertised addresses"),
        );
    }
    let remedy = "this machine cannot reach what such a broker advertises, so messages for its partitions wait: \
                  correct its advertised.listeners to an address for this network, or start the broker";
    Finding::fail(check, "broker", told.join(", "), remedy)
}

/// Returns how long the topics can redeliver a message.
#[must_use]
pub(crate) fn horizons(facts: &BrokerFacts<TopicFacts>) -> Vec<Horizon> {
    let of = |asked: &Inspected<TopicFacts>| {
        let facts = asked.facts.as_ref().ok()?;
        let redelivers = match facts.retention {
            Some(Retained::For(time)) => Redelivers::For(time),
            Some(Retained::Forever) => Redelivers::Forever,
            None => Redelivers::Unknown,
        };
        let remedy = "retention.ms of the topic";
        Some(Horizon {
            topic: asked.topic.clone(),
            place: format!("topic {}", asked.topic),
            redelivers,
            remedy,
        })
    };
    facts.topics.iter().filter_map(of).collect()
}

fn partitions(subject: &str, facts: &TopicFacts, recorded: Option<usize>) -> Finding {
    let check = "partitions";
    let count = facts.partitions;
    match recorded {
        _ if facts.leaderless > 0 => Finding::fail(
            check,
            subject,
            format!("{} of {count} have no leader", facts.leaderless),
            "their messages wait: restart the brokers that hold them",
        )
        .because_unavailable(true),
        Some(expected) if expected != count => Finding::fail(
            check,
            subject,
            format!("{count}, but {expected} are recorded"),
            "a different number moves keys to other partitions and breaks their order: drain the topic and \
             then record the new number, or use a new topic",
        ),
        Some(_) => Finding::pass(check, subject, format!("{count}, as recorded")),
        None => Finding::unknown(
            check,
            subject,
            format!("{count}, no number is recorded"),
            format!(
                "record the number: run relay doctor with --partitions {}={count}",
                subject.trim_start_matches("topic ")
            ),
        ),
    }
}

pub(super) fn replication(subject: &str, facts: &TopicFacts, nodes: usize) -> Finding {
    let measured = format!("{} replicas, {} in sync", facts.replicas, facts.in_sync);
    let problem = match facts.replicas {
        0 | 1 if nodes == 1 => {
            Some((CheckState::Warn, "the cluster has one broker: run three if messages must not be lost"))
        }
        0 | 1 => Some((
            CheckState::Fail,
            "losing one broker loses confirmed messages: give the topic three replicas",
        )),
        2 => Some((
            CheckState::Warn,
            "give the topic three replicas: with two, losing one broker either stops writes or leaves a \
             single copy",
        )),
        _ if facts.in_sync < facts.replicas => {
            Some((CheckState::Warn, "a replica lags or is unavailable: check its broker"))
        }
        _ => None,
    };
    Finding::unless("replication", subject, measured, problem.map(|(state, text)| (state, text.to_owned())))
}

fn settings(subject: &str, facts: &TopicFacts, config: &Config) -> Vec<Finding> {
    if let Some(problem) = &facts.settings_problem {
        let remedy = "grant this user DESCRIBE_CONFIGS on the topic";
        return vec![Finding::unknown("topic-settings", subject, problem.clone(), remedy)];
    }
    let mut findings = Vec::new();
    if let Some(in_sync_min) = facts.min_insync_replicas {
        let problem = match in_sync_min {
            0 | 1 if facts.replicas <= 1 => {
                Some((CheckState::Warn, "give the topic three replicas, then set min.insync.replicas=2"))
            }
            0 | 1 => Some((
                CheckState::Fail,
                "a single broker then satisfies acks=all: set min.insync.replicas=2 with three replicas",
            )),
            most if most >= facts.replicas => Some((
                CheckState::Warn,
                "losing one broker stops all writes: give the topic more replicas than min.insync.replicas",
            )),
            _ => None,
        };
        let problem = problem.map(|(state, text)| (state, text.to_owned()));
        findings.push(Finding::unless(
            "min-insync",
            subject,
            format!("min.insync.replicas={in_sync_min}"),
            problem,
        ));
    }
    if let Some(unclean) = facts.unclean_leader_election {
        let problem = unclean.then(|| {
            let remedy = "a replica that lacks confirmed messages may become leader: set \
                          unclean.leader.election.enable=false";
            (CheckState::Fail, remedy.to_owned())
        });
        let measured = format!("unclean.leader.election.enable={unclean}");
        findings.push(Finding::unless("unclean-election", subject, measured, problem));
    }
    if let Some(limit) = facts.message_bytes_max {
        let configured = config.message_bytes_max as u64;
        let problem = (limit < configured).then(|| {
            let remedy = format!(
                "the brokers refuse whole batches, which are then sent one message at a time: set \
                 max.message.bytes to {configured} or more, or kafka.message_bytes_max to {limit}"
            );
            (CheckState::Fail, remedy)
        });
        let measured = format!("max.message.bytes={limit}, kafka.message_bytes_max={configured}");
        findings.push(Finding::unless("message-size", subject, measured, problem));
    }
    findings.extend(timestamps(subject, facts));
    if let Some(Retained::For(time)) = facts.retention {
        let problem = (time < RETENTION_MIN).then(|| {
            let remedy = "a consumer that is down for longer misses messages: raise retention.ms to a day or \
                          more";
            (CheckState::Warn, remedy.to_owned())
        });
        let measured = format!("retention.ms={}", time.as_millis());
        findings.push(Finding::unless("retention", subject, measured, problem));
    }
    if let Some(policy) = &facts.cleanup_policy {
        let problem = policy.contains("compact").then(|| {
            let remedy = "compaction deletes unread messages, all but the last one of each key: set \
                          cleanup.policy=delete";
            (CheckState::Fail, remedy.to_owned())
        });
        findings.push(Finding::unless("cleanup", subject, format!("cleanup.policy={policy}"), problem));
    }
    if let Some(bytes) = facts.retention_bytes {
        let remedy =
            "a burst makes the topic delete unread messages: set retention.bytes=-1, or monitor the lag";
        findings.push(Finding::warn("retention-bytes", subject, format!("retention.bytes={bytes}"), remedy));
    }
    findings
}

/// Checks that the topic accepts records of a relay whose clock differs a little. With the broker's
/// own timestamps, none is refused.
fn timestamps(subject: &str, facts: &TopicFacts) -> Option<Finding> {
    let kind = facts.timestamp_type.as_deref()?;
    let limits = [
        ("message.timestamp.before.max.ms", facts.timestamp_before_max),
        ("message.timestamp.after.max.ms", facts.timestamp_after_max),
    ];
    let narrow = |(name, limit): (&str, Option<Duration>)| {
        let limit = limit.filter(|limit| kind == "CreateTime" && *limit < TIMESTAMP_LIMIT_MIN)?;
        Some(format!("{name}={}", limit.as_millis()))
    };
    let narrow: Vec<String> = limits.into_iter().filter_map(narrow).collect();
    let problem = (!narrow.is_empty()).then(|| {
        let remedy = format!(
            "{}: every record is refused while the clocks of relay and brokers differ by more: raise it to \
             3600000 or more",
            narrow.join(", ")
        );
        (CheckState::Warn, remedy)
    });
    Some(Finding::unless("timestamps", subject, format!("message.timestamp.type={kind}"), problem))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn healthy() -> TopicFacts {
        TopicFacts {
            partitions: 12,
            replicas: 3,
            in_sync: 3,
            leaderless: 0,
            min_insync_replicas: Some(2),
            unclean_leader_election: Some(false),
            retention: Some(Retained::For(Duration::from_secs(7 * 86_400))),
            retention_bytes: None,
            timestamp_type: Some(String::from("CreateTime")),
            timestamp_before_max: Some(Duration::from_millis(i64::MAX as u64)),
            timestamp_after_max: Some(Duration::from_secs(3_600)),
            cleanup_policy: Some(String::from("delete")),
            message_bytes_max: Some(1_048_588),
            settings_problem: None,
        }
    }

    fn findings(facts: TopicFacts, recorded: Option<usize>) -> Vec<Finding> {
        let topic = String::from("orders");
        let recorded = recorded.map(|count| (topic.clone(), count)).into_iter().collect();
        let topics = vec![Inspected { topic, facts: Ok(facts) }];
        let facts = BrokerFacts { version: None, nodes: Some(3), clock: None, alarms: None, topics };
        check(&facts, &Config::new(["127.0.0.1:9092"]), &recorded)
    }

    #[test]
    fn a_healthy_topic_passes() {
        let findings = findings(healthy(), Some(12));
        assert!(findings.iter().all(|finding| finding.state == CheckState::Pass), "{findings:?}");
    }

    #[test]
    fn an_advertised_address_out_of_reach_fails() {
        let listener = |broker: i32, problem: Option<&str>| Listener {
            broker,
            address: format!("127.0.0.1:{}", 29_998 + broker),
            problem: problem.map(str::to_owned),
        };
        assert_eq!(listeners(&[listener(0, None)]).state, CheckState::Pass);
        let found = listeners(&[listener(0, None), listener(1, Some("Connection refused"))]);
        assert_eq!(found.state, CheckState::Fail);
        assert_eq!(found.measured, "broker 1 advertises 127.0.0.1:29999: Connection refused");
        assert!(found.remedy.is_some_and(|remedy| remedy.contains("advertised.listeners")));
    }

    #[test]
    fn a_topic_that_takes_its_own_time_refuses_none() {
        let timestamp_type = Some(String::from("LogAppendTime"));
        let facts = TopicFacts { timestamp_type, timestamp_after_max: Some(Duration::ZERO), ..healthy() };
        let findings = findings(facts, Some(12));
        assert!(findings.iter().all(|finding| finding.state == CheckState::Pass), "{findings:?}");
    }

    #[test]
    fn each_setting_that_risks_messages_is_told() {
        use CheckState::{Fail, Unknown, Warn};
        type Break = fn(&mut TopicFacts);
        let table: [(&str, CheckState, Break); 12] = [
            ("replication", Fail, |facts| facts.replicas = 1),
            ("replication", Warn, |facts| facts.in_sync = 2),
            ("min-insync", Fail, |facts| facts.min_insync_replicas = Some(1)),
            ("min-insync", Warn, |facts| facts.min_insync_replicas = Some(3)),
            ("unclean-election", Fail, |facts| facts.unclean_leader_election = Some(true)),
            ("message-size", Fail, |facts| facts.message_bytes_max = Some(1_000)),
            ("cleanup", Fail, |facts| facts.cleanup_policy = Some(String::from("compact,delete"))),
            ("retention-bytes", Warn, |facts| facts.retention_bytes = Some(1)),
            ("retention", Warn, |facts| facts.retention = Some(Retained::For(Duration::from_secs(3_600)))),
            ("timestamps", Warn, |facts| facts.timestamp_before_max = Some(Duration::from_secs(60))),
            ("timestamps", Warn, |facts| facts.timestamp_after_max = Some(Duration::ZERO)),
            ("topic-settings", Unknown, |facts| facts.settings_problem = Some(String::from("not permitted"))),
        ];
        for (name, expected, spoil) in table {
            let mut facts = healthy();
            spoil(&mut facts);
            let findings = findings(facts, Some(12));
            let found = findings.iter().find(|finding| finding.check == name).map(|finding| finding.state);
            assert_eq!(found, Some(expected), "{name}: {findings:?}");
        }
        let moved = findings(healthy(), Some(6));
        assert!(
            moved.iter().any(|finding| finding.check == "partitions" && finding.state == Fail),
            "{moved:?}"
        );
    }
}
