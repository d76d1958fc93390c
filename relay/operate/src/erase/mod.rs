//! Removes what is stored of a subject, for a person's right to be forgotten: in outboxes, inboxes,
//! idempotency keys and sagas.
//!
//! A subject is known by its ordering key, which is the CloudEvents `subject` of its messages, the
//! id of its sagas, and the account or the key of its requests. Ids and fingerprints of messages
//! stay, so nothing takes effect again. What has had no effect yet is never dropped silently: it is
//! left, or discarded first if the operator says so.
//!
//! Everything goes in short transactions. Inboxes come before the rows of the log that lead to
//! them, so an erasure that ends half-way is continued by running it again.
//!
//! | module | what it holds |
//! |---|---|
//! | `report` | [`ErasureReport`]: what was erased, and what is left |
//! | `outbox` | rows of the log, and parked messages |
//! | `unapplied` | published messages that a consumer has still to apply |
//! | `inbox` | results and dead letters |
//! | `stores` | answers of idempotency keys, and sagas |

mod inbox;
mod outbox;
mod report;
mod stores;
mod unapplied;

use std::collections::BTreeSet;

use ::inbox::Tenant;
use message::TEXT_BYTES_MAX;
use outbox_log::RelayName;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::error::OperateError;
use crate::named_tables::NamedTables;
use crate::note::note;
use crate::operator::{Operator, Role, Signed};
use crate::places::{InboxAway, OutboxPlace, Places};
use crate::settings::PipelineConfig;
use crate::tables::Tables;
pub use report::{ErasedPart, ErasureReport};

/// The text of the audit about a message that was discarded to be erased.
const SELECTION: &str = "an erasure";
/// A key of fewer bytes may be part of a reason by chance.
const NAMED_BYTES_MIN: usize = 4;

/// The subject of an erasure, and its bounds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// The key: compared exactly.
    pub key: String,
    /// Only messages of this topic. Then neither keys nor sagas are erased.
    pub topic: Option<String>,
    /// Only in inboxes and idempotency keys of this tenant. Then neither rows of the log nor sagas
    /// are erased, because they have no tenant.
    pub tenant: Option<Tenant>,
    /// Discard dead messages and open dead letters first, which then have no effect.
    pub discard: bool,
    /// Also messages that a configured consumer has not applied yet. A result that it stores later
    /// is not found any more.
    pub unapplied: bool,
}

/// Where to erase.
pub struct Goals<'a> {
    /// The outboxes of all configured pipelines, and all configured inboxes: where several
    /// pipelines read one outbox, its rows lead to results in the inboxes of all of them.
    pub places: &'a Places,
    /// The pipelines in whose outboxes to erase, and whose audits record it. Dead letters go in the
    /// inboxes that apply their messages.
    pub pipelines: &'a [PipelineConfig],
    /// All pipelines of the configuration. Each may have to publish what others have published.
    pub configured: &'a [PipelineConfig],
    /// The databases that may have idempotency keys and sagas.
    pub tables: &'a [NamedTables],
}

/// An outbox, which several pipelines can read.
struct Log<'a> {
    /// The first of the pipelines to erase in.
    first: &'a PipelineConfig,
    /// The relays of all configured pipelines of its location. One that has never led has published
    /// nothing.
    relays: Vec<RelayName>,
    /// All others: their locations may be other spellings of this one.
    others: Vec<RelayName>,
}

/// A run over all places.
struct Erasing<'a> {
    subject: &'a Subject,
    /// `None` for a look that changes nothing.
    signed: Option<&'a Signed>,
    /// The id of the decision, in every audit that has one.
    decision: Uuid,
    stop: &'a CancellationToken,
    /// Reports how many rows were looked at.
    progress: &'a (dyn Fn(u64) + Sync),
    /// Inboxes and messages whose results a look has counted already.
    counted: BTreeSet<(String, Uuid)>,
    /// The relays of the logs that were walked.
    readers: BTreeSet<RelayName>,
    report: ErasureReport,
}

impl Subject {
    fn check(&self) -> Result<(), OperateError> {
        let texts = [("key", Some(self.key.as_str())), ("topic", self.topic.as_deref())];
        for (what, text) in texts.into_iter().filter_map(|(what, text)| Some((what, text?))) {
            if text.is_empty() || text.len() > TEXT_BYTES_MAX {
                let text = format!("the {what} has {} bytes; it must have 1 to {TEXT_BYTES_MAX}", text.len());
                return Err(OperateError::refused(text, "give the whole text: it is compared exactly"));
            }
        }
        Ok(())
    }

    /// Refuses a reason that would keep the key for as long as the audit.
    fn check_signature(&self, signed: &Signed) -> Result<(), OperateError> {
        signed.check("erase")?;
        if self.key.len() >= NAMED_BYTES_MIN && signed.note.contains(&self.key) {
            let help = "give the number of the request instead, for example --note 'request 4711'";
            return Err(OperateError::refused(
                "the reason contains the key, and the audit would keep it for years",
                help,
            ));
        }
        Ok(())
    }

    /// Describes it for the audit, which must not keep the key. A digest would not help: a name can
    /// be guessed and compared.
    fn told(&self) -> String {
        let tenant = self.tenant.as_ref().map_or("", |_| " of one tenant");
        let discard = if self.discard { ", with what is dead" } else { "" };
        let unapplied = if self.unapplied { ", with what is not applied" } else { "" };
        // In the form by which the audit finds a topic.
        let topic = self.topic.as_ref().map_or_else(String::new, |topic| format!(" topic={topic}"));
        format!("what is stored of one key{tenant}{discard}{unapplied}{topic}")
    }
}

/// Counts what an erasure would remove and what it would leave. Changes nothing. Databases that do
/// not answer are in the report. Cancel-safe.
///
/// # Errors
/// [`OperateError`] when the operator may not view messages, or for a key that no message can have.
pub async fn look(
    goals: &Goals<'_>,
    operator: &Operator,
    subject: &Subject,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<ErasureReport, OperateError> {
    operator.permit(Role::Viewer, "view messages")?;
    subject.check()?;
    let stop = CancellationToken::new();
    Ok(Erasing::new(subject, None, &stop, progress).run(goals).await)
}

/// Erases what is stored of a subject, until everything is done or `stop` is cancelled: then the
/// current transaction is the last one. The audit of each outbox has the line `erase` for the
/// request, and `erased` with the result. Neither names the key. Not cancel-safe: run it again.
///
/// # Errors
/// [`OperateError`] when the operator may not decide, when the reason names the key, or when the
/// audit could not be written. Failures of single places are in the report.
pub async fn erase(
    goals: &Goals<'_>,
    signed: &Signed,
    subject: &Subject,
    stop: &CancellationToken,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<ErasureReport, OperateError> {
    subject.check()?;
    subject.check_signature(signed)?;
    let logs = logs(goals);
    if logs.is_empty() {
        let help = "name a pipeline, in whose outbox the audit is";
        return Err(OperateError::refused("there is no audit to record this", help));
    }
    for log in &logs {
        note(log.first, signed, "erase", &subject.told()).await?;
    }
    let mut report = Erasing::new(subject, Some(signed), stop, progress).run(goals).await;
    for log in logs {
        let done = format!("{}: {}", subject.told(), report.told());
        if let Err(error) = note(log.first, signed, "erased", &done).await {
            report.fail(error.with_help("the audit has only the line `erase`: run the command again"));
        }
    }
    Ok(report)
}

/// Returns the outboxes to erase in, each once.
fn logs<'a>(goals: &Goals<'a>) -> Vec<Log<'a>> {
    let mut known = BTreeSet::new();
    let firsts = goals.pipelines.iter().filter(|pipeline| known.insert(location(pipeline)));
    firsts.map(|first| log(first, goals.configured)).collect()
}

fn log<'a>(first: &'a PipelineConfig, configured: &[PipelineConfig]) -> Log<'a> {
    let here = location(first);
    let mut log = Log { first, relays: vec![first.name.clone()], others: Vec::new() };
    for pipeline in configured.iter().filter(|pipeline| pipeline.name != first.name) {
        let is_here = location(pipeline) == here;
        let relays = if is_here { &mut log.relays } else { &mut log.others };
        relays.push(pipeline.name.clone());
    }
    log
}

/// Returns the location of a pipeline's outbox. A database without a usable URL is reported where
/// it is opened.
fn location(pipeline: &PipelineConfig) -> String {
    let location = Tables::of(&pipeline.database).map(|tables| tables.location());
    location.unwrap_or_else(|_| pipeline.name.to_string())
}

/// Returns the errors of the places that do not answer, without inboxes that have nothing to do
/// with the pipelines `readers`. Of several inboxes with one error, one that has counts.
fn away<'a>(places: &'a Places, readers: &BTreeSet<RelayName>) -> impl Iterator<Item = &'a OperateError> {
    let is_beside = move |error: &OperateError| {
        let mut inboxes = places.inboxes_away.iter().filter(|away| away.error == *error).peekable();
        inboxes.peek().is_some() && !inboxes.any(|away: &InboxAway| away.is_of_any(readers))
    };
    places.away.iter().filter(move |error| !is_beside(error))
}

impl<'a> Erasing<'a> {
    fn new(
        subject: &'a Subject,
        signed: Option<&'a Signed>,
        stop: &'a CancellationToken,
        progress: &'a (dyn Fn(u64) + Sync),
    ) -> Self {
        Self {
            subject,
            signed,
            decision: signed.map_or_else(Uuid::nil, |_| Uuid::now_v7()),
            stop,
            progress,
            counted: BTreeSet::new(),
            readers: BTreeSet::new(),
            report: ErasureReport::new(signed.is_none()),
        }
    }

    async fn run(mut self, goals: &Goals<'_>) -> ErasureReport {
        self.letters(goals).await;
        for log in logs(goals) {
            let is_first = |place: &&OutboxPlace| place.pipeline == log.first.name;
            if let Some(place) = goals.places.outboxes.iter().find(is_first) {
                self.log(place, &log, goals.places).await;
            }
        }
        if self.subject.topic.is_none() {
            for tables in goals.tables {
                self.stores(tables).await;
            }
        }
        self.tell_away(goals);
        self.report.stopped = self.stop.is_cancelled();
        self.report
    }

    /// Reports the places that do not answer, without inboxes that have nothing to do with the
    /// chosen pipelines, nor with the others that read their logs.
    fn tell_away(&mut self, goals: &Goals<'_>) {
        self.readers.extend(goals.pipelines.iter().map(|pipeline| pipeline.name.clone()));
        for error in away(goals.places, &self.readers) {
            self.report.fail(error.clone());
        }
    }

    /// Returns whether nothing is changed.
    fn is_look(&self) -> bool {
        self.signed.is_none()
    }
}

#[cfg(test)]
mod tests {
    use ::inbox::ConsumerName;
    use brokers::Secret;

    use super::*;
    use crate::settings::InboxConfig;

    /// Goal: an inbox that does not answer and may have something of the subject is reported, also
    /// if another inbox has the same error. Oracle: the errors, for inboxes of one consumer in one
    /// database that does not exist, by their pipelines.
    #[tokio::test]
    async fn inboxes_with_one_error_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("none.db").display());
        let inbox = |pipeline: &str| InboxConfig {
            pipelines: BTreeSet::from([String::from(pipeline)]),
            ..InboxConfig::new(ConsumerName::new("billing").unwrap(), Secret::Text(url.clone().into()))
        };
        let (orders, mails) = (inbox("orders"), inbox("mails"));
        let readers = BTreeSet::from([RelayName::new("orders").unwrap()]);
        for (inboxes, told) in [(vec![&mails], 0), (vec![&orders], 1), (vec![&mails, &orders], 2)] {
            let places = Places::new().inboxes(inboxes).await;
            assert_eq!(away(&places, &readers).count(), told, "{:?}", places.away);
        }
    }

    fn subject(key: &str) -> Subject {
        Subject { key: key.to_owned(), topic: None, tenant: None, discard: false, unapplied: false }
    }

    fn signed(note: &str) -> Signed {
        Signed { operator: Operator::new("ann", Role::Operator), note: note.to_owned() }
    }

    #[test]
    fn a_reason_that_names_the_key_is_refused() {
        let ann = subject("ann@example.org");
        let refused = ann.check_signature(&signed("asked for by ann@example.org")).unwrap_err();
        assert!(refused.to_string().contains("the reason contains the key"), "{refused}");
        assert!(!refused.to_string().contains("ann@"), "{refused}");
        assert!(ann.check_signature(&signed("request 4711")).is_ok());
        assert!(subject("7").check_signature(&signed("request 4711")).is_ok(), "by chance");
    }

    #[test]
    fn the_audit_is_told_neither_the_key_nor_the_tenant() {
        let tenant = Some(Tenant::new("acme").unwrap());
        let whole =
            Subject { topic: Some(String::from("orders")), tenant, discard: true, ..subject("customer-7") };
        let told = whole.told();
        assert!(!told.contains("customer-7") && !told.contains("acme"), "{told}");
        assert_eq!(told, "what is stored of one key of one tenant, with what is dead topic=orders");
    }

    #[test]
    fn a_key_that_no_message_can_have_is_refused() {
        for (key, bytes) in [(String::new(), "0 bytes"), ("ä".repeat(200), "400 bytes")] {
            let refused = subject(&key).check().unwrap_err();
            assert!(refused.to_string().contains(bytes), "{refused}");
        }
    }
}
