//! Compares how long a broker can redeliver a message with what inboxes remember. Pure.

use std::time::Duration;

use super::facts::{InboxFacts, UnreadInbox};
use super::report::{CheckState, Finding};
use super::text::age;

/// How long a place keeps messages.
#[cfg_attr(
    not(any(feature = "kafka", feature = "rabbitmq", feature = "sqs")),
    allow(dead_code, reason = "HTTP endpoints keep nothing")
)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Redelivers {
    /// At most this long after they were published.
    For(Duration),
    /// Without a limit.
    #[cfg_attr(
        not(any(feature = "kafka", feature = "rabbitmq")),
        expect(dead_code, reason = "queues of SQS have one")
    )]
    Forever,
    /// The place did not report it.
    Unknown,
}

/// A place that can redeliver messages.
#[cfg_attr(
    not(any(feature = "kafka", feature = "rabbitmq", feature = "sqs")),
    allow(dead_code, reason = "HTTP endpoints keep nothing")
)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Horizon {
    /// The topic.
    pub(crate) topic: String,
    /// `topic orders`, `queue billing`.
    pub(crate) place: String,
    /// How long it can redeliver.
    pub(crate) redelivers: Redelivers,
    /// The setting that bounds it.
    pub(crate) remedy: &'static str,
}

/// Compares every place with every inbox that applies its topic. An inbox dead-letters messages
/// older than it remembers: none is applied twice, but some may not be applied at all.
#[must_use]
pub(crate) fn check(horizons: &[Horizon], inboxes: &[InboxFacts]) -> Vec<Finding> {
    let name = "inbox-retention";
    let mut findings = Vec::new();
    if inboxes.is_empty() {
        let remedy = "list the consumers' inboxes as [[verify.inbox]]: each must remember ids for twice as \
                      long as the broker can redeliver";
        return vec![Finding::unknown(name, "inboxes", "none is listed", remedy)];
    }
    for inbox in inboxes {
        let subject = format!("inbox {}", inbox.consumer);
        if !inbox.lost_days.is_empty() {
            let remedy = "attach them again: consumers do not recreate a day, because the new partition \
                          would not know what took effect on it (docs/operations/histories.md: a day that \
                          is gone)";
            let measured = format!("partitions of these days are missing: {}", inbox.lost_days.join(", "));
            findings.push(Finding::fail(name, &subject, measured, remedy));
        }
        let remembers = match &inbox.remembers {
            Ok(Some(remembers)) => *remembers,
            Ok(None) => {
                let remedy = "start its consumer once: the inbox remembers ids from then on";
                findings.push(Finding::unknown(name, subject, "it does not remember ids yet", remedy));
                continue;
            }
            Err(UnreadInbox { reason, unavailable }) => {
                let remedy = "check url and rights of this [[verify.inbox]]: verify, dead and show cannot read it either";
                let finding = Finding::fail(name, subject, reason.clone(), remedy);
                findings.push(finding.because_unavailable(*unavailable));
                continue;
            }
        };
        if let Some(ahead) = inbox.begins_in {
            let remedy = "until then every message is dead-lettered as too old, whatever the retention: correct the \
                          database's clock, then move the beginning back (docs/operations/histories.md: a memory that \
                          begins in the future)";
            let measured = format!("its memory begins in {}", age(ahead));
            findings.push(Finding::fail(name, subject, measured, remedy));
            continue;
        }
        let is_of = |place: &&Horizon| inbox.topics.is_empty() || inbox.topics.contains(&place.topic);
        findings.extend(horizons.iter().filter(is_of).map(|place| compare(name, &subject, remembers, place)));
    }
    findings
}

/// Compares the wait of the message that has waited longest in the outbox with what inboxes
/// remember: an inbox checks the age of an id, which is generated when its message is enqueued.
#[must_use]
pub(crate) fn waiting(longest: Duration, inboxes: &[InboxFacts]) -> Vec<Finding> {
    let remembers = |inbox: &InboxFacts| inbox.remembers.as_ref().ok().copied().flatten();
    // A memory that has not begun is reported by itself.
    let inboxes = inboxes.iter().filter(|inbox| inbox.begins_in.is_none());
    let inboxes = inboxes.filter_map(|inbox| Some((inbox, remembers(inbox)?)));
    inboxes
        .map(|(inbox, remembers)| {
            let measured =
                format!("remembers ids for {}; a message has waited for {}", age(remembers), age(longest));
            let remedy = format!(
                "the message will be dead-lettered as too old when it arrives: get it published before that, \
                 or raise the inbox's retention; afterwards, `relay dead requeue --accept-late --consumer {} \
                 --cause too_old --note WHY` applies it",
                inbox.consumer
            );
            let state = if longest < remembers { CheckState::Warn } else { CheckState::Fail };
            let problem = (longest >= remembers / 2).then_some((state, remedy));
            Finding::unless("inbox-waiting", &format!("inbox {}", inbox.consumer), measured, problem)
        })
        .collect()
}

fn compare(name: &'static str, subject: &str, remembers: Duration, place: &Horizon) -> Finding {
    let (measured, problem) = match place.redelivers {
        Redelivers::Unknown => {
            let measured = format!(
                "remembers ids for {}; how long {} keeps messages is unknown",
                age(remembers),
                place.place
            );
            let remedy = format!("keep {} below half of that", place.remedy);
            return Finding::unknown(name, subject, measured, remedy);
        }
        Redelivers::Forever => (
            format!("remembers ids for {}; {} keeps messages forever", age(remembers), place.place),
            Some((
                CheckState::Warn,
                format!(
                    "messages that arrive later are refused and dead-lettered: alert on waiting messages, or \
                     limit {}",
                    place.remedy
                ),
            )),
        ),
        Redelivers::For(keeps) => (
            format!(
                "remembers ids for {}; {} keeps messages for {}",
                age(remembers),
                place.place,
                age(keeps)
            ),
            (remembers < keeps.saturating_mul(2)).then(|| {
                let state = if remembers < keeps { CheckState::Fail } else { CheckState::Warn };
                let needed = age(keeps.saturating_mul(2));
                (state, format!("raise the inbox's retention to {needed} or more, or lower {}", place.remedy))
            }),
        ),
    };
    Finding::unless(name, subject, measured, problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn state(remembers: Duration, redelivers: Redelivers) -> CheckState {
        let inbox = InboxFacts {
            consumer: String::from("billing"),
            topics: [String::from("orders")].into(),
            remembers: Ok(Some(remembers)),
            begins_in: None,
            lost_days: Vec::new(),
            letter_numbers: None,
        };
        let place = |topic: &str| Horizon {
            topic: topic.to_owned(),
            place: String::from("topic orders"),
            redelivers,
            remedy: "retention.ms",
        };
        let findings = check(&[place("orders"), place("bills")], &[inbox]);
        assert_eq!(findings.len(), 1, "{findings:?}");
        findings[0].state
    }

    #[test]
    fn an_inbox_remembers_twice_as_long_as_the_broker_redelivers() {
        assert_eq!(state(14 * DAY, Redelivers::For(7 * DAY)), CheckState::Pass);
        assert_eq!(state(14 * DAY, Redelivers::For(8 * DAY)), CheckState::Warn);
        assert_eq!(state(14 * DAY, Redelivers::For(15 * DAY)), CheckState::Fail);
        assert_eq!(state(14 * DAY, Redelivers::Forever), CheckState::Warn);
        assert_eq!(state(14 * DAY, Redelivers::Unknown), CheckState::Unknown);
        assert_eq!(check(&[], &[])[0].state, CheckState::Unknown);
        let unread = UnreadInbox { reason: String::from("permission denied"), unavailable: false };
        let inbox = InboxFacts {
            consumer: String::from("billing"),
            topics: std::collections::BTreeSet::new(),
            remembers: Err(unread),
            begins_in: None,
            lost_days: Vec::new(),
            letter_numbers: None,
        };
        assert_eq!(check(&[], std::slice::from_ref(&inbox))[0].state, CheckState::Fail);
        let ahead =
            InboxFacts { remembers: Ok(Some(Duration::ZERO)), begins_in: Some(2 * DAY), ..inbox.clone() };
        let place = Horizon {
            topic: String::from("orders"),
            place: String::from("topic orders"),
            redelivers: Redelivers::For(7 * DAY),
            remedy: "retention.ms",
        };
        let findings = check(&[place], std::slice::from_ref(&ahead));
        assert_eq!(findings.len(), 1, "a longer retention changes nothing: {findings:?}");
        assert_eq!(findings[0].state, CheckState::Fail);
        assert!(findings[0].measured.contains("its memory begins in 2d"), "{findings:?}");
        assert_eq!(waiting(14 * DAY, &[ahead]), []);
        let lost_days = vec![String::from("inbox_message_20260315")];
        let inbox = InboxFacts { remembers: Ok(Some(14 * DAY)), lost_days, ..inbox };
        let finding = &check(&[], &[inbox])[0];
        assert_eq!(finding.state, CheckState::Fail);
        assert!(finding.measured.contains("inbox_message_20260315"), "{finding:?}");
    }

    #[test]
    fn what_waits_leaves_before_it_is_too_old() {
        let inbox = |remembers| InboxFacts {
            consumer: String::from("billing"),
            topics: std::collections::BTreeSet::new(),
            remembers,
            begins_in: None,
            lost_days: Vec::new(),
            letter_numbers: None,
        };
        let of = |longest| waiting(longest, &[inbox(Ok(Some(14 * DAY))), inbox(Ok(None))]);
        for (days, state) in
            [(0, CheckState::Pass), (6, CheckState::Pass), (7, CheckState::Warn), (14, CheckState::Fail)]
        {
            let findings = of(days * DAY);
            assert_eq!(findings.iter().map(|finding| finding.state).collect::<Vec<_>>(), [state], "{days}");
            // The command chooses the late messages of this consumer.
            let remedy = findings[0].remedy.as_deref().unwrap_or_default();
            let chooses = remedy.contains("--accept-late --consumer billing --cause too_old --note WHY`");
            assert_eq!(chooses, state != CheckState::Pass, "{days}: {remedy}");
        }
    }
}
