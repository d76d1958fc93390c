//! The words for a symptom, and its place in the runbook.

use super::Symptom;

impl Symptom {
    /// All symptoms, most severe first.
    pub const ALL: [Self; 14] = [
        Self::DatabaseAway,
        Self::NeverLed,
        Self::NoLeader,
        Self::OtherHistory,
        Self::BrokerRefuses,
        Self::Paused,
        Self::RowsHeldBack,
        Self::Behind,
        Self::Dead,
        Self::Held,
        Self::Retrying,
        Self::HistoryKept,
        Self::ConsumerDead,
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
            Self::BrokerRefuses => "broker refuses",
            Self::Paused => "paused",
            Self::RowsHeldBack => "rows held back",
            Self::Behind => "behind",
            Self::Dead | Self::ConsumerDead => "dead",
            Self::Held => "held",
            Self::Retrying => "retrying",
            Self::HistoryKept => "history kept",
            Self::ConsumerFails => "failing",
        }
    }

    /// Returns the anchor of the section about it in `docs/operations/runbook.md`.
    #[must_use]
    pub fn anchor(self) -> &'static str {
        match self {
            Self::DatabaseAway | Self::HistoryKept | Self::ConsumerFails => "first-look",
            Self::NeverLed | Self::NoLeader => "no-relay-leads",
            Self::OtherHistory => "phantoms-after-a-restore",
            Self::BrokerRefuses => "no-session-with-the-broker",
            Self::Paused => "something-is-paused",
            Self::RowsHeldBack => "a-transaction-holds-rows-back",
            Self::Behind => "the-broker-confirms-nothing",
            Self::Dead | Self::Held => "a-message-is-dead-and-its-key-waits",
            Self::Retrying => "a-queue-or-topic-does-not-take-messages",
            Self::ConsumerDead => "a-consumer-dead-letters-a-message",
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
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operations/runbook.md");
        let text = std::fs::read_to_string(path).unwrap();
        let anchors: Vec<String> =
            text.lines().filter_map(|line| line.strip_prefix("## ")).map(slug).collect();
        for symptom in Symptom::ALL {
            assert!(anchors.iter().any(|anchor| anchor == symptom.anchor()), "{symptom:?}: {anchors:?}");
        }
    }

    #[test]
    fn symptoms_are_in_the_order_of_their_severity() {
        assert!(Symptom::ALL.is_sorted());
    }
}
