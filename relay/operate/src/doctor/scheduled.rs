//! The check of scheduled messages. An id is generated when a message is enqueued, and consumers
//! check its age when it is delivered.
//!
//! `Outbox::enqueue` refuses messages scheduled too far ahead; SQL does not.

use std::time::Duration;

use message::MessageId;
use message::token::DriftWindow;
use outbox_log::{EntryId, ExceptionState, LogError};
use time::OffsetDateTime;
use tokio::time::timeout;

use super::report::Finding;
use crate::PipelineConfig;

const NAME: &str = "scheduled";
/// Maximum number of messages checked, oldest first.
const LOOKED_AT_MAX: usize = 10_000;
const SLICE: u32 = 1_000;
/// Tolerated difference between the clocks of producer, database and this machine.
const SLACK: Duration = Duration::from_secs(60);

/// A message and its due time.
type Due = (MessageId, OffsetDateTime);

/// Checks the scheduled messages of a pipeline. Returns `None` if the database does not answer,
/// which another check reports. Cancel-safe.
pub(super) async fn look(pipeline: &PipelineConfig, limit: Duration) -> Option<Finding> {
    let due = timeout(limit, scheduled(pipeline)).await.ok()?.ok()?;
    Some(check(&due))
}

async fn scheduled(pipeline: &PipelineConfig) -> Result<Vec<Due>, LogError> {
    let options = pipeline.database.options().clone();
    let admin = outbox_log::admin::open(pipeline.database.address(), pipeline.source.clone(), options)?;
    let (mut due, mut after) = (Vec::new(), EntryId(0));
    while due.len() < LOOKED_AT_MAX {
        let entries = admin.list(&pipeline.name, ExceptionState::Scheduled, after, SLICE).await?;
        let Some(last) = entries.last() else { break };
        after = last.id;
        let now = OffsetDateTime::now_utc();
        due.extend(
            entries.iter().filter_map(|entry| Some((entry.message_id.parse().ok()?, now + entry.due_in?))),
        );
    }
    Ok(due)
}

fn check(due: &[Due]) -> Finding {
    let is_too_old = |(id, at): &&Due| {
        let oldest = DriftWindow::DEFAULT.at(*at).oldest_accepted_at;
        id.generated_at() + SLACK < oldest
    };
    let too_old: Vec<&Due> = due.iter().filter(is_too_old).collect();
    let Some((first, at)) = too_old.iter().min_by_key(|(_, at)| *at) else {
        return Finding::pass(NAME, "database", format!("{} scheduled", due.len()));
    };
    let measured = format!(
        "{} of {} are due more than 14 days after their ids were generated; the first is {first}, due at {}",
        too_old.len(),
        due.len(),
        at.replace_nanosecond(0).unwrap_or(*at)
    );
    let remedy = "consumers with a shorter retention than that will refuse them as too old: enqueue them \
                  again later, under new ids";
    Finding::warn(NAME, "database", measured, remedy)
}

#[cfg(test)]
mod tests {
    use super::super::report::CheckState;
    use super::*;

    #[test]
    fn what_consumers_will_refuse_is_told_before() {
        let due_in = |days: i64| {
            let id = MessageId::new();
            (id, id.generated_at() + time::Duration::days(days))
        };
        let finding = check(&[due_in(1), due_in(14)]);
        assert_eq!((finding.state, finding.measured.as_str()), (CheckState::Pass, "2 scheduled"));
        let (sooner, later) = (due_in(15), due_in(40));
        let finding = check(&[due_in(1), later, sooner]);
        assert_eq!(finding.state, CheckState::Warn);
        assert!(finding.measured.starts_with("2 of 3 are due"), "{}", finding.measured);
        assert!(finding.measured.contains(&sooner.0.to_string()), "{}", finding.measured);
    }
}
