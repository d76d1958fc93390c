//! Erases rows of the log that every relay has passed.

use std::collections::{BTreeMap, BTreeSet};

use outbox_log::admin::{ChosenEntry, Decision, OperatorDecision, ParkedFilter, ParkedQuery};
use outbox_log::entries::{
    ERASED_MAX, EntryName, Erasure, Extent, Search, SelectedEntry, Selection, Standing,
};
use outbox_log::{EntryId, ExceptionState, RelayName};
use uuid::Uuid;

use super::inbox::databases;
use super::report::ErasedPart;
use super::unapplied::{NOT_APPLIED, Published, awaited};
use super::{Erasing, Log, SELECTION};
use crate::error::{OperateError, OperateErrorKind};
use crate::places::{InboxAway, OutboxPlace, Places};

/// The states of messages that may still be published, and of those that their relay has still to
/// remove.
const COUNTED: [ExceptionState; 5] = [
    ExceptionState::Scheduled,
    ExceptionState::Retrying,
    ExceptionState::Held,
    ExceptionState::Dead,
    ExceptionState::Discarded,
];

/// Why rows stay whose results cannot be reached: nothing else leads to them.
const INBOX_AWAY: &str = "an inbox does not answer";

/// A relay of a log, and its progress.
struct Reader {
    name: RelayName,
    extent: Extent,
}

impl Erasing<'_> {
    /// Erases the messages of a log, and their results in inboxes.
    pub(super) async fn log(&mut self, place: &OutboxPlace, log: &Log<'_>, places: &Places) {
        let mut part = ErasedPart::new(place.pipeline.as_str(), "messages");
        let mut results: Vec<ErasedPart> = databases(&places.inboxes)
            .iter()
            .map(|inbox| ErasedPart::new(&inbox.location, "results"))
            .collect();
        let walked = self.walk_log(place, log, places, &mut part, &mut results).await;
        self.report.add(part);
        for part in results {
            self.report.add(part);
        }
        if let Err(error) = walked {
            self.report.fail(error.about(&place.pipeline));
        }
    }

    async fn walk_log(
        &mut self,
        place: &OutboxPlace,
        log: &Log<'_>,
        places: &Places,
        part: &mut ErasedPart,
        results: &mut [ErasedPart],
    ) -> Result<(), OperateError> {
        // With a tenant, only results are erased and no rows of the log.
        let has_rows = self.subject.tenant.is_none();
        let readers = readers(place, log, places).await?;
        self.readers.extend(readers.iter().map(|reader| reader.name.clone()));
        let discarded = if self.subject.discard && has_rows {
            self.discard_dead(place, &readers, part).await?
        } else {
            Vec::new()
        };
        let Some(own) = readers.first() else { return Ok(()) };
        let search =
            Search { topic: self.subject.topic.clone(), key: Some(self.subject.key.clone()), header: None };
        let newest = own.extent.newest.map_or(0, |newest| newest.0);
        let mut below = Some(EntryId(newest.saturating_add(1)));
        while let Some(from) = below
            && !self.stop.is_cancelled()
        {
            let step = place.entries.search(&own.name, &own.extent, &search, from, ERASED_MAX as u32).await?;
            (self.progress)(step.looked_at);
            for entries in step.entries.chunks(ERASED_MAX) {
                self.page(place, places, &readers, entries, part, results).await?;
            }
            below = step.below;
        }
        if has_rows {
            self.erase_copies(place, own, &discarded, part).await?;
            for state in COUNTED {
                self.count_parked(place, &readers, state, part).await?;
            }
        }
        Ok(())
    }

    /// Erases some messages of the log: their results first, because the row leads to them.
    async fn page(
        &mut self,
        place: &OutboxPlace,
        places: &Places,
        readers: &[Reader],
        entries: &[SelectedEntry],
        part: &mut ErasedPart,
        results: &mut [ErasedPart],
    ) -> Result<(), OperateError> {
        let has_rows = self.subject.tenant.is_none();
        // A result alone may go whatever relays do: no message needs it to be published.
        let kept = if has_rows { self.kept(place, places, readers, entries).await? } else { BTreeMap::new() };
        check_same_server(place, readers).await?;
        let may_go: Vec<EntryName> =
            entries.iter().map(SelectedEntry::name).filter(|name| !kept.contains_key(name)).collect();
        let messages: Vec<Uuid> = may_go.iter().map(|name| name.message_id).collect();
        for (inbox, results) in databases(&places.inboxes).into_iter().zip(results) {
            results.erased += self.results(inbox, &messages).await?;
        }
        if !has_rows {
            return Ok(());
        }
        kept.into_values().for_each(|why| part.leave(why, 1));
        let has_results_elsewhere =
            |away: &InboxAway| away.is_of_any(readers.iter().map(|reader| &reader.name));
        if places.inboxes_away.iter().any(has_results_elsewhere) {
            part.leave(INBOX_AWAY, may_go.len() as u64);
            return Ok(());
        }
        let Some(signed) = self.signed else {
            // A row without a valid id cannot be named.
            part.erased += may_go.iter().filter(|name| !name.message_id.is_nil()).count() as u64;
            return Ok(());
        };
        let erasure = Erasure { signature: signed.signature(None), decision: self.decision };
        let erased = place.entries.erase(&may_go, &erasure).await?;
        part.erased += erased;
        part.leave("changed meanwhile", (may_go.len() as u64).saturating_sub(erased));
        Ok(())
    }

    /// Returns the messages that some relay may still publish, or some consumer has still to
    /// apply, each with the reason.
    async fn kept(
        &self,
        place: &OutboxPlace,
        places: &Places,
        readers: &[Reader],
        entries: &[SelectedEntry],
    ) -> Result<BTreeMap<EntryName, &'static str>, OperateError> {
        let mut kept = BTreeMap::new();
        let mut passed: BTreeMap<EntryName, Vec<&RelayName>> = BTreeMap::new();
        let named: Vec<EntryName> = entries.iter().map(SelectedEntry::name).collect();
        for (number, reader) in readers.iter().enumerate() {
            let others = if number > 0 { rows(place, reader, &named).await? } else { Vec::new() };
            for entry in if number > 0 { &others[..] } else { entries } {
                if let Some(why) = reason(entry.standing) {
                    // A dead message could be discarded; another relay may still publish it.
                    let known = kept.entry(entry.name()).or_insert(why);
                    if *known == ExceptionState::Dead.as_str() {
                        *known = why;
                    }
                } else if matches!(entry.standing, Standing::Published | Standing::Edited) {
                    passed.entry(entry.name()).or_default().push(&reader.name);
                }
            }
        }
        if self.would_discard() {
            kept.retain(|_, why| *why != ExceptionState::Dead.as_str());
        }
        if self.subject.unapplied {
            return Ok(kept);
        }
        let mut published = Vec::new();
        for entry in entries.iter().filter(|entry| !kept.contains_key(&entry.name())) {
            if let Some(relays) = passed.remove(&entry.name()) {
                published.push(Published { entry, relays });
            }
        }
        for name in awaited(places, &published).await? {
            kept.insert(name, NOT_APPLIED);
        }
        Ok(kept)
    }

    /// Discards the dead messages of every relay of the log, and returns them.
    async fn discard_dead(
        &mut self,
        place: &OutboxPlace,
        readers: &[Reader],
        part: &mut ErasedPart,
    ) -> Result<Vec<EntryName>, OperateError> {
        let mut discarded = Vec::new();
        let Some(signed) = self.signed else { return Ok(discarded) };
        let decree = OperatorDecision {
            decision: Decision::Discard,
            signature: signed.signature(Some(SELECTION.to_owned())),
        };
        for reader in readers {
            let mut desk = place.log.desk(&reader.name);
            let mut query = self.parked(ExceptionState::Dead);
            while !self.stop.is_cancelled() {
                let slice = desk.parked(&query).await?;
                let chosen: Vec<ChosenEntry> = slice.entries.iter().map(ChosenEntry::from).collect();
                if !chosen.is_empty() {
                    let verdicts = desk.decide(&chosen, &decree, None).await?;
                    let done = chosen.iter().zip(&verdicts).filter(|(_, verdict)| verdict.is_ok());
                    discarded.extend(done.filter_map(|(entry, _)| name(entry)));
                }
                match slice.next {
                    Some(next) => query.after = next,
                    None => break,
                }
            }
        }
        part.discarded += discarded.iter().collect::<BTreeSet<_>>().len() as u64;
        Ok(discarded)
    }

    /// Erases the copies of discarded messages whose rows are no longer in the log.
    async fn erase_copies(
        &self,
        place: &OutboxPlace,
        own: &Reader,
        discarded: &[EntryName],
        part: &mut ErasedPart,
    ) -> Result<(), OperateError> {
        let Some(signed) = self.signed else { return Ok(()) };
        // Several relays can have parked one message.
        let discarded: Vec<EntryName> =
            discarded.iter().copied().collect::<BTreeSet<_>>().into_iter().collect();
        for names in discarded.chunks(ERASED_MAX) {
            let beside = beside(place, own, names).await?;
            let erasure = Erasure { signature: signed.signature(None), decision: self.decision };
            place.entries.erase(&beside, &erasure).await?;
            part.erased += beside.len() as u64;
        }
        Ok(())
    }

    /// Counts parked messages in a state whose rows are no longer in the log, and discarded ones,
    /// whose exceptions name the key until their relay removes them. A message that several relays
    /// have parked is one.
    async fn count_parked(
        &self,
        place: &OutboxPlace,
        readers: &[Reader],
        state: ExceptionState,
        part: &mut ErasedPart,
    ) -> Result<(), OperateError> {
        // An erasure discards them first.
        let would_discard = self.would_discard() && state == ExceptionState::Dead;
        let (mut parked, mut without_row) = (BTreeSet::new(), BTreeSet::new());
        for reader in readers {
            let mut desk = place.log.desk(&reader.name);
            let mut query = self.parked(state);
            loop {
                let slice = desk.parked(&query).await?;
                let chosen: Vec<ChosenEntry> = slice.entries.iter().map(ChosenEntry::from).collect();
                let names: Vec<EntryName> = chosen.iter().filter_map(name).collect();
                if state != ExceptionState::Discarded {
                    without_row.extend(beside(place, reader, &names).await?);
                }
                parked.extend(chosen.into_iter().map(|entry| (entry.id, entry.message_id)));
                match slice.next {
                    Some(next) => query.after = next,
                    None => break,
                }
            }
        }
        if would_discard {
            part.erased += without_row.len() as u64;
            part.discarded += parked.len() as u64;
            part.leave(ExceptionState::Discarded.as_str(), parked.len() as u64);
        } else if state == ExceptionState::Discarded {
            part.leave(state.as_str(), parked.len() as u64);
        } else {
            part.leave(state.as_str(), without_row.len() as u64);
        }
        Ok(())
    }

    /// Returns whether this is a look at an erasure that discards dead messages first.
    fn would_discard(&self) -> bool {
        self.subject.discard && self.is_look()
    }

    fn parked(&self, state: ExceptionState) -> ParkedQuery {
        let filter = ParkedFilter {
            topic: self.subject.topic.clone(),
            key: Some(self.subject.key.clone()),
            ..ParkedFilter::default()
        };
        ParkedQuery { state, after: EntryId::default(), entries_max: ERASED_MAX as u32, filter }
    }
}

/// Returns the relays of a log: those of the configuration, which may have no cursor yet, and all
/// others that have one.
async fn readers(place: &OutboxPlace, log: &Log<'_>, places: &Places) -> Result<Vec<Reader>, OperateError> {
    let mut names = log.relays.clone();
    for other in &log.others {
        let may_read = may_begin_here(place, other, places).await;
        let may_read = may_read.map_err(|error| {
            error.about(format_args!("whether {other} reads this log is unknown")).with_help(
                "its messages would be lost if it does: make its database answer, or remove the pipeline",
            )
        })?;
        if may_read {
            names.push(other.clone());
        }
    }
    // After the others: one that began meanwhile has a cursor here.
    for status in place.log.relays().await? {
        if names.iter().all(|name| name.as_str() != status.relay) {
            let name = RelayName::new(status.relay.as_str());
            names.push(name.map_err(|error| OperateError::new(OperateErrorKind::Refused, error))?);
        }
    }
    let mut readers = Vec::new();
    for name in names {
        readers.push(reader(place, name).await?);
    }
    Ok(readers)
}

/// Returns whether a relay that has never led has this log under another spelling of its location.
async fn may_begin_here(
    place: &OutboxPlace,
    other: &RelayName,
    places: &Places,
) -> Result<bool, OperateError> {
    let there = places.outboxes.iter().find(|there| there.pipeline == *other);
    let there = there.ok_or_else(|| OperateError::refused("its outbox cannot be opened", ""))?;
    // A relay that has a cursor is found in its log.
    if there.entries.extent(other).await?.has_cursor() {
        return Ok(false);
    }
    Ok(there.entries.identity().await? == place.entries.identity().await?)
}

/// Refuses what was read from the log if a relay was forgotten, or if another server has answered
/// meanwhile: it may use the same transactions and ids for other messages.
async fn check_same_server(place: &OutboxPlace, readers: &[Reader]) -> Result<(), OperateError> {
    for known in readers {
        let now = reader(place, known.name.clone()).await?;
        if !known.extent.lasts_in(&now.extent) {
            let text = format!("{} was forgotten, or the server of its cursor has changed", known.name);
            return Err(OperateError::refused(text, "run the command again"));
        }
    }
    Ok(())
}

async fn reader(place: &OutboxPlace, name: RelayName) -> Result<Reader, OperateError> {
    let extent = place.entries.extent(&name).await?;
    extent.check_whole()?;
    if !extent.is_of_this_server {
        let text = format!(
            "the cursor of {name} belongs to another server's history, so it is unknown what it has published"
        );
        let help = "start the relay, whose next leader compares cursor and log; then erase";
        return Err(OperateError::refused(text, help));
    }
    Ok(Reader { name, extent })
}

/// Returns the rows of the log with these names.
async fn rows(
    place: &OutboxPlace,
    reader: &Reader,
    named: &[EntryName],
) -> Result<Vec<SelectedEntry>, OperateError> {
    let mut found = Vec::new();
    // A selection without names takes every row.
    if named.is_empty() {
        return Ok(found);
    }
    let selection = Selection { named: named.to_vec(), ..Selection::default() };
    let mut after = EntryId::default();
    loop {
        let page = place.entries.select(&reader.name, &reader.extent, &selection, after).await?;
        found.extend(page.entries);
        after = page.seen_to;
        if page.exhausted {
            return Ok(found);
        }
    }
}

/// Returns those of these names whose rows are not in the log.
async fn beside(
    place: &OutboxPlace,
    reader: &Reader,
    named: &[EntryName],
) -> Result<Vec<EntryName>, OperateError> {
    let rows = rows(place, reader, named).await?;
    let in_log: BTreeSet<EntryName> = rows.iter().map(SelectedEntry::name).collect();
    Ok(named.iter().filter(|name| !in_log.contains(name)).copied().collect())
}

/// Returns why a message must stay as it is.
fn reason(standing: Standing) -> Option<&'static str> {
    match standing {
        Standing::Published | Standing::Edited | Standing::Discarded => None,
        Standing::Parked(ExceptionState::Discarded) => None,
        Standing::Parked(state) => Some(state.as_str()),
        Standing::Waiting => Some("not published yet"),
    }
}

/// Returns the name of a parked message; `None` for a row without a valid message id.
fn name(entry: &ChosenEntry) -> Option<EntryName> {
    Uuid::parse_str(&entry.message_id).ok().map(|message_id| EntryName { id: entry.id, message_id })
}
