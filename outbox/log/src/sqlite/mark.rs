//! A mark is the id of an entry.

use crate::error::quoted;
use crate::{LogError, Mark};

/// Returns the id in a mark.
pub(super) fn id_of(mark: &Mark) -> Result<i64, LogError> {
    mark.as_str().parse().map_err(|_| LogError::Corrupt {
        what: "mark",
        problem: format!("{} is not the id of an entry", quoted(mark.as_str())),
    })
}
