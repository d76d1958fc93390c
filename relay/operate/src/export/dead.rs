//! Waiting messages as a file.

use super::format::{ExportFormat, ExportRow, Text};
use crate::dead::{Bookmark, DeadMessage, Filter, States, page};
use crate::error::OperateError;
use crate::operator::{Operator, Role};
use crate::places::Places;
use crate::seconds;

/// Messages per read.
const ROWS: usize = 500;

/// All waiting messages that match, in the order of the list, without their payloads.
pub struct DeadExport {
    places: Option<Places>,
    operator: Operator,
    filter: Filter,
    /// The states that are left, the present one first.
    states: Vec<States>,
    text: Text,
    has_begun: bool,
    from: Option<Bookmark>,
    missing: Vec<OperateError>,
}

impl DeadExport {
    /// Begins an export of messages in these states, one state after another.
    ///
    /// # Errors
    /// [`OperateError`] when the operator may not view parked messages.
    pub fn new(
        places: Places,
        operator: &Operator,
        filter: Filter,
        states: Vec<States>,
        format: ExportFormat,
    ) -> Result<Self, OperateError> {
        operator.permit(Role::Viewer, "view parked messages")?;
        Ok(Self {
            missing: places.away.clone(),
            // Each read looks for copies only among its own rows.
            places: Some(places.distinct()),
            operator: operator.clone(),
            filter,
            states,
            text: Text::new(format),
            has_begun: false,
            from: None,
        })
    }

    /// Returns the next part of the text, which may be empty; `None` at the end. Reads at most
    /// 10,000 rows, and returns up to 500. Do not continue after a dropped call.
    pub async fn next(&mut self) -> Option<String> {
        let places = self.places.as_ref()?;
        if !self.has_begun {
            self.has_begun = true;
            return Some(self.text.begin::<DeadMessage>());
        }
        let Some(states) = self.states.first() else {
            if let Some(places) = self.places.take() {
                places.close().await;
            }
            return Some(self.text.end::<DeadMessage>(&self.missing));
        };
        let found = Box::pin(page(places, &self.operator, &self.filter, *states, self.from, ROWS)).await;
        let listed = match found {
            Ok(listed) => listed,
            Err(error) => {
                self.missing.push(error);
                self.states.clear();
                return Some(String::new());
            }
        };
        let unknown: Vec<OperateError> =
            listed.away.into_iter().filter(|error| !self.missing.contains(error)).collect();
        self.missing.extend(unknown);
        self.from = listed.next;
        if self.from.is_none() {
            self.states.remove(0);
        }
        Some(self.text.rows(&listed.messages))
    }

    /// Returns the errors of places whose messages are missing.
    #[must_use]
    pub fn missing(&self) -> &[OperateError] {
        &self.missing
    }
}

impl ExportRow for DeadMessage {
    const HEADERS: &'static [&'static str] = &[
        "source",
        "owner",
        "id",
        "message_id",
        "state",
        "topic",
        "key",
        "kind",
        "cause",
        "attempts",
        "since",
        "changed_at",
        "payload_bytes",
        "edited",
        "died_again",
        "requeue_requested_by",
        "error",
    ];
    const NAME: &'static str = "messages";
    const MISSING: &'static str = "state";

    fn cells(&self) -> Vec<String> {
        let some = |text: &Option<String>| text.clone().unwrap_or_default();
        vec![
            self.source.to_string(),
            self.owner().to_owned(),
            self.id.clone(),
            some(&self.message_id),
            self.state.to_string(),
            self.topic.clone(),
            some(&self.key),
            some(&self.kind),
            some(&self.cause),
            self.attempts.to_string(),
            seconds::text(self.since),
            seconds::text(self.changed_at),
            self.payload_bytes.to_string(),
            self.edited.to_string(),
            self.died_again.to_string(),
            some(&self.requeue_requested_by),
            some(&self.error),
        ]
    }
}
