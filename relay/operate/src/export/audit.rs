//! The audit as a file.

use std::collections::VecDeque;

use super::format::{ExportFormat, ExportRow, Text};
use crate::audit::walk::{Audits, Part, Walk};
use crate::audit::{AuditFilter, AuditLine, LeftOut, gone, is_with};
use crate::error::OperateError;
use crate::named_tables::NamedTables;
use crate::operator::{Operator, Role};
use crate::places::Places;
use crate::seconds;

/// All decisions that match, one audit after another, each from the latest backwards.
pub struct AuditExport {
    places: Option<Places>,
    tables: Vec<NamedTables>,
    operator: Operator,
    filter: AuditFilter,
    is_each: bool,
    text: Text,
    /// The audits that are left; `None` before the first part.
    parts: Option<VecDeque<Part>>,
    walk: Option<(Part, Walk)>,
    lost: Option<Part>,
    missing: Vec<OperateError>,
    left_out: LeftOut,
}

impl AuditExport {
    /// Begins an export. With `is_each`, each message of a decision is a row.
    ///
    /// # Errors
    /// [`OperateError`] when the operator may not read the audit, or when the filter is
    /// contradictory.
    pub fn new(
        places: Places,
        tables: Vec<NamedTables>,
        operator: &Operator,
        filter: AuditFilter,
        is_each: bool,
        format: ExportFormat,
    ) -> Result<Self, OperateError> {
        operator.permit(Role::Viewer, "read the audit")?;
        filter.check()?;
        Ok(Self {
            missing: places.away.clone(),
            places: Some(places),
            tables,
            operator: operator.clone(),
            filter,
            is_each,
            text: Text::new(format),
            parts: None,
            walk: None,
            lost: None,
            left_out: LeftOut::default(),
        })
    }

    /// Returns the next part of the text, which may be empty; `None` at the end. Reads some hundred
    /// rows. Do not continue after a dropped call: its rows would be missing.
    pub async fn next(&mut self) -> Option<String> {
        let places = self.places.as_ref()?;
        let audits = Audits { places, tables: &self.tables, operator: &self.operator, filter: &self.filter };
        let Some(parts) = &mut self.parts else {
            self.parts = Some(audits.parts().into());
            return Some(self.text.begin::<AuditLine>());
        };
        if self.walk.is_none() {
            let lost = self.lost;
            while parts.front().is_some_and(|part| is_with(lost, *part)) {
                parts.pop_front();
            }
            self.walk = parts.pop_front().map(|part| (part, Walk::new(part, None, self.is_each)));
        }
        let Some((part, walk)) = &mut self.walk else {
            if let Some(places) = self.places.take() {
                places.close().await;
            }
            let mut missing = self.missing.clone();
            missing.extend(self.left_out.as_missing());
            return Some(self.text.end::<AuditLine>(&missing));
        };
        match Box::pin(walk.next(&audits)).await {
            Ok(Some(lines)) => return Some(self.text.rows(&lines)),
            Ok(None) => {}
            Err(error) => {
                self.lost = gone(*part, &error);
                let other = self.left_out.take(*part, || audits.owner(*part), error).err();
                self.missing.extend(other);
            }
        }
        self.walk = None;
        Some(String::new())
    }

    /// Returns the errors of places whose decisions are missing, and anything else that is missing.
    #[must_use]
    pub fn missing(&self) -> &[OperateError] {
        &self.missing
    }

    /// Returns the audits that the database user may not read. The file names them as missing, but
    /// they are not an error.
    #[must_use]
    pub fn left_out(&self) -> &LeftOut {
        &self.left_out
    }
}

impl ExportRow for AuditLine {
    const HEADERS: &'static [&'static str] = &[
        "at",
        "actor",
        "action",
        "source",
        "owner",
        "messages",
        "id",
        "message_id",
        "selection",
        "note",
        "accept_late",
        "outcome",
        "done_at",
        "digest_before",
        "digest_after",
        "error",
    ];
    const NAME: &'static str = "decisions";
    const MISSING: &'static str = "action";

    fn cells(&self) -> Vec<String> {
        let some = |text: &Option<String>| text.clone().unwrap_or_default();
        vec![
            seconds::text(self.at),
            self.actor.clone(),
            self.action.clone(),
            self.source.to_string(),
            self.owner.clone(),
            self.messages.to_string(),
            some(&self.id),
            some(&self.message_id),
            some(&self.selection),
            self.note.clone(),
            self.accept_late.to_string(),
            some(&self.outcome),
            self.done_at.map(seconds::text).unwrap_or_default(),
            some(&self.digest_before),
            some(&self.digest_after),
            some(&self.error),
        ]
    }
}
