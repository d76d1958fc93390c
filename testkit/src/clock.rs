//! Ids with a time in the past.

use std::time::Duration;

use message::MessageId;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::failure::Failure;

/// Returns a fresh id with a time `age` ago, for messages that arrive late. With
/// [`NewMessage::id`](outbox::NewMessage::id), such a message takes the whole path from the outbox
/// to the consumer.
///
/// # Errors
/// That time lies before 1970.
pub fn made_ago(age: Duration) -> Result<MessageId, Failure> {
    let at = OffsetDateTime::now_utc() - age;
    MessageId::derived(at, [Uuid::now_v7().as_bytes()]).map_err(Failure::during("make an id of that time"))
}
