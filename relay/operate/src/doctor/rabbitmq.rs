//! Checks of a RabbitMQ broker and its queues. Pure.

use brokers::rabbitmq::{QueueFacts, QueueSettings, TopicFacts};
use brokers::{BrokerFacts, Inspected};

use super::horizon::{Horizon, Redelivers};
use super::report::{CheckState, Finding};
use super::text::age;

/// From this version on a quorum queue has a delivery limit by default.
const LIMITED_FROM: u32 = 4;
/// The default limit of these versions.
const DELIVERIES_DEFAULT: i64 = 20;
/// Enough for the attempts of an inbox and a few lost sessions.
const DELIVERIES_MIN: i64 = 20;
/// From here on a limit is out of reach and counts as none.
const DELIVERIES_UNREACHED: i64 = 100_000;

/// Returns the findings of all checks of the topics.
#[must_use]
pub(crate) fn check(facts: &BrokerFacts<TopicFacts>) -> Vec<Finding> {
    let version = facts.version.as_deref();
    let server = version.map(|version| Finding::pass("server", "broker", version));
    let mut findings: Vec<Finding> = server.into_iter().chain(alarms(facts.alarms.as_deref())).collect();
    for Inspected { topic, facts } in &facts.topics {
        let subject = format!("topic {topic}");
        match facts {
            Ok(facts) => findings.extend(of_topic(&subject, facts, version)),
            Err(error) => {
                let down = error.fault.is_temporary();
                let remedy = "declare the queue, or the exchange and its binding, or correct the topic's \
                              name";
                findings.push(
                    Finding::fail("topic", subject, error.reason.clone(), remedy).because_unavailable(down),
                );
            }
        }
    }
    findings
}

fn alarms(raised: Option<&[String]>) -> Option<Finding> {
    let raised = raised?;
    if raised.is_empty() {
        return Some(Finding::pass("alarms", "broker", "none"));
    }
    let remedy = "the broker accepts no messages until the alarms end, and nothing is lost: free memory or disk \
                  space of these servers, or let consumers catch up";
    Some(Finding::fail("alarms", "broker", raised.join(", "), remedy).because_unavailable(true))
}

/// Returns how long the queues can redeliver a message.
#[must_use]
pub(crate) fn horizons(facts: &BrokerFacts<TopicFacts>) -> Vec<Horizon> {
    let mut horizons = Vec::new();
    for Inspected { topic, facts } in &facts.topics {
        for queue in facts.iter().flat_map(|facts| facts.queues.iter().flatten()) {
            let redelivers = match queue.settings.as_ref().map(|settings| settings.message_ttl) {
                Some(Some(ttl)) => Redelivers::For(ttl),
                Some(None) => Redelivers::Forever,
                None => Redelivers::Unknown,
            };
            let place = format!("queue {}", queue.queue);
            let remedy = "message-ttl of the queue, with a dead-letter exchange";
            horizons.push(Horizon { topic: topic.clone(), place, redelivers, remedy });
        }
    }
    horizons
}

fn of_topic(subject: &str, facts: &TopicFacts, version: Option<&str>) -> Vec<Finding> {
    let mut findings = Vec::new();
    if facts.exchange_durable == Some(false) {
        let remedy = "a broker restart deletes it and its bindings: declare it as durable";
        findings.push(Finding::fail("exchange", subject, "the exchange is transient", remedy));
    }
    match facts.queues.as_deref() {
        None => findings.push(Finding::unknown(
            "topic",
            subject,
            "the queues behind the exchange are unknown",
            "set rabbitmq.management_url; behind exchange-to-exchange bindings, check the queues by hand",
        )),
        Some([]) if facts.passes => {
            let remedy = "its messages are dropped and count as published (unroutable = pass): bind a queue if \
                          they have a consumer";
            findings.push(Finding::warn("topic", subject, "no queue is bound", remedy));
        }
        Some([]) => {
            let remedy = "the broker returns every message, so the topic stops: bind a queue to the exchange";
            findings.push(Finding::fail("topic", subject, "no queue is bound", remedy));
        }
        Some(queues) => queues.iter().for_each(|queue| findings.extend(of_queue(queue, version))),
    }
    findings
}

fn of_queue(facts: &QueueFacts, version: Option<&str>) -> Vec<Finding> {
    let subject = format!("queue {}", facts.queue);
    let Some(settings) = &facts.settings else {
        let remedy = "set rabbitmq.management_url: AMQP does not report the settings of a queue";
        return vec![Finding::unknown("queue-settings", subject, "the queue exists", remedy)];
    };
    let mut findings = vec![kind(&subject, settings), durable(&subject, settings)];
    findings.push(overflow(&subject, settings));
    if settings.kind == "quorum" {
        findings.push(deliveries(&subject, settings, version));
    }
    findings.extend(dead_letters(&subject, settings));
    findings.extend(times(&subject, settings));
    findings
}

fn dead_letters(subject: &str, settings: &QueueSettings) -> Option<Finding> {
    let exchange = settings.dead_letter_exchange.as_deref()?;
    let measured = settings.dead_letters_lost.clone();
    let measured =
        measured.unwrap_or_else(|| format!("dead-letter exchange {exchange:?} routes them to a queue"));
    let problem = settings.dead_letters_lost.is_some().then(|| {
        let remedy = "RabbitMQ silently drops the dead letters of this queue: declare the exchange, and bind \
                      a queue";
        (CheckState::Fail, remedy.to_owned())
    });
    Some(Finding::unless("dead-letters", subject, measured, problem))
}

fn kind(subject: &str, settings: &QueueSettings) -> Finding {
    let members = settings.members.map(|members| format!(", {members} members")).unwrap_or_default();
    let problem = match (settings.kind.as_str(), settings.members) {
        ("quorum", Some(1 | 2)) => Some("a quorum queue needs three members to survive the loss of one"),
        ("quorum", _) => None,
        ("stream", _) => {
            Some("a stream keeps messages that the toolkit's consumers acknowledge: use a quorum queue")
        }
        _ => Some("only one server holds it: use a quorum queue (x-queue-type=quorum)"),
    };
    let problem = problem.map(|remedy| (CheckState::Warn, remedy.to_owned()));
    Finding::unless("queue-type", subject, format!("{}{members}", settings.kind), problem)
}

fn durable(subject: &str, settings: &QueueSettings) -> Finding {
    let measured = match (settings.durable, settings.transient) {
        (true, false) => "durable",
        (false, _) => "transient",
        (true, true) => "deleted with its consumers",
    };
    let problem = (!settings.durable || settings.transient).then(|| {
        let remedy = "its confirmed messages are lost with it: declare it as durable, neither exclusive nor \
                      auto-delete";
        (CheckState::Fail, remedy.to_owned())
    });
    Finding::unless("durability", subject, measured, problem)
}

fn overflow(subject: &str, settings: &QueueSettings) -> Finding {
    let overflow = settings.overflow.as_deref().unwrap_or("drop-head");
    if !settings.bounded {
        return Finding::pass("overflow", subject, "no length limit");
    }
    let problem = (overflow != "reject-publish").then(|| {
        let remedy = "a full queue drops confirmed messages: set overflow=reject-publish";
        (CheckState::Fail, remedy.to_owned())
    });
    let refuses = settings.full.as_deref().filter(|_| problem.is_none()).map(|_| {
        let remedy = "it refuses messages, so the topic waits, also for the other queues of its exchange: let \
                      its consumer catch up, raise the limit, or unbind it";
        (CheckState::Warn, remedy.to_owned())
    });
    let full = settings.full.as_ref().map(|full| format!(", full: {full}")).unwrap_or_default();
    Finding::unless("overflow", subject, format!("bounded, overflow={overflow}{full}"), problem.or(refuses))
}

fn deliveries(subject: &str, settings: &QueueSettings, version: Option<&str>) -> Finding {
    let major = version.and_then(|text| text.split([' ', '.']).find_map(|part| part.parse::<u32>().ok()));
    let is_unlimited = major.is_some_and(|major| major < LIMITED_FROM);
    let limit = match settings.delivery_limit {
        None => (!is_unlimited).then_some(DELIVERIES_DEFAULT),
        // Version 3 treats it as a limit that the first delivery has passed (measured: 3.10.8).
        Some(..0) => is_unlimited.then_some(1),
        Some(limit) => (limit < DELIVERIES_UNREACHED).then_some(limit),
    };
    let dead_letters = settings.dead_letter_exchange.as_deref();
    let measured = format!(
        "{}, {}",
        limit.map_or_else(|| String::from("no delivery limit"), |limit| format!("delivery limit {limit}")),
        dead_letters.map_or_else(
            || String::from("no dead-letter exchange"),
            |exchange| format!("dead-letter exchange {exchange:?}")
        ),
    );
    let problem = match (limit, dead_letters) {
        (Some(_), None) => Some((
            CheckState::Fail,
            String::from(
                "the queue drops a message at this limit: set dead-letter-exchange, or a delivery-limit out of \
                 reach, such as 1000000",
            ),
        )),
        (Some(limit), Some(_)) if limit < DELIVERIES_MIN => Some((
            CheckState::Warn,
            format!(
                "each lost session counts as a delivery: raise delivery-limit to {DELIVERIES_MIN} or more, \
                 and above the inbox's attempts"
            ),
        )),
        _ => None,
    };
    Finding::unless("delivery-limit", subject, measured, problem)
}

fn times(subject: &str, settings: &QueueSettings) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(ttl) = settings.message_ttl {
        let measured = format!("message-ttl {}", age(ttl));
        let (state, remedy) = match settings.dead_letter_exchange {
            None => (
                CheckState::Fail,
                "a message that waits longer is dropped: set dead-letter-exchange, or remove the TTL",
            ),
            Some(_) => (
                CheckState::Warn,
                "a message that waits longer leaves the queue unread: set a TTL longer than any outage",
            ),
        };
        findings.push(Finding::unless("queue-ttl", subject, measured, Some((state, remedy.to_owned()))));
    }
    if let Some(expires) = settings.expires {
        let remedy =
            "the queue and its messages are deleted when it has no consumer for this long: remove `expires`";
        findings.push(Finding::fail("queue-ttl", subject, format!("expires {}", age(expires)), remedy));
    }
    findings
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn healthy() -> QueueSettings {
        QueueSettings {
            kind: String::from("quorum"),
            durable: true,
            dead_letter_exchange: Some(String::from("dead")),
            members: Some(3),
            ..QueueSettings::default()
        }
    }

    fn findings(settings: QueueSettings, version: &str) -> Vec<Finding> {
        of_queue(&QueueFacts { queue: String::from("orders"), settings: Some(settings) }, Some(version))
    }

    #[test]
    fn a_healthy_queue_passes() {
        let findings = findings(healthy(), "RabbitMQ 4.1.0");
        assert!(findings.iter().all(|finding| finding.state == CheckState::Pass), "{findings:?}");
    }

    #[test]
    fn an_alarm_fails_and_names_its_server() {
        let found =
            |alarms: &[&str]| alarms_of(&alarms.iter().map(|alarm| (*alarm).to_owned()).collect::<Vec<_>>());
        assert_eq!(found(&[]).state, CheckState::Pass);
        let raised = found(&["rabbit@a: disk alarm"]);
        assert_eq!((raised.state, raised.measured.as_str()), (CheckState::Fail, "rabbit@a: disk alarm"));
        assert_eq!(alarms(None), None, "AMQP does not tell");
    }

    fn alarms_of(raised: &[String]) -> Finding {
        alarms(Some(raised)).unwrap()
    }

    #[test]
    fn each_setting_that_risks_messages_is_told() {
        use CheckState::{Fail, Warn};
        type Break = fn(&mut QueueSettings);
        let table: [(&str, CheckState, Break); 11] = [
            ("queue-type", Warn, |queue| queue.kind = String::from("classic")),
            ("queue-type", Warn, |queue| queue.members = Some(1)),
            ("durability", Fail, |queue| queue.durable = false),
            ("durability", Fail, |queue| queue.transient = true),
            ("overflow", Fail, |queue| queue.bounded = true),
            ("overflow", Warn, |queue| {
                queue.bounded = true;
                queue.overflow = Some(String::from("reject-publish"));
                queue.full = Some(String::from("9 of 9 messages"));
            }),
            ("delivery-limit", Fail, |queue| queue.dead_letter_exchange = None),
            ("delivery-limit", Warn, |queue| queue.delivery_limit = Some(3)),
            ("dead-letters", Fail, |queue| {
                queue.dead_letters_lost = Some(String::from("there is no exchange \"dead\""));
            }),
            ("queue-ttl", Warn, |queue| queue.message_ttl = Some(Duration::from_secs(60))),
            ("queue-ttl", Fail, |queue| queue.expires = Some(Duration::from_secs(60))),
        ];
        for (name, expected, spoil) in table {
            let mut settings = healthy();
            spoil(&mut settings);
            let findings = findings(settings, "RabbitMQ 4.1.0");
            let found = findings.iter().find(|finding| finding.check == name).map(|finding| finding.state);
            assert_eq!(found, Some(expected), "{name}: {findings:?}");
        }
        let transient = TopicFacts { exchange_durable: Some(false), queues: Some(Vec::new()), passes: false };
        let findings_of_topic = of_topic("topic orders", &transient, None);
        let found: Vec<_> = findings_of_topic.iter().map(|finding| (finding.check, finding.state)).collect();
        assert_eq!(found, [("exchange", Fail), ("topic", Fail)]);
        let unlistened = TopicFacts { queues: Some(Vec::new()), passes: true, ..TopicFacts::default() };
        let found: Vec<_> = of_topic("topic audit", &unlistened, None).iter().map(|it| it.state).collect();
        assert_eq!(found, [Warn]);
        let limited = |delivery_limit, version| {
            let queue = QueueSettings { dead_letter_exchange: None, delivery_limit, ..healthy() };
            let findings = findings(queue, version);
            let is_failed = findings.iter().any(|finding| finding.state != CheckState::Pass);
            is_failed.then(|| format!("{findings:?}"))
        };
        for (limit, version) in [
            (None, "RabbitMQ 3.10.8"),
            (Some(1_000_000), "RabbitMQ 3.10.8"),
            (Some(1_000_000), "RabbitMQ 4.1.0"),
            (Some(-1), "RabbitMQ 4.1.0"),
        ] {
            assert_eq!(limited(limit, version), None, "{limit:?} {version}");
        }
        let at_once = limited(Some(-1), "RabbitMQ 3.10.8").unwrap();
        assert!(at_once.contains("delivery limit 1, no dead-letter exchange"), "{at_once}");
    }
}
