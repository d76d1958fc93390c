//! Everything that keeps messages of a pipeline from leaving, in sentences.

use std::time::Duration;

use outbox_log::admin::Blocker;
use outbox_log::{ExceptionState, PauseScope};
use time::OffsetDateTime;

use super::{PipelineState, PipelineStatus, Symptom};
use crate::cause::Cause;
use crate::error::OperateErrorKind;
use crate::outage;
use crate::pause::PAUSED_BY;
use crate::seconds::age;

/// The text for a transaction of another role whose age the server hides.
const AGE_HIDDEN: &str = "age hidden (needs pg_read_all_stats)";

/// A number of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    /// The number.
    pub number: u64,
    /// Whether there are more: not all were counted.
    pub is_at_least: bool,
}

/// A condition that keeps messages from leaving.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// Its kind.
    pub symptom: Symptom,
    /// The reason, in one sentence.
    pub why: String,
    /// The number of messages that it concerns, if it is one of single messages.
    pub count: Option<Count>,
    /// Their most frequent error, if they have one.
    pub cause: Option<Cause>,
    /// Its duration.
    pub lasts: Option<Duration>,
    /// Whether it ends by itself, or holds back no message yet.
    pub passes: bool,
}

/// A leader that needs longer to publish what it has read has a problem.
const PASSED_WITHIN_SECONDS: f64 = 30.0;
/// A leader for which messages have waited for longer, and that has stored no checkpoint in that
/// time, stores none: a slow broker confirms some, and one that confirms none is known by then.
const STORED_WITHIN_SECONDS: f64 = 60.0;

impl PipelineStatus {
    /// Returns how long the oldest message has waited for the leader, if that is long and nothing
    /// else explains it.
    fn behind_seconds(&self) -> Option<f64> {
        let is_explained = self.state != PipelineState::Leading
            || self.cursor_is_of_this_server == Some(false)
            || self.held_back_by.is_some()
            || self.broker_error.is_some()
            || self.paused.iter().any(|pause| pause.paused == PauseScope::Pipeline);
        // Parked messages wait for something else. Without them, the oldest message may be due.
        let is_parked = self.parked(ExceptionState::Held) + self.parked(ExceptionState::Retrying) > 0;
        let age = if is_parked { self.oldest_unread_age_seconds } else { self.oldest_pending_age_seconds };
        age.filter(|age| !is_explained && *age > PASSED_WITHIN_SECONDS)
    }

    /// Returns how long the leader, or several in succession, have stored no checkpoint, if that is
    /// long. What the leader before did not store says nothing about this one.
    fn stores_nothing_seconds(&self) -> Option<f64> {
        let age = self.checkpoint_age_seconds?;
        let age = self.taken_seconds.map_or(age, |taken| taken.min(age));
        Some(age).filter(|age| *age > STORED_WITHIN_SECONDS)
    }

    /// Returns whether its database does not answer. One that refuses the user, or lacks the
    /// tables, answers, although nothing is known of the pipeline then.
    #[must_use]
    pub fn is_away(&self) -> bool {
        let is_refusal =
            self.error.as_ref().is_some_and(|error| error.kind() != OperateErrorKind::Unavailable);
        !self.state.is_known() && !is_refusal
    }

    /// Returns which database does not answer, or cannot be read, and why.
    fn away(&self) -> String {
        let verb = if self.is_away() { "does not answer" } else { "cannot be read" };
        let problem = self.problem.as_deref().unwrap_or("unknown reason");
        let problem = outage::reason(problem);
        match &self.location {
            Some(location) => format!("the database {location} {verb}: {problem}"),
            None => format!("the database {verb}: {problem}"),
        }
    }

    /// Returns everything that keeps messages from leaving, most severe first.
    #[must_use]
    pub fn waits(&self) -> Vec<Wait> {
        let mut waits = Vec::new();
        let mut add = |symptom: Symptom, passes: bool, lasts: Option<f64>, why: String| {
            waits.push(Wait::new(symptom, passes, lasts, why));
        };
        match self.state {
            PipelineState::Unknown => {
                let lasts = self.away_for.map(|lasts| lasts.as_secs_f64());
                add(Symptom::DatabaseAway, true, lasts, self.away());
            }
            PipelineState::New => {
                let text = "no relay has ever led: start one with this pipeline";
                // Other pipelines of this outbox have led: the name may be wrong.
                add(Symptom::NeverLed, self.problem.is_none(), None, String::from(text));
            }
            PipelineState::Idle => {
                let text = "no relay leads: the last one released its lease";
                add(Symptom::NoLeader, !self.is_left_alone(), None, String::from(text));
            }
            PipelineState::Expired => {
                let holder = self.holder.as_deref().unwrap_or("the last relay");
                let text = format!(
                    "no relay leads: the lease of {holder} has expired, and no other relay has taken over; \
                     its process has ended, or cannot write to the database (then its log has the error)"
                );
                add(Symptom::NoLeader, !self.is_left_alone(), self.leaderless_seconds, text);
            }
            PipelineState::Leading => {}
        }
        if self.cursor_is_of_this_server == Some(false) {
            let text = "the cursor belongs to another server's history: the next leader compares the two";
            add(Symptom::OtherHistory, true, None, String::from(text));
        }
        if let Some(refusal) = &self.broker_error {
            let lasts = (OffsetDateTime::now_utc() - refusal.since).as_seconds_f64();
            add(Symptom::BrokerRefuses, refusal.passes, Some(lasts), refusal.why());
        }
        let behind = self.behind_seconds();
        let not_stored = self.stores_nothing_seconds().filter(|_| behind > Some(STORED_WITHIN_SECONDS));
        if let Some(age) = not_stored {
            let text = "messages wait, and the leader stores no checkpoint: its database refuses it or has no room, \
                or nothing at all is confirmed (its log says which)";
            add(Symptom::NotStored, false, Some(age), String::from(text));
        }
        for pause in &self.paused {
            let passes = !self.keeps_a_message(&pause.paused);
            add(Symptom::Paused, passes, Some(pause.age.as_secs_f64()), pause.told());
        }
        if let Some(blocker) = &self.held_back_by {
            let passes = matches!(blocker, Blocker::Session { .. });
            let age = blocker.age().map(|age| age.as_secs_f64());
            add(Symptom::RowsHeldBack, passes, age, held_back(blocker));
        }
        if let Some(age) = behind.filter(|_| not_stored.is_none()) {
            let text = if self.parked(ExceptionState::Retrying) == 0 {
                "messages wait for the leader to publish them: it is behind, or its broker is unavailable or slow"
            } else {
                "messages wait for the leader to publish them: it is behind, its broker is unavailable or slow, or \
                 messages that are refused again and again slow it down"
            };
            add(Symptom::Behind, true, Some(age), String::from(text));
        }
        let least = if self.exceptions_are_at_least { "≥ " } else { "" };
        for (symptom, state, text) in [
            (Symptom::Dead, ExceptionState::Dead, "dead: requeue or discard them"),
            (
                Symptom::Held,
                ExceptionState::Held,
                "waiting behind an earlier message with the same key, or because a topic is stopped, paused or busy",
            ),
            (Symptom::Retrying, ExceptionState::Retrying, "retrying: they failed and will be retried"),
        ] {
            let passes = symptom == Symptom::Retrying && !self.retries_wait_for_operator;
            let lasts = self.exceptions_age_seconds.get(&state).copied();
            let number = self.parked(state);
            let why = match number {
                0 => continue,
                1 => format!("{least}1 message is {}", of_one(text)),
                number => format!("{least}{number} messages are {text}"),
            };
            let count = Some(Count { number, is_at_least: self.exceptions_are_at_least });
            let cause = self.causes.get(&state).cloned();
            waits.push(Wait { count, cause, ..Wait::new(symptom, passes, lasts, why) });
        }
        if let Some(reason) = &self.history_held_back_by {
            let why = format!("old messages cannot be deleted from the outbox: {reason}");
            waits.push(Wait::new(Symptom::HistoryKept, false, self.history_age_seconds, why));
        }
        waits
    }
}

impl Wait {
    /// Creates a condition that lasts for this number of seconds.
    fn new(symptom: Symptom, passes: bool, lasts: Option<f64>, why: String) -> Self {
        let lasts = lasts.map(|age| Duration::from_secs_f64(age.max(0.0)));
        Self { symptom, why, count: None, cause: None, lasts, passes }
    }

    /// Returns whether an operator has to act. Held messages alone need no operator: their cause is
    /// a condition of its own. A broker without a session may come back, and does not do so by
    /// itself where it was stopped.
    #[must_use]
    pub fn needs_operator(&self) -> bool {
        match self.symptom {
            Symptom::DatabaseAway | Symptom::BrokerRefuses => true,
            Symptom::Held => false,
            _ => !self.passes,
        }
    }

    /// Returns the sentence with its duration, which comes before the reason and the remedy.
    #[must_use]
    pub fn told(&self) -> String {
        let Some(lasts) = self.lasts.map(age) else { return self.why.clone() };
        // The name of a paused key may contain a colon.
        let is_paused = self.symptom == Symptom::Paused;
        let from = self.why.find(PAUSED_BY).filter(|_| is_paused).unwrap_or_default();
        let (what, why) =
            self.why.split_at(self.why[from..].find(": ").map_or(self.why.len(), |at| from + at));
        format!("{what}, for {lasts}{why}")
    }
}

/// Returns the sentence about a transaction that holds rows back.
fn held_back(blocker: &Blocker) -> String {
    match blocker {
        Blocker::Prepared { name, .. } => {
            let quoted = name.replace('\'', "''");
            format!(
                "a prepared transaction has written rows that cannot be read yet: COMMIT PREPARED or ROLLBACK \
                 PREPARED '{quoted}', as its coordinator decided"
            )
        }
        Blocker::Session { pid, application_name, state, .. } => {
            let state = state.as_deref().unwrap_or(AGE_HIDDEN);
            format!(
                "an open transaction has written rows that cannot be read yet: process {pid}, \
                 {application_name:?}, {state}"
            )
        }
    }
}

/// Returns the text about several messages as one about a single message.
fn of_one(text: &str) -> String {
    text.replace("them", "it").replace("they", "it")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ExceptionState::{Dead, Held, Scheduled};

    use super::super::BrokerError;
    use super::*;
    use crate::error::OperateError;
    use crate::pause::PauseLine;

    #[test]
    fn what_keeps_messages_is_told_with_its_duration() {
        let mut status = PipelineStatus::of("orders", None, None);
        assert_eq!(status.state, PipelineState::New);
        assert!(status.waits()[0].why.contains("no relay has ever led"));
        status.state = PipelineState::Expired;
        status.holder = Some(String::from("host-1"));
        // The last checkpoint of a quiet night says nothing about the end of the lease.
        status.checkpoint_age_seconds = Some(4_000.0);
        status.leaderless_seconds = Some(125.0);
        let lasting = Duration::from_secs(90);
        let session = |state: Option<&str>, age| Blocker::Session {
            pid: 7,
            transaction: String::from("100"),
            application_name: String::from("report"),
            state: state.map(str::to_owned),
            age,
        };
        status.held_back_by = Some(session(Some("idle in transaction"), Some(lasting)));
        status.exceptions = BTreeMap::from([(Dead, 1), (Held, 12), (Scheduled, 3)]);
        status.exceptions_age_seconds = BTreeMap::from([(Dead, 3_600.0), (Scheduled, 9.0)]);
        let told: Vec<String> = status.waits().iter().map(Wait::told).collect();
        assert_eq!(told.len(), 4, "{told:?}");
        assert!(told[0].contains("host-1") && told[0].starts_with("no relay leads, for 2m5s: "), "{told:?}");
        assert!(told[1].contains("cannot be read yet, for 1m30s: process 7"), "{told:?}");
        assert!(told[2].starts_with("1 message is dead, for 1h: "), "{told:?}");
        assert!(told[3].starts_with("12 messages are waiting"), "{told:?}");
        let symptoms: Vec<Symptom> = status.waits().iter().map(|wait| wait.symptom).collect();
        assert_eq!(symptoms, [Symptom::NoLeader, Symptom::RowsHeldBack, Symptom::Dead, Symptom::Held]);
        let capped = PipelineStatus { exceptions_are_at_least: true, ..status.clone() };
        assert!(capped.waits()[3].why.starts_with("≥ 12 messages are"), "{:?}", capped.waits());
        assert_eq!(status.stuck(), 13);
        status.held_back_by = Some(session(None, None));
        let told = status.waits()[1].told();
        assert!(told.ends_with("\"report\", age hidden (needs pg_read_all_stats)"), "{told}");

        let (name, transaction) = (String::from("order-7"), String::from("101"));
        status.held_back_by = Some(Blocker::Prepared { name, transaction, age: lasting });
        let told = status.waits()[1].told();
        assert!(told.contains("ROLLBACK PREPARED 'order-7'") && told.contains("yet, for 1m30s: "), "{told}");
    }

    #[test]
    fn a_broker_that_gives_no_session_explains_the_wait() {
        let refusal = BrokerError {
            error: String::from("login refused; check the password"),
            passes: false,
            since: OffsetDateTime::now_utc() - Duration::from_secs(90),
        };
        let status = PipelineStatus {
            state: PipelineState::Leading,
            oldest_pending_age_seconds: Some(90.0),
            broker_error: Some(refusal),
            ..PipelineStatus::of("orders", None, None)
        };
        let waits = status.waits();
        assert_eq!(waits.len(), 1, "{waits:?}");
        let told = waits[0].told();
        assert!(
            told.ends_with(", for 1m30s: login refused; check the password") && !waits[0].passes,
            "{told}"
        );
        let json = serde_json::to_value(&status).unwrap();
        assert_eq!(json["broker_error"]["error"], "login refused; check the password");
    }

    #[test]
    fn a_stopped_broker_and_a_pause_that_keeps_messages_need_an_operator() {
        let leading =
            PipelineStatus { state: PipelineState::Leading, ..PipelineStatus::of("orders", None, None) };
        let since = OffsetDateTime::now_utc();
        let trouble = BrokerError { error: String::from("connection refused"), passes: true, since };
        let stopped = PipelineStatus { broker_error: Some(trouble), ..leading.clone() };
        assert!(stopped.needs_attention() && stopped.waits()[0].needs_operator());

        let paused = |paused| {
            let pause = PauseLine {
                pipeline: String::from("orders"),
                paused,
                actor: String::from("ann"),
                reason: String::from("migration"),
                since,
                age: Duration::from_secs(60),
            };
            PipelineStatus { paused: vec![pause], ..leading.clone() }
        };
        let mut all = paused(PauseScope::Pipeline);
        assert!(!all.needs_attention(), "nothing waits yet");
        all.oldest_pending_id = Some(7);
        assert!(all.needs_attention() && all.waits()[0].needs_operator());
        let mut topic = paused(PauseScope::Topic(String::from("orders")));
        assert!(!topic.needs_attention());
        topic.exceptions = BTreeMap::from([(Held, 1)]);
        assert!(topic.needs_attention() && topic.waits()[0].needs_operator());
        let key = paused(PauseScope::Key(String::from("order: 7")));
        let told = key.waits()[0].told();
        assert!(told.ends_with("order: 7 is paused by ann, for 1m: migration"), "{told}");
    }

    #[test]
    fn a_database_that_does_not_answer_is_named() {
        let mut away = PipelineStatus {
            state: PipelineState::Unknown,
            problem: Some(String::from(
                "the database is not available: it could not connect: error communicating with database: \
                 connection refused",
            )),
            location: Some(String::from("db.internal:5432/shop")),
            ..PipelineStatus::of("orders", None, None)
        };
        let told = "the database db.internal:5432/shop does not answer: connection refused";
        assert_eq!(away.waits()[0].told(), told);
        away.away_for = Some(Duration::from_secs(90));
        let lasting = "the database db.internal:5432/shop does not answer, for 1m30s: connection refused";
        assert_eq!(away.waits()[0].told(), lasting);
        assert!(away.is_away());
        let refusal = OperateError::new(OperateErrorKind::Refused, "no password");
        away.error = Some(refusal);
        assert!(!away.is_away() && away.waits()[0].why.contains("cannot be read"), "it answers");
    }

    #[test]
    fn a_dead_leader_needs_an_operator_and_a_released_lease_only_with_messages() {
        let lease_ttl = Some(Duration::from_secs(15));
        let of = |state, leaderless_seconds, waits: bool| {
            let oldest_pending_age_seconds = waits.then_some(60.0);
            let checkpoint_age_seconds = Some(60.0);
            PipelineStatus {
                state,
                leaderless_seconds,
                oldest_pending_age_seconds,
                checkpoint_age_seconds,
                lease_ttl,
                ..PipelineStatus::of("orders", None, None)
            }
            .needs_attention()
        };
        assert!(of(PipelineState::Expired, Some(16.0), false));
        assert!(!of(PipelineState::Expired, Some(2.0), false), "a standby may be on its way");
        assert!(of(PipelineState::Expired, Some(2.0), true));
        assert!(!of(PipelineState::Idle, None, false) && of(PipelineState::Idle, None, true));
        let mut new = PipelineStatus::of("orders", None, None);
        assert!(!new.needs_attention());
        new.problem = Some(String::from("is the name misspelled?"));
        assert!(new.needs_attention());
    }

    /// Goal: a leader that keeps its lease and stores nothing needs an operator, and one that is
    /// only behind does not. Oracle: the symptoms; the ages by which they differ.
    #[test]
    fn a_leader_that_stores_nothing_needs_an_operator() {
        let of = |waits: f64, stored: f64| PipelineStatus {
            state: PipelineState::Leading,
            oldest_pending_age_seconds: Some(waits),
            oldest_unread_age_seconds: Some(waits),
            checkpoint_age_seconds: Some(stored),
            ..PipelineStatus::of("orders", None, None)
        };
        for (waits, stored, expected) in [
            (90.0, 61.0, Some(Symptom::NotStored)),
            (90.0, 59.0, Some(Symptom::Behind)),
            // The last checkpoint before a quiet night.
            (59.0, 4_000.0, Some(Symptom::Behind)),
            (29.0, 4_000.0, None),
        ] {
            let status = of(waits, stored);
            let symptoms: Vec<Symptom> = status.waits().iter().map(|wait| wait.symptom).collect();
            assert_eq!(symptoms, Vec::from_iter(expected), "{waits} {stored}");
            assert_eq!(status.needs_attention(), expected == Some(Symptom::NotStored), "{waits} {stored}");
        }
        // It has just taken over from one that had stored nothing.
        for (taken, expected) in [(59.0, Symptom::Behind), (61.0, Symptom::NotStored)] {
            let status = PipelineStatus { taken_seconds: Some(taken), ..of(90.0, 4_000.0) };
            let waits = status.waits();
            assert_eq!(waits.iter().map(|wait| wait.symptom).collect::<Vec<_>>(), [expected], "{taken}");
            assert_eq!(status.needs_attention(), expected == Symptom::NotStored, "{taken}");
            assert!(taken < 60.0 || waits[0].told().contains(", for 1m1s: "), "{waits:?}");
        }
        let told = of(90.0, 61.0).waits()[0].told();
        assert!(told.contains("the leader stores no checkpoint, for 1m1s: "), "{told}");
        // An error of the broker explains it.
        let error = String::from("the broker confirms nothing");
        let since = OffsetDateTime::now_utc();
        let silent = BrokerError { error, passes: true, since };
        let silent = PipelineStatus { broker_error: Some(silent), ..of(90.0, 90.0) };
        let symptoms: Vec<Symptom> = silent.waits().iter().map(|wait| wait.symptom).collect();
        assert_eq!(symptoms, [Symptom::BrokerRefuses]);
    }

    #[test]
    fn a_leader_without_trouble_waits_for_nothing() {
        let status =
            PipelineStatus { state: PipelineState::Leading, ..PipelineStatus::of("orders", None, None) };
        assert_eq!(status.waits(), []);
        let behind = |status: &PipelineStatus| {
            status.waits().iter().any(|it| it.why.contains("its broker is unavailable"))
        };
        let fresh = PipelineStatus { oldest_pending_age_seconds: Some(29.0), ..status.clone() };
        assert_eq!(fresh.waits(), []);
        let mut late = PipelineStatus {
            oldest_pending_age_seconds: Some(90.0),
            oldest_unread_age_seconds: Some(40.0),
            exceptions: BTreeMap::from([(Dead, 1)]),
            ..status
        };
        assert!(behind(&late), "one that is dead does not explain why others wait");
        assert!(late.waits()[0].told().contains(", for 1m30s: "), "{:?}", late.waits());
        late.exceptions = BTreeMap::from([(Held, 1)]);
        assert!(late.waits()[0].told().contains(", for 40s: "), "{:?}", late.waits());
        late.exceptions = BTreeMap::from([(ExceptionState::Retrying, 60)]);
        assert!(behind(&late) && late.waits()[0].why.contains("refused again"), "{:?}", late.waits());
        late.oldest_unread_age_seconds = None;
        assert!(!behind(&late), "the one that is held is the oldest");
        late.oldest_unread_age_seconds = Some(40.0);
        late.state = PipelineState::Idle;
        assert!(!behind(&late), "nobody leads: that is why");
    }
}
