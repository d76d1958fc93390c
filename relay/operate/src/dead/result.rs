//! The result of a decision about many messages, according to the audits: the same for every
//! process, even after the one that made the decision has ended.

use std::collections::{BTreeMap, HashSet};

use outbox::Signature;
use outbox_log::ExceptionState;
use outbox_log::admin::DecisionRecord;
use serde::Serialize;
use time::OffsetDateTime;
use uuid::Uuid;

use super::message::{DEAD_AGAIN, DeadSource};
use crate::error::OperateError;
use crate::operator::{Operator, Role};
use crate::places::{InboxPlace, OutboxPlace, Places};
use crate::seconds;
use crate::turns::in_turns;

/// A decision that was carried out, at least in part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Decision {
    /// Its id.
    pub id: Uuid,
    /// `requeue` or `discard`.
    pub action: &'static str,
    /// The author.
    pub actor: String,
    /// The reason.
    pub note: String,
    /// The filter, and the number of messages that it chose.
    pub selection: Option<String>,
    /// Number of messages decided about.
    pub done: u64,
    /// The time of its first message.
    #[serde(serialize_with = "seconds::serialize")]
    pub first: OffsetDateTime,
    /// The time of its last message until now.
    #[serde(serialize_with = "seconds::serialize")]
    pub last: OffsetDateTime,
    /// Where its messages are now.
    pub standing: Vec<Standing>,
    /// The pipelines and consumers of its messages.
    pub owners: Vec<String>,
}

/// A number of messages in the same situation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Standing {
    /// The situation, such as `published` or `dead again`.
    pub what: &'static str,
    /// The number.
    pub count: u64,
    /// Whether there may be more: of very many messages, only some are looked up.
    pub is_at_least: bool,
}

/// The success or the failure that a situation means, from which an interface chooses a colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// The decision has achieved its purpose.
    Good,
    /// It may still do so.
    Warn,
    /// It has not.
    Bad,
    /// Neither a success nor a failure.
    Neutral,
}

/// A decision, if any place has it, and the places that do not answer.
#[derive(Debug, Clone, PartialEq)]
pub struct DecisionFound {
    /// The decision.
    pub decision: Option<Decision>,
    /// The errors of places that do not answer; their messages are missing.
    pub away: Vec<OperateError>,
}

/// The meaning of requeued messages that are dead again.
pub const REMOVE_THE_CAUSE: &str = "Requeueing more will not help before the cause is removed.";

/// The situation of dead letters whose consumer has failed again.
const FAILED_AGAIN: &str = "failed again";
/// The situation of messages that the relay has not published yet.
const ON_ITS_WAY: &str = "on its way";
/// The situation of dead letters whose consumer has not carried the request out yet.
const WAITING: &str = "waiting for its consumer";
/// The situation of messages that have left the outbox: published, or discarded by a later
/// decision.
const NO_LONGER_DEAD: &str = "published, or decided about again";
/// The situation of dead letters that their consumer has applied.
const TOOK_EFFECT: &str = "took effect";
/// The situation of dead letters whose request another one replaced before a handler ran.
const REPLACED: &str = "replaced by a later request";
/// The situation of dead letters whose messages the inbox already knew.
const HAD_TAKEN_EFFECT: &str = "had taken effect before";

impl Standing {
    /// Returns whether these messages have not left yet.
    #[must_use]
    pub fn is_on_its_way(&self) -> bool {
        matches!(self.what, ON_ITS_WAY | WAITING)
    }

    /// Returns whether requeueing these messages did not help.
    #[must_use]
    pub fn is_dead_again(&self) -> bool {
        matches!(self.what, DEAD_AGAIN | FAILED_AGAIN)
    }

    /// Returns whether these messages have left an outbox, as far as it knows: they were published,
    /// or discarded by a later decision.
    #[must_use]
    pub fn is_no_longer_dead(&self) -> bool {
        self.what == NO_LONGER_DEAD
    }

    /// Returns whether their situation is a success or a failure.
    #[must_use]
    pub fn tone(&self) -> Tone {
        match self.what {
            NO_LONGER_DEAD | TOOK_EFFECT | HAD_TAKEN_EFFECT => Tone::Good,
            _ if self.is_on_its_way() => Tone::Warn,
            _ if self.is_dead_again() => Tone::Bad,
            _ => Tone::Neutral,
        }
    }
}

impl Decision {
    /// Returns the number of messages that were chosen, if the selection has it.
    #[must_use]
    pub fn chosen(&self) -> Option<u64> {
        chosen_of(self.selection.as_deref()?)
    }

    /// Returns how many of its messages are dead again, in a sentence with a number in this form;
    /// `None` if none is. [`REMOVE_THE_CAUSE`] says what that means.
    #[must_use]
    pub fn dead_again(&self, number: impl Fn(u64) -> String) -> Option<String> {
        let again: u64 = self.standing.iter().filter(|it| it.is_dead_again()).map(|it| it.count).sum();
        match again {
            0 => None,
            1 if self.done <= 1 => Some(String::from("The requeued message is dead again.")),
            1 => Some(String::from("1 of them is dead again.")),
            again if again >= self.done => {
                Some(format!("All {} requeued messages are dead again.", number(again)))
            }
            again => Some(format!("{} of them are dead again.", number(again))),
        }
    }
}

fn chosen_of(selection: &str) -> Option<u64> {
    selection.strip_suffix(" chosen")?.rsplit(' ').next()?.parse().ok()
}

/// Returns the result of a decision about many messages. Cancel-safe.
///
/// # Errors
/// [`OperateError`] when the operator may not read the audit. [`DecisionFound::away`] has the
/// errors of unreachable databases.
pub async fn decision(places: &Places, operator: &Operator, id: Uuid) -> Result<DecisionFound, OperateError> {
    operator.permit(Role::Viewer, "read the audit")?;
    let mut away = places.away.clone();
    let mut sum = Sum { id, decision: None, standing: BTreeMap::new() };
    let looks = places.outboxes.iter().map(|place| of_outbox(place, id)).collect();
    for (place, answer) in places.outboxes.iter().zip(in_turns(looks).await) {
        match answer {
            Ok(Some(record)) => sum.outbox(place.pipeline.as_str(), &record),
            Ok(None) => {}
            Err(error) => away.push(error.about(&place.pipeline)),
        }
    }
    // Each tenant of a consumer can have its own place; the audit of a database knows only
    // consumers.
    let mut asked = HashSet::new();
    let inboxes = places.distinct_inboxes().map(|(_, place)| place);
    let inboxes: Vec<&InboxPlace> =
        inboxes.filter(|place| asked.insert((&place.location, &place.consumer))).collect();
    let looks = inboxes.iter().map(|place| place.database.decision(id, place.consumer.as_ref())).collect();
    for (place, answer) in inboxes.iter().zip(in_turns(looks).await) {
        match answer {
            Ok(Some(record)) => sum.inbox(&place.name(), &record),
            Ok(None) => {}
            Err(error) => away.push(error.about(place.name())),
        }
    }
    Ok(DecisionFound { decision: sum.done(), away })
}

async fn of_outbox(place: &OutboxPlace, id: Uuid) -> Result<Option<DecisionRecord>, OperateError> {
    Ok(place.desk().await.decision(id).await?)
}

/// Adds up the places of a decision.
struct Sum {
    id: Uuid,
    decision: Option<Decision>,
    standing: BTreeMap<&'static str, Standing>,
}

/// The share of one place in a decision.
struct Share<'a> {
    source: DeadSource,
    owner: &'a str,
    signature: &'a Signature,
    is_discard: bool,
    count: u64,
    first: OffsetDateTime,
    last: OffsetDateTime,
}

impl Sum {
    fn add(&mut self, share: &Share<'_>) {
        let decision = self.decision.get_or_insert_with(|| Decision {
            id: self.id,
            action: if share.is_discard { "discard" } else { "requeue" },
            actor: share.signature.actor.clone(),
            note: share.signature.note.clone(),
            selection: share.signature.selection.clone(),
            done: 0,
            first: share.first,
            last: share.last,
            standing: Vec::new(),
            owners: Vec::new(),
        });
        decision.done += share.count;
        decision.first = decision.first.min(share.first);
        decision.last = decision.last.max(share.last);
        decision.owners.push(format!("{} {}", share.source, share.owner));
    }

    fn count(&mut self, what: &'static str, count: u64, is_at_least: bool) {
        let standing = self.standing.entry(what).or_insert(Standing { what, count: 0, is_at_least });
        standing.count += count;
        standing.is_at_least |= is_at_least;
    }

    fn outbox(&mut self, owner: &str, record: &DecisionRecord) {
        let is_discard = record.action == "discard";
        self.add(&Share {
            source: DeadSource::Outbox,
            owner,
            signature: &record.signature,
            is_discard,
            count: record.count,
            first: record.first,
            last: record.last,
        });
        let looked_up: u64 = record.now.iter().map(|standing| standing.count).sum();
        for standing in &record.now {
            let what = if is_discard { "discarded" } else { requeued(standing.state) };
            self.count(what, standing.count, looked_up < record.count);
        }
    }

    fn inbox(&mut self, owner: &str, record: &inbox::LetterDecision) {
        self.add(&Share {
            source: DeadSource::Inbox,
            owner,
            signature: &record.signature,
            is_discard: record.action == inbox::Action::Discard,
            count: record.count,
            first: record.first,
            last: record.last,
        });
        let open = [(WAITING, record.waiting), (FAILED_AGAIN, record.failed), (REPLACED, record.replaced)];
        for (what, count) in open {
            if count > 0 {
                self.count(what, count, false);
            }
        }
        for closed in &record.closed {
            let what = match closed.resolution {
                inbox::Resolution::Discarded => "discarded",
                inbox::Resolution::Duplicate => HAD_TAKEN_EFFECT,
                _ => TOOK_EFFECT,
            };
            self.count(what, closed.count, false);
        }
    }

    fn done(self) -> Option<Decision> {
        let standing = self.standing.into_values().collect();
        self.decision.map(|decision| Decision { standing, ..decision })
    }
}

/// Returns where a requeued entry is.
fn requeued(state: Option<ExceptionState>) -> &'static str {
    match state {
        None => NO_LONGER_DEAD,
        Some(ExceptionState::Dead) => DEAD_AGAIN,
        Some(ExceptionState::Discarded) => "discarded since",
        Some(_) => ON_ITS_WAY,
    }
}

#[cfg(test)]
mod tests {
    use outbox_log::admin::StandingCount;

    use super::*;

    fn record(now: Vec<StandingCount>) -> DecisionRecord {
        DecisionRecord {
            signature: Signature {
                actor: String::from("ann"),
                note: String::from("prices are back"),
                selection: Some(String::from("topic=orders: 2009 chosen")),
            },
            action: String::from("requeue"),
            count: 10,
            first: OffsetDateTime::UNIX_EPOCH,
            last: OffsetDateTime::UNIX_EPOCH + time::Duration::SECOND,
            now,
        }
    }

    /// Goal: an operator reads that a requeue did not help, in the same words everywhere. Oracle:
    /// the sentences for all, some, one and none of the messages.
    #[test]
    fn what_is_dead_again_is_a_sentence() {
        let of = |done, again: u64| {
            let mut sum = Sum { id: Uuid::nil(), decision: None, standing: BTreeMap::new() };
            let now = StandingCount { state: Some(ExceptionState::Dead), count: again };
            sum.outbox("orders", &DecisionRecord { count: done, ..record(vec![now]) });
            sum.done().unwrap().dead_again(|number| format!("{number}!"))
        };
        assert_eq!(of(20, 20).as_deref(), Some("All 20! requeued messages are dead again."));
        assert_eq!(of(20, 7).as_deref(), Some("7! of them are dead again."));
        assert_eq!(of(20, 1).as_deref(), Some("1 of them is dead again."));
        assert_eq!(of(1, 1).as_deref(), Some("The requeued message is dead again."));
        assert_eq!(of(20, 0), None);
    }

    /// Goal: a colour does not show a failure as a success. Oracle: the tone of every situation of
    /// entries of an outbox and of dead letters.
    #[test]
    fn each_situation_has_its_tone() {
        let tone = |what| Standing { what, count: 1, is_at_least: false }.tone();
        for (state, expected) in [
            (None, Tone::Good),
            (Some(ExceptionState::Dead), Tone::Bad),
            (Some(ExceptionState::Retrying), Tone::Warn),
            (Some(ExceptionState::Held), Tone::Warn),
            (Some(ExceptionState::Discarded), Tone::Neutral),
        ] {
            assert_eq!(tone(requeued(state)), expected, "{state:?}");
        }
        for (what, expected) in [
            (FAILED_AGAIN, Tone::Bad),
            (WAITING, Tone::Warn),
            (TOOK_EFFECT, Tone::Good),
            (HAD_TAKEN_EFFECT, Tone::Good),
            ("discarded", Tone::Neutral),
        ] {
            assert_eq!(tone(what), expected, "{what}");
        }
        let left = Standing { what: requeued(None), count: 1, is_at_least: false };
        assert!(left.is_no_longer_dead());
    }

    /// Goal: a request that another one replaced is told as neither a success nor a failure.
    /// Oracle: the situation, its tone, and that no sentence says that requeueing did not help.
    #[test]
    fn a_request_that_was_replaced_has_not_failed() {
        let mut sum = Sum { id: Uuid::nil(), decision: None, standing: BTreeMap::new() };
        let DecisionRecord { signature, first, last, .. } = record(Vec::new());
        sum.inbox(
            "billing",
            &inbox::LetterDecision {
                signature,
                action: inbox::Action::Redrive,
                count: 20,
                first,
                last,
                waiting: 0,
                failed: 0,
                replaced: 20,
                closed: Vec::new(),
            },
        );
        let decision = sum.done().unwrap();
        let replaced = Standing { what: REPLACED, count: 20, is_at_least: false };
        assert_eq!(decision.standing, [replaced]);
        assert_eq!((replaced.tone(), replaced.is_dead_again()), (Tone::Neutral, false));
        assert_eq!(decision.dead_again(|number| number.to_string()), None);
    }

    #[test]
    fn the_places_of_a_decision_are_one_result() {
        let mut sum = Sum { id: Uuid::nil(), decision: None, standing: BTreeMap::new() };
        let state = |state, count| StandingCount { state, count };
        sum.outbox("orders", &record(vec![state(None, 7), state(Some(ExceptionState::Dead), 3)]));
        sum.outbox("bills", &record(vec![state(None, 4), state(Some(ExceptionState::Retrying), 1)]));
        let decision = sum.done().unwrap();
        assert_eq!((decision.done, decision.chosen(), decision.action), (20, Some(2_009), "requeue"));
        assert_eq!(decision.owners, ["outbox orders", "outbox bills"]);
        let told: Vec<_> = decision.standing.iter().map(|it| (it.what, it.count, it.is_at_least)).collect();
        assert_eq!(
            told,
            [
                ("dead again", 3, false),
                ("on its way", 1, true),
                ("published, or decided about again", 11, true)
            ]
        );
    }
}
