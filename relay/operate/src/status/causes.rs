//! Why messages of a pipeline are dead or retried: of several errors, the one that most messages
//! wait for.
//!
//! An endpoint that answers nobody is the error of one message, and all others wait behind it. Two
//! more that it refuses for themselves are the most frequent error, and explain nothing.

use std::collections::BTreeMap;

use engine::DeadPolicy;
use outbox_log::admin::{CountedError, ERRORS_LOOKED_AT, LogAdmin, Picture};
use outbox_log::{EntryId, ExceptionState, LogError};

use crate::cause::{Cause, signature};
use crate::dead::DeadMessage;
use crate::held::{Waiting, behind_errors};
use crate::pause::PauseLine;
use crate::settings::PipelineConfig;

/// Maximum number of messages in each state that are examined to find what waits for each error.
const EXAMINED_MAX: u32 = 500;
/// Maximum number of messages among which one with the whole error is searched: the database groups
/// errors by their beginnings.
const SEARCHED_MAX: u32 = 100;

/// The states in which messages have an error.
const FAILED: [ExceptionState; 2] = [ExceptionState::Dead, ExceptionState::Retrying];

/// Returns the error of each state behind which most messages wait. It comes from a sample if more
/// messages are in the state than were examined. The database is asked again only where several
/// errors and held messages are there, or where the shown error is longer than what the picture has
/// of it; each query is bounded. If one fails, the most frequent error is returned. Cancel-safe.
pub(super) async fn causes(
    admin: &dyn LogAdmin,
    pipeline: &PipelineConfig,
    picture: &Picture,
    paused: &[PauseLine],
) -> BTreeMap<ExceptionState, Cause> {
    let Some(relay) = &picture.relay else { return BTreeMap::new() };
    let count = |state: ExceptionState| relay.exceptions.get(&state).copied().unwrap_or_default();
    let of = |behind: &BTreeMap<String, u64>, is_cut: bool| of_errors(&picture.errors, count, behind, is_cut);
    let mut causes = of(&BTreeMap::new(), false);
    if count(ExceptionState::Held) > 0
        && causes.values().any(|cause| cause.others > 0)
        && let Ok(examined) = examine(admin, pipeline, paused).await
    {
        causes = of(&behind_errors(examined.waiting), examined.is_cut);
    }
    for state in FAILED {
        let Some(cause) = causes.remove(&state) else { continue };
        let cause = if cause.is_cut { whole(admin, pipeline, state, cause).await } else { cause };
        causes.insert(state, cause);
    }
    causes
}

/// Returns the causes of counted errors, by the number of messages behind each signature, which
/// `is_cut` marks as lower bounds.
fn of_errors(
    errors: &[CountedError],
    count: impl Fn(ExceptionState) -> u64,
    behind: &BTreeMap<String, u64>,
    is_cut: bool,
) -> BTreeMap<ExceptionState, Cause> {
    let looked_at = 2 * u64::from(ERRORS_LOOKED_AT);
    let causes = FAILED.into_iter().filter_map(|state| {
        let of_state = errors.iter().filter(|counted| counted.state == state);
        let counted = of_state.map(|counted| (counted.error.clone(), counted.count));
        let is_sample = is_cut || count(state) > looked_at;
        Some((state, Cause::before(counted, behind, is_sample)?))
    });
    causes.collect()
}

/// The messages of a pipeline that were examined.
struct Examined {
    waiting: Waiting,
    /// Whether held messages are missing.
    is_cut: bool,
}

/// Reads the messages that may stop others, and the held ones.
async fn examine(
    admin: &dyn LogAdmin,
    pipeline: &PipelineConfig,
    paused: &[PauseLine],
) -> Result<Examined, LogError> {
    let name = &pipeline.name;
    let dead_policy = pipeline.settings.on_dead;
    let mut waiting = Waiting { pauses: paused.to_vec(), dead_policy, ..Waiting::default() };
    // Where keys do not wait for dead messages, these stop nothing.
    let states =
        FAILED.into_iter().filter(|state| *state != ExceptionState::Dead || dead_policy == DeadPolicy::Hold);
    for state in states {
        let found = admin.list(name, state, EntryId::default(), EXAMINED_MAX).await?;
        waiting.more_holders |= found.len() >= EXAMINED_MAX as usize;
        let messages = found.into_iter().map(|entry| DeadMessage::of_entry(0, name.as_str(), state, entry));
        waiting.messages.extend(messages);
    }
    let held = admin.held(name, EXAMINED_MAX).await?;
    let is_cut = held.len() >= EXAMINED_MAX as usize;
    let state = ExceptionState::Held;
    let messages = held.into_iter().map(|entry| DeadMessage::of_entry(0, name.as_str(), state, entry));
    waiting.messages.extend(messages);
    Ok(Examined { waiting, is_cut })
}

/// Returns the cause with the whole error of one of its messages, if one of the first has it.
async fn whole(
    admin: &dyn LogAdmin,
    pipeline: &PipelineConfig,
    state: ExceptionState,
    cause: Cause,
) -> Cause {
    let found = admin.list(&pipeline.name, state, EntryId::default(), SEARCHED_MAX).await;
    let kind = signature(&cause.example);
    let mut errors = found.iter().flatten().filter_map(|entry| entry.error.as_deref());
    match errors.find(|error| signature(error) == kind) {
        Some(error) => cause.with_whole(error),
        None => cause,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{PipelineStatus, Symptom, Wait, status};
    use super::*;
    use crate::operator::{Operator, Role};
    use crate::sample::Sample;

    const RELAY: &str = "INSERT INTO outbox_relay (relay, epoch, holder, lease_until, lease_seconds, cursor) \
        VALUES ('orders', 1, 'a', (unixepoch() + 600) * 1000000, 600, '{\"base\":\"9999\",\"progress\":null}')";

    /// When they are due, in microseconds: long after the test.
    const DUE: i64 = 9_000_000_000_000_000;

    /// Parks messages with these ids: topic, key, state, party at fault, error.
    async fn park(sample: &Sample, ids: std::ops::RangeInclusive<u32>, columns: &str) {
        let first = ids.start();
        let last = ids.end();
        sample
            .run(&format!(
                "INSERT INTO outbox_exception (relay, id, message_id, due_at, topic, key, state, fault, error) \
                 WITH RECURSIVE n (i) AS (SELECT {first} UNION ALL SELECT i + 1 FROM n WHERE i < {last}) \
                 SELECT 'orders', i, printf('019f0000-0000-7000-8000-%012d', i), {DUE}, {columns} FROM n"
            ))
            .await;
    }

    async fn look(sample: &Sample) -> PipelineStatus {
        let viewer = Operator::new("ann", Role::Viewer);
        status([&sample.pipeline], &viewer).await.unwrap().remove(0)
    }

    /// Goal: the error that stops a pipeline is named, and not one that is more frequent and stops
    /// a single key. Oracle: the cause on the line about the retrying messages, with 40 held behind
    /// an endpoint that answers nothing and none behind two that it refuses.
    #[tokio::test]
    async fn what_stops_most_messages_is_the_cause() {
        let sample = Sample::open().await;
        sample.run(RELAY).await;
        park(&sample, 1..=2, "'hooks', 'key ' || i, 'retrying', 'message', 'refused: status 422'").await;
        park(&sample, 3..=3, "'hooks', 'key ' || i, 'retrying', 'broker', 'no answer: status 503'").await;
        park(&sample, 10..=49, "'hooks', 'key ' || i, 'held', NULL, NULL").await;
        let found = look(&sample).await;
        let retrying: Vec<Wait> =
            found.waits().into_iter().filter(|wait| wait.symptom == Symptom::Retrying).collect();
        let cause = retrying[0].cause.as_ref().unwrap();
        assert_eq!((cause.text.as_str(), cause.count, cause.behind), ("no answer: status 503", 1, 40));
        assert_eq!((cause.others, cause.is_at_least), (1, false), "{cause:?}");
    }

    /// Goal: the remedy at the end of an error that the database cuts is shown. Oracle: the shown
    /// text.
    #[tokio::test]
    async fn a_long_name_does_not_hide_the_remedy() {
        let sample = Sample::open().await;
        sample.run(RELAY).await;
        let topic = "t".repeat(249);
        let error =
            format!("kafka refused a message for topic \"{topic}\": it does not exist there: create it");
        park(&sample, 7..=7, &format!("'{topic}', NULL, 'retrying', 'operator', '{error}'")).await;
        let found = look(&sample).await;
        let cause = &found.causes[&ExceptionState::Retrying];
        assert!(cause.shown().ends_with("tttt\": it does not exist there: create it"), "{}", cause.shown());
    }
}
