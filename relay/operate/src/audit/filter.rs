//! Filters for decisions.

use time::OffsetDateTime;

use super::line::{AuditLine, AuditSource, REQUEUE};
use crate::error::OperateError;

/// The former word for the requeue of a dead letter, which audits of inboxes still store. A filter
/// with it finds these alone.
pub const REDRIVE: &str = "redrive";

/// The actions that audits have, apart from [`REDRIVE`].
pub const ACTIONS: [&str; 24] = [
    REQUEUE,
    "discard",
    "edit",
    "pause",
    "resume",
    "payload",
    "tail",
    "replay",
    "replayed",
    "forget",
    "forgotten",
    "expire",
    "expired",
    "erase",
    "erased",
    "adopt",
    "give back",
    "release",
    "retry",
    "cancel",
    "skip",
    "login",
    "logout",
    "revoke",
];

/// Conditions that a decision must all meet; without any, all decisions match.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// Only decisions of this operator.
    pub actor: Option<String>,
    /// Only this action: one of [`ACTIONS`], or [`REDRIVE`].
    pub action: Option<String>,
    /// Only decisions about messages of this topic, or about the topic. Found by the decision's own
    /// filter, or by the message as long as its log keeps it. Replays by id, by key or of
    /// everything name no topic, so they are not found. Neither is a view of an edit, if the log no
    /// longer kept the message at that time.
    pub topic: Option<String>,
    /// Only decisions at this time or later, by the clock of each database.
    pub from: Option<OffsetDateTime>,
    /// Only decisions at this time or earlier.
    pub to: Option<OffsetDateTime>,
}

/// How far the clock of a database may have been set back without hiding a decision: rows are read
/// in the order in which they were stored.
const CLOCK_SLACK: time::Duration = time::Duration::HOUR;

impl AuditFilter {
    /// Returns whether no condition is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Checks that the conditions can be met.
    ///
    /// # Errors
    /// [`OperateErrorKind::Refused`](crate::OperateErrorKind::Refused) for an unknown action, and
    /// for an end before the beginning.
    pub fn check(&self) -> Result<(), OperateError> {
        let is_unknown = |action: &&str| *action != REDRIVE && !ACTIONS.contains(action);
        if let Some(action) = self.action.as_deref().filter(is_unknown) {
            let action: String = action.chars().take(40).collect();
            let help = format!("use one of: {}", ACTIONS.join(", "));
            return Err(OperateError::refused(format!("{action:?} is not an action of the audit"), help));
        }
        match (self.from, self.to) {
            (Some(from), Some(to)) if to < from => Err(OperateError::refused(
                "the end of the time range is before its beginning",
                "exchange them",
            )),
            _ => Ok(()),
        }
    }

    /// Returns whether decisions about idempotency keys can match: they have no topic.
    pub(super) fn takes_keys(&self) -> bool {
        let is_of_keys = |action: &String| idempotency::Action::from_word(action).is_some();
        self.topic.is_none() && self.action.as_ref().is_none_or(is_of_keys)
    }

    /// Returns whether decisions about sagas can match: they have no topic.
    pub(super) fn takes_sagas(&self) -> bool {
        let actions = [saga::Action::Retry, saga::Action::Cancel, saga::Action::Skip];
        let is_of_sagas = |action: &String| actions.iter().any(|known| known.as_str() == action);
        self.topic.is_none() && self.action.as_ref().is_none_or(is_of_sagas)
    }

    /// Returns whether a row can belong to a decision that matches. The topic and the time are
    /// those of the whole decision.
    pub(super) fn takes_row(&self, line: &AuditLine) -> bool {
        self.actor.as_ref().is_none_or(|actor| *actor == line.actor)
            && self.action.as_ref().is_none_or(|action| match action.as_str() {
                REDRIVE => line.source == AuditSource::Inbox && line.action == REQUEUE,
                action => line.action == action,
            })
    }

    /// Returns whether a decision matches, apart from its topic.
    pub(super) fn takes(&self, line: &AuditLine) -> bool {
        self.takes_row(line)
            && self.from.is_none_or(|from| line.at >= from)
            && self.to.is_none_or(|to| line.at <= to)
    }

    /// Returns whether this row, and all that were stored before it, are older than the beginning.
    pub(super) fn is_past(&self, at: OffsetDateTime) -> bool {
        self.from.and_then(|from| from.checked_sub(CLOCK_SLACK)).is_some_and(|from| at < from)
    }
}

/// Returns whether the filter or the scope of a decision names a topic: `topic=orders: 3 chosen`,
/// `topic orders`.
pub(super) fn names_topic(selection: &str, topic: &str) -> bool {
    if selection.strip_prefix("topic ").is_some_and(|scope| scope == topic) {
        return true;
    }
    let condition = format!("topic={topic}");
    selection.match_indices(&condition).any(|(at, found)| {
        let is_begin = at == 0 || selection[..at].ends_with(' ');
        let rest = &selection[at + found.len()..];
        is_begin && (rest.is_empty() || rest.starts_with([' ', ':']))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_names_its_topic() {
        for (selection, is_named) in [
            ("topic=orders: 3 chosen", true),
            ("source=outbox topic=orders key=a: 3 chosen", true),
            ("topic orders", true),
            ("topic=orders", true),
            ("message 01908000-0000-7000-8000-000000000001 topic=orders", true),
            ("topic=orders.placed: 3 chosen", false),
            ("subtopic=orders: 3 chosen", false),
            ("key=orders: 3 chosen", false),
            ("topic orders.placed", false),
            ("all: 3 chosen", false),
        ] {
            assert_eq!(names_topic(selection, "orders"), is_named, "{selection}");
        }
    }

    #[test]
    fn conditions_that_nothing_meets_are_refused() {
        let filter = AuditFilter { action: Some(String::from("reqeue")), ..AuditFilter::default() };
        let refused = filter.check().unwrap_err();
        assert!(refused.to_string().contains("\"reqeue\" is not an action"), "{refused}");
        assert!(refused.help().is_some_and(|help| help.contains("requeue")), "{refused:?}");
        let at = |seconds| OffsetDateTime::from_unix_timestamp(seconds).ok();
        let filter = AuditFilter { from: at(2), to: at(1), ..AuditFilter::default() };
        assert!(filter.check().is_err());
        assert!(AuditFilter { to: at(2), ..filter }.check().is_ok());
        assert!(ACTIONS.iter().all(|action| {
            AuditFilter { action: Some((*action).to_owned()), ..AuditFilter::default() }.check().is_ok()
        }));
    }

    /// Goal: people read one word for one decision, and the former one still finds what it found.
    /// Oracle: the lines of an outbox and of an inbox that each word takes.
    #[test]
    fn a_requeue_is_one_action_wherever_the_message_is() {
        let of = |source| AuditLine { source, ..super::super::line::tests::sample("ann", 7, None) };
        let (outbox, inbox) = (of(AuditSource::Outbox), of(AuditSource::Inbox));
        for (action, takes_outbox) in [("requeue", true), ("redrive", false)] {
            let filter = AuditFilter { action: Some(action.to_owned()), ..AuditFilter::default() };
            assert!(filter.check().is_ok(), "{action}");
            assert_eq!(filter.takes_row(&outbox), takes_outbox, "{action}");
            assert!(filter.takes_row(&inbox), "{action}");
        }
        assert!(!ACTIONS.contains(&REDRIVE), "it is not offered");
    }

    /// Goal: an audit that cannot have the action is not read. Oracle: the audits that are searched
    /// for each action of keys or sagas.
    #[test]
    fn keys_and_sagas_are_read_for_their_own_actions_only() {
        for (action, takes_keys, takes_sagas) in [
            (None, true, true),
            (Some("expire"), false, false),
            (Some("discard"), true, false),
            (Some("release"), true, false),
            (Some("retry"), false, true),
            (Some("cancel"), false, true),
            (Some("skip"), false, true),
        ] {
            let filter = AuditFilter { action: action.map(str::to_owned), ..AuditFilter::default() };
            assert_eq!(filter.takes_keys(), takes_keys, "{action:?}");
            assert_eq!(filter.takes_sagas(), takes_sagas, "{action:?}");
            let filter = AuditFilter { topic: Some(String::from("orders")), ..filter };
            assert!(!filter.takes_keys() && !filter.takes_sagas(), "{action:?}");
        }
    }
}
