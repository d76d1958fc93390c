//! Kinds of conditions that block publishing: their names, and their sections in the runbook.

/// The kind of a condition that keeps messages from leaving.
///
/// The order is that of their severity: the first keeps most messages from leaving.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Symptom {
    /// The database does not answer.
    DatabaseAway,
    /// No relay has ever led.
    NeverLed,
    /// No relay leads.
    NoLeader,
    /// The cursor belongs to the history of another server.
    OtherHistory,
    /// The broker takes no message.
    BrokerRefuses,
    /// Messages wait, and the leader stores no checkpoint.
    NotStored,
    /// An operator has paused a topic, a key or the pipeline.
    Paused,
    /// An open transaction has written rows that cannot be read yet.
    RowsHeldBack,
    /// The leader needs long to pass messages on.
    Behind,
    /// Messages wait for an operator.
    Dead,
    /// Messages wait behind others.
    Held,
    /// Messages failed and will be retried.
    Retrying,
    /// Old messages cannot be deleted.
    HistoryKept,
    /// A consumer applies nothing.
    ConsumerStalled,
    /// A consumer has dead letters that need an operator.
    ConsumerDead,
    /// Messages wait at a consumer behind dead letters of their keys.
    ConsumerHeld,
    /// A consumer fails and tries again.
    ConsumerFails,
}

impl Symptom {
    /// All symptoms, most severe first.
    pub const ALL: [Self; 17] = [
        Self::DatabaseAway,
        Self::NeverLed,
        Self::NoLeader,
        Self::OtherHistory,
        Self::BrokerRefuses,
        Self::NotStored,
        Self::Paused,
        Self::RowsHeldBack,
        Self::Behind,
        Self::Dead,
        Self::Held,
        Self::Retrying,
        Self::HistoryKept,
        Self::ConsumerStalled,
        Self::ConsumerDead,
        Self::ConsumerHeld,
        Self::ConsumerFails,
    ];

    /// Returns a few words for a badge or a cell.
    #[must_use]
    pub fn short(self) -> &'static str {
        match self {
            Self::DatabaseAway => "database away",
            Self::NeverLed => "never led",
            Self::NoLeader => "no leader",
            Self::OtherHistory => "other history",
            Self::BrokerRefuses => "no broker session",
            Self::NotStored => "nothing stored",
            Self::Paused => "paused",
            Self::RowsHeldBack => "rows not readable yet",
            Self::Behind => "behind",
            Self::Dead | Self::ConsumerDead => "dead",
            Self::Held | Self::ConsumerHeld => "held",
            Self::Retrying => "retrying",
            Self::HistoryKept => "history kept",
            Self::ConsumerStalled => "applies nothing",
            Self::ConsumerFails => "failing",
        }
    }

    /// Returns the anchor of the section about it in `docs/operations/runbook.md`.
    #[must_use]
    pub fn anchor(self) -> &'static str {
        match self {
            Self::DatabaseAway => "the-database-does-not-answer",
            Self::NeverLed | Self::NoLeader => "no-relay-leads",
            Self::OtherHistory => "phantoms-after-a-restore",
            Self::BrokerRefuses => "no-session-with-the-broker",
            Self::NotStored => "no-checkpoint-is-stored",
            Self::Paused => "something-is-paused",
            Self::RowsHeldBack => "a-transaction-holds-rows-back",
            Self::Behind => "the-broker-confirms-nothing",
            Self::Dead => "a-message-is-dead-and-its-key-waits",
            Self::Held => "messages-are-held",
            Self::Retrying => "a-queue-or-topic-does-not-take-messages",
            Self::HistoryKept => "old-messages-cannot-be-deleted",
            Self::ConsumerStalled => "a-consumer-applies-nothing",
            Self::ConsumerFails => "a-consumer-fails-and-tries-again",
            Self::ConsumerDead | Self::ConsumerHeld => "a-consumer-dead-letters-a-message",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The anchor that a renderer gives a heading.
    fn slug(heading: &str) -> String {
        let kept = heading.chars().filter(|char| char.is_alphanumeric() || matches!(char, ' ' | '-'));
        kept.map(|char| if char == ' ' { '-' } else { char.to_ascii_lowercase() }).collect()
    }

    #[test]
    fn each_symptom_has_a_section_in_the_runbook() {
        let text = std::fs::read_to_string("../../docs/operations/runbook.md").unwrap();
        let anchors: Vec<String> =
            text.lines().filter_map(|line| line.strip_prefix("## ")).map(slug).collect();
        for symptom in Symptom::ALL {
            assert!(anchors.iter().any(|anchor| anchor == symptom.anchor()), "{symptom:?}: {anchors:?}");
        }
    }

    /// Goal: a decision that is copied from the runbook is accepted. Oracle: each of its commands
    /// with options has the reason that a decision needs, or only shows what it would do.
    #[test]
    fn decisions_in_the_runbook_have_a_reason() {
        let text = std::fs::read_to_string("../../docs/operations/runbook.md").unwrap();
        for verb in ["forget", "dead requeue", "dead discard", "dead edit", "replay", "resume"] {
            for after in text.split(&format!("relay {verb} ")).skip(1) {
                let options = after.split(['`', '\n']).next().unwrap_or_default();
                let has_reason = options.contains("--note") || options.contains("--dry-run");
                assert!(has_reason || !options.contains("--"), "relay {verb} {options}");
            }
        }
    }

    #[test]
    fn symptoms_are_in_the_order_of_their_severity() {
        assert!(Symptom::ALL.is_sorted());
    }
}
