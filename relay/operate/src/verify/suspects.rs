//! The suspects of a comparison, checked again and again.

use uuid::Uuid;

use super::reconcile::{Context, Kind, Reconciled, Seen, reconcile};
use super::report::Compared;
use super::spool::Spool;
use crate::error::OperateError;

/// Messages that look wrong. Only their ids are in memory; everything else is in the spool.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Suspects {
    pub(super) ids: Vec<Uuid>,
    /// Whether one of them may still be on its way.
    pub(super) may_pass: bool,
}

impl Suspects {
    fn add(&mut self, id: Uuid, reconciled: &Reconciled) {
        self.ids.push(id);
        self.may_pass |= reconciled.wrong.iter().any(|(_, kind)| kind.may_pass());
    }

    /// Reads all messages of the spool. Counts those that seem correct, and takes at most `max` of
    /// the others. Returns whether there are more.
    pub(super) async fn read(
        &mut self,
        spool: &mut Spool,
        context: &Context,
        compared: &mut Compared,
        max: usize,
    ) -> Result<bool, OperateError> {
        let mut has_more = false;
        let each = |seen: Seen| {
            let Some(reconciled) = reconcile(&seen, context) else { return };
            if reconciled.wrong.is_empty() {
                compared.count(&seen, &reconciled);
            } else if self.ids.len() < max {
                self.add(seen.id, &reconciled);
            } else {
                has_more = true;
            }
        };
        spool.each(false, each).await?;
        Ok(has_more)
    }

    /// Reads the suspects of the spool. Counts those that look right by now; the others remain.
    pub(super) async fn read_again(
        &mut self,
        spool: &mut Spool,
        context: &Context,
        compared: &mut Compared,
    ) -> Result<(), OperateError> {
        self.ids.clear();
        self.may_pass = false;
        let each = |seen: Seen| {
            let Some(reconciled) = reconcile(&seen, context) else { return };
            if reconciled.wrong.is_empty() {
                compared.count(&seen, &reconciled);
            } else {
                self.add(seen.id, &reconciled);
            }
        };
        spool.each(true, each).await
    }
}

/// Counts the suspects of the spool that stay wrong, with their findings. Those that look right are
/// counted already.
pub(super) async fn convict(
    spool: &mut Spool,
    context: &Context,
    compared: &mut Compared,
) -> Result<(), OperateError> {
    let each = |seen: Seen| {
        let Some(reconciled) = reconcile(&seen, context).filter(|now| !now.wrong.is_empty()) else { return };
        compared.count(&seen, &reconciled);
        for (place, kind) in reconciled.wrong {
            compared.find(&seen, place, kind);
        }
    };
    spool.each(true, each).await
}

/// Returns the suspects of the spool that have this fault.
pub(super) async fn with_fault(
    spool: &mut Spool,
    context: &Context,
    fault: Kind,
) -> Result<Vec<Uuid>, OperateError> {
    let mut ids = Vec::new();
    let each = |seen: Seen| {
        let reconciled = reconcile(&seen, context);
        if reconciled.is_some_and(|now| now.wrong.iter().any(|(_, kind)| *kind == fault)) {
            ids.push(seen.id);
        }
    };
    spool.each(true, each).await?;
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use message::Fingerprint;
    use outbox_log::reconcile::{Row, Stage};
    use time::OffsetDateTime;

    use super::super::range::Range;
    use super::super::reconcile::InboxContext;
    use super::super::report::{InboxCounts, Report};
    use super::super::spool::At;
    use super::*;

    const MESSAGES: usize = 3_000;
    const NAMED_MAX: usize = 5;

    /// The bytes in memory for one suspect, at the end of a comparison with this many more.
    fn bytes_per_suspect(suspects: &Suspects, compared: &Compared) -> usize {
        let ids = suspects.ids.capacity() * size_of::<Uuid>();
        (ids + compared.findings_bytes()) / MESSAGES
    }

    async fn spool() -> Spool {
        let fingerprint = Fingerprint::of_parts("kind", "text/plain", b"payload");
        let rows: Vec<Row> = (1..=MESSAGES as u128)
            .map(|number| Row {
                id: Uuid::from_u128(number),
                topic: "orders".into(),
                labels: outbox_log::entries::Labels::default(),
                fingerprint,
                stage: Stage::Passed,
                edited: false,
            })
            .collect();
        let mut spool = Spool::create(1).await.unwrap();
        spool.add_rows(&rows).await.unwrap();
        // The inbox has the first message.
        let first = (rows[0].id, fingerprint.as_bytes().to_vec());
        spool.add(At::Inbox(0), &[first]).await.unwrap();
        spool
    }

    /// Returns a comparison with one inbox, before anything was read.
    fn empty() -> (Context, Compared, Suspects) {
        let context = Context {
            outbox_from: Some(Uuid::nil()),
            inboxes: vec![InboxContext::default()],
            ..Context::default()
        };
        let compared = Compared::new("orders", vec![InboxCounts::default()], None, NAMED_MAX);
        (context, compared, Suspects::default())
    }

    /// Goal: a suspect takes one id of memory, and an unlisted finding takes none. Oracle: the size
    /// of what is kept, and all counts.
    #[tokio::test]
    async fn a_suspect_takes_an_id_in_memory_and_all_are_counted() {
        let mut spool = spool().await;
        let (context, mut compared, mut suspects) = empty();
        assert!(!suspects.read(&mut spool, &context, &mut compared, MESSAGES).await.unwrap());
        assert_eq!((suspects.ids.len(), suspects.may_pass, compared.enqueued), (MESSAGES - 1, true, 1));
        spool.suspect(&suspects.ids).await.unwrap();
        // The second one arrives.
        let fingerprint = Fingerprint::of_parts("kind", "text/plain", b"payload");
        spool.add(At::Inbox(0), &[(suspects.ids[0], fingerprint.as_bytes().to_vec())]).await.unwrap();
        suspects.read_again(&mut spool, &context, &mut compared).await.unwrap();
        assert_eq!((suspects.ids.len(), compared.enqueued), (MESSAGES - 2, 2));
        convict(&mut spool, &context, &mut compared).await.unwrap();
        assert_eq!((compared.enqueued, compared.inboxes[0].applied), (MESSAGES as u64, 2));
        let each = bytes_per_suspect(&suspects, &compared);
        // A vector that grows has up to twice the room.
        assert!(each <= 2 * size_of::<Uuid>(), "{each} bytes for each suspect");

        let mut report = Report::new(Range::new(OffsetDateTime::now_utc(), None, None), NAMED_MAX);
        report.add(compared);
        assert_eq!((report.messages.len(), report.unnamed), (NAMED_MAX, MESSAGES - 2 - NAMED_MAX));
        assert_eq!(report.messages[0].id, Uuid::from_u128(3));
        assert_eq!(report.pipelines[0].inboxes[0].found["missing"], MESSAGES as u64 - 2);
        assert!(!report.proven);
    }

    #[tokio::test]
    async fn more_suspects_than_the_maximum_are_reported() {
        let mut spool = spool().await;
        let (context, mut compared, mut suspects) = empty();
        assert!(suspects.read(&mut spool, &context, &mut compared, 9).await.unwrap());
        assert_eq!(suspects.ids.len(), 9);
    }
}
