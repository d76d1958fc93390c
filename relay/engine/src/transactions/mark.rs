//! A checkpoint as bytes, for the broker to keep. Pure.

use std::collections::BTreeSet;
use std::time::Duration;

use message::{Fault, MessageId};
use outbox_log::{Cursor, EntryId, ExceptionChange, Parked};
use serde::{Deserialize, Serialize};

use crate::machine::{Checkpoint, TransactionCheckpoint};

/// The version of the format, written into each mark. Version 1 had no `last_read`. Programs of
/// version 2 shut out only one of two producers, so they must not continue from marks of version 3.
const VERSION: u32 = 3;

/// The content of a mark. Its size is bounded as checkpoints and windows are: about 70 bytes for
/// each parked entry besides its texts, and 20 for each id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The identity of the log.
    pub(crate) log: String,
    /// The epoch of the lease under which it was written.
    pub(crate) epoch: i64,
    pub(crate) content: TransactionCheckpoint,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    version: u32,
    log: String,
    epoch: i64,
    cursor: Cursor,
    parked: Vec<ParkedForm>,
    resolved: Vec<i64>,
    settled: Vec<i64>,
    /// Missing when nothing was read, and in version 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last_read: Option<(i64, MessageId)>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ParkedForm {
    id: i64,
    message_id: String,
    topic: String,
    key: Option<String>,
    state: String,
    attempts: u32,
    due_in: Option<Duration>,
    fault: Option<String>,
    error: Option<String>,
}

impl Mark {
    /// Encodes the mark.
    ///
    /// # Errors
    /// Never occurs for a mark that an engine makes. The text names what could not be written.
    pub(crate) fn write(&self) -> Result<Vec<u8>, String> {
        let TransactionCheckpoint { checkpoint, settled, last_read } = &self.content;
        let mut form = Form {
            version: VERSION,
            log: self.log.clone(),
            epoch: self.epoch,
            cursor: checkpoint.cursor.clone(),
            parked: Vec::new(),
            resolved: Vec::new(),
            settled: settled.iter().map(|id| id.0).collect(),
            last_read: last_read.map(|(id, message_id)| (id.0, message_id)),
        };
        for change in &checkpoint.changes {
            match change {
                ExceptionChange::Park(parked) => form.parked.push(ParkedForm::of(parked)),
                ExceptionChange::Resolve(id) => form.resolved.push(id.0),
            }
        }
        serde_json::to_vec(&form).map_err(|error| error.to_string())
    }

    /// Decodes a mark.
    ///
    /// # Errors
    /// A text that describes the fault in the bytes.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let Versioned { version } = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if !(1..=VERSION).contains(&version) {
            return Err(format!("it has version {version}, but this program supports {VERSION}"));
        }
        let form: Form = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let parked = form.parked.into_iter().map(|parked| parked.read().map(ExceptionChange::Park));
        let resolved = form.resolved.into_iter().map(|id| Ok(ExceptionChange::Resolve(EntryId(id))));
        let changes = parked.chain(resolved).collect::<Result<_, String>>()?;
        let settled = form.settled.into_iter().map(EntryId).collect::<BTreeSet<_>>();
        let checkpoint = Checkpoint { cursor: form.cursor, changes };
        let last_read = form.last_read.map(|(id, message_id)| (EntryId(id), message_id));
        let content = TransactionCheckpoint { checkpoint, settled, last_read };
        Ok(Self { log: form.log, epoch: form.epoch, content })
    }
}

impl ParkedForm {
    fn of(parked: &Parked) -> Self {
        Self {
            id: parked.id.0,
            message_id: parked.message_id.clone(),
            topic: parked.topic.clone(),
            key: parked.key.clone(),
            state: parked.state.as_str().to_owned(),
            attempts: parked.attempts,
            due_in: parked.due_in,
            fault: parked.fault.map(|fault| fault.as_str().to_owned()),
            error: parked.error.clone(),
        }
    }

    fn read(self) -> Result<Parked, String> {
        let fault =
            |word: String| Fault::from_word(&word).ok_or_else(|| format!("{word:?} is not a known fault"));
        Ok(Parked {
            id: EntryId(self.id),
            message_id: self.message_id,
            topic: self.topic,
            key: self.key,
            state: self.state.parse().map_err(|error: outbox_log::UnknownState| error.to_string())?,
            attempts: self.attempts,
            due_in: self.due_in,
            fault: self.fault.map(fault).transpose()?,
            error: self.error,
        })
    }
}

#[cfg(test)]
mod tests {
    use outbox_log::{Difference, ExceptionState};

    use super::*;

    fn mark() -> Mark {
        let base = outbox_log::Mark::new("17@700:710:700,705");
        let difference = Difference { base, head: outbox_log::Mark::new("b"), ceiling: 99 };
        let parked = Parked {
            id: EntryId(7),
            message_id: String::from("m-7"),
            topic: String::from("orders"),
            key: Some(String::from("k\"7")),
            state: ExceptionState::Retrying,
            attempts: 3,
            due_in: Some(Duration::from_millis(1_500)),
            fault: Some(Fault::Operator),
            error: Some(String::from("no such topic")),
        };
        let checkpoint = Checkpoint {
            cursor: Cursor::inside(&difference, EntryId(42)),
            changes: vec![ExceptionChange::Park(parked), ExceptionChange::Resolve(EntryId(5))],
        };
        let settled = [EntryId(43), EntryId(50)].into();
        let last_read = Some((EntryId(50), MessageId::new()));
        let content = TransactionCheckpoint { checkpoint, settled, last_read };
        Mark { log: String::from("0a1b"), epoch: 9, content }
    }

    #[test]
    fn a_mark_is_read_as_it_was_written() {
        let mark = mark();
        assert_eq!(Mark::read(&mark.write().unwrap()).unwrap(), mark);
    }

    #[test]
    fn a_mark_of_another_version_is_refused() {
        let text = String::from_utf8(mark().write().unwrap()).unwrap();
        let version = |number: u32| text.replace("\"version\":3", &format!("\"version\":{number}"));
        let later = Mark::read(version(4).as_bytes()).unwrap_err();
        assert!(later.contains("version 4, but this program supports 3"), "{later}");
        for earlier in [1, 2] {
            assert!(Mark::read(version(earlier).as_bytes()).is_ok(), "version {earlier} is read");
        }
        assert!(Mark::read(&text.as_bytes()[..20]).is_err());
        assert!(Mark::read(text.replace("retrying", "asleep").as_bytes()).unwrap_err().contains("asleep"));
    }
}
