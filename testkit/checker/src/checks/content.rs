//! Every copy of a message is the same, whether the client sent it or it is in the outbox, at the
//! broker, in the inbox or in an effect.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use uuid::Uuid;

use crate::history::{Content, History};
use crate::index::Index;
use crate::verdict::{Findings, NotChecked, Subject, Violation};

pub(super) fn check(index: &Index<'_>, findings: &mut Findings) -> Result<(), NotChecked> {
    let mut known: HashMap<Uuid, Known<'_>> = HashMap::new();
    let mut compared = false;
    for (id, content) in copies(index.history) {
        match known.entry(id) {
            // The client's own content comes first, if it was recorded.
            Entry::Vacant(entry) => {
                let (first, second) = match index.sent(id) {
                    Some(sent) => (sent, Some(content)),
                    None => (content, None),
                };
                let known = entry.insert(Known { first, is_altered: false });
                if let Some(content) = second {
                    compared = true;
                    known.compare(id, content, findings);
                }
            }
            Entry::Occupied(mut entry) => {
                compared = true;
                entry.get_mut().compare(id, content, findings);
            }
        }
    }
    // If all messages were seen in only one place, nothing could be compared.
    if compared || known.is_empty() { Ok(()) } else { Err("messages were seen in one place only") }
}

/// The first copy of a message.
struct Known<'a> {
    first: &'a Content,
    is_altered: bool,
}

impl Known<'_> {
    /// Compares a copy with the first one. Reports each message once.
    fn compare(&mut self, id: Uuid, content: &Content, findings: &mut Findings) {
        findings.checked(1);
        let Some(part) = self.first.difference(content).filter(|_| !self.is_altered) else { return };
        self.is_altered = true;
        findings.breach(Violation::Altered, || Subject { part: Some(part), ..Subject::message(id) });
    }
}

/// Returns all copies, upstream first.
fn copies(history: &History) -> impl Iterator<Item = (Uuid, &Content)> {
    let outbox = history.outbox.iter().flatten().map(|row| (row.id, &row.content));
    let topic_read = history.topic_read.iter().flat_map(|topic_read| &topic_read.occurrences);
    let topic_read = topic_read.filter_map(|seen| Some((seen.id?, &seen.content)));
    let consumers = history.consumers.iter().flat_map(|consumer| {
        let inbox =
            consumer.inbox.iter().chain(&consumer.expired).flatten().map(|row| (row.id, &row.content));
        inbox.chain(consumer.effects.iter().flatten().map(|effect| (effect.id, &effect.content)))
    });
    outbox.chain(topic_read).chain(consumers)
}
