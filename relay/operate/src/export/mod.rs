//! Lists as files: the audit, and waiting messages, as CSV or JSON.
//!
//! An export is read and written in parts, so memory does not depend on its length. It names what
//! is missing: as the last rows of the CSV, which have the word `missing`, and as the list
//! `missing` of the JSON. No file contains a payload.
//!
//! | module | what it holds |
//! |---|---|
//! | `format` | [`ExportFormat`], and the text of a file in parts |
//! | `cells` | cells of a CSV that no program takes for a formula |
//! | `audit` | [`AuditExport`] |
//! | `dead` | [`DeadExport`] |

mod audit;
mod cells;
mod dead;
mod format;

pub use audit::AuditExport;
pub use dead::DeadExport;
pub use format::{ExportFormat, UnknownFormat};
