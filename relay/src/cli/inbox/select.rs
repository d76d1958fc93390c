//! Which dead letters are meant.

use std::num::NonZeroU32;
use std::time::Duration;

use ::inbox::{ConsumerName, DeadLetter, DeadLetterId, DeadLetterQuery};
use clap::Args;
use time::OffsetDateTime;

use super::super::exit::Exit;
use super::super::failure::Failure;
use super::place::Opened;
use crate::config::units::Time;

/// Letters read at once.
const PAGE: NonZeroU32 = NonZeroU32::MIN.saturating_add(199);

/// The conditions that the letters must meet. Without any condition, all are meant.
#[derive(Debug, Clone, Args)]
pub(crate) struct Selection {
    /// Only those of this consumer.
    #[arg(long, value_name = "NAME")]
    consumer: Option<ConsumerName>,

    /// Only those of this topic or queue.
    #[arg(long, value_name = "TOPIC")]
    topic: Option<String>,

    /// Only those that are dead for this reason: poison, rejected, too_old, …
    #[arg(long, value_name = "REASON")]
    reason: Option<String>,

    /// Only those that died longer ago than this.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    older_than: Option<Duration>,

    /// Only those that died within this time.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    newer_than: Option<Duration>,
}

impl Selection {
    /// Whether there is no condition.
    pub(crate) fn is_everything(&self) -> bool {
        let Self { consumer, topic, reason, older_than, newer_than } = self;
        consumer.is_none()
            && topic.is_none()
            && reason.is_none()
            && older_than.is_none()
            && newer_than.is_none()
    }

    fn takes(&self, letter: &DeadLetter, now: OffsetDateTime) -> bool {
        let age = Duration::try_from(now - letter.dead_at).unwrap_or_default();
        self.topic.as_ref().is_none_or(|topic| *topic == letter.topic)
            && self.reason.as_deref().is_none_or(|reason| reason == letter.reason.as_str())
            && self.older_than.is_none_or(|bound| age > bound)
            && self.newer_than.is_none_or(|bound| age <= bound)
    }

    /// The letters meant, oldest first, at most `limit`.
    pub(crate) async fn read(
        &self,
        inbox: &Opened,
        closed_too: bool,
        limit: usize,
    ) -> Result<Vec<DeadLetter>, Failure> {
        let now = OffsetDateTime::now_utc();
        let mut query = DeadLetterQuery {
            consumer: self.consumer.clone(),
            resolved_too: closed_too,
            after: None,
            limit: PAGE,
        };
        let mut found = Vec::new();
        while found.len() < limit {
            let page = inbox.dead_letters(&query).await?;
            let Some(last) = page.last() else { break };
            query.after = Some(last.id);
            found.extend(page.into_iter().filter(|letter| self.takes(letter, now)));
        }
        found.truncate(limit);
        Ok(found)
    }
}

/// The letters with these ids.
pub(crate) async fn by_id(inbox: &Opened, ids: &[DeadLetterId]) -> Result<Vec<DeadLetter>, Failure> {
    let mut letters = Vec::with_capacity(ids.len());
    for id in ids {
        let letter = inbox.dead_letter(*id).await?.ok_or_else(|| {
            let help = "`relay inbox dead list` shows those that are open";
            Failure::with_help(Exit::Usage, format_args!("there is no dead letter {id}"), help)
        })?;
        letters.push(letter);
    }
    Ok(letters)
}

fn duration(text: &str) -> Result<Duration, String> {
    text.parse::<Time>().map(|time| time.0).map_err(|error| error.to_string())
}
