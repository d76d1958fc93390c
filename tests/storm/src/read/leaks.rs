//! Leaks: resources that were not released although every process has ended in an orderly way.

use checker::{Forgotten, Leak, LeakKind};

use crate::Failure;
use crate::stage::Stage;
use harness::stores::Plain;

/// Returns transactions that are still open, leases that were not released, and messages whose last
/// chunks were not sent. If the database has forgotten a message, its missing chunks are not
/// counted, because its other chunks expire.
pub(super) async fn leaks(stage: &Stage, forgotten: &Forgotten) -> Result<Vec<Leak>, Failure> {
    let mut leaks = Vec::new();
    let mut producers = Plain::open(&stage.database.producers).await?;
    let mut consumers = Plain::open(&stage.database.consumers).await?;
    let mut sagas = Plain::open(&stage.database.sagas).await?;
    let mut bank = Plain::open(&stage.database.bank).await?;
    for plain in [&mut producers, &mut consumers, &mut sagas, &mut bank] {
        let open = plain.open_transactions().await?;
        leaks.extend(open.into_iter().map(|what| Leak { kind: LeakKind::Transaction, what: what.into() }));
    }
    let mut held = producers.holders().await?;
    held.extend(sagas.holders().await?);
    let lease =
        |holder: String| Leak { kind: LeakKind::Lease, what: format!("the lease of {holder}").into() };
    leaks.extend(held.into_iter().map(lease));
    let incomplete = consumers.incomplete().await?.into_iter();
    let owed = incomplete.filter(|(id, _)| !forgotten.messages.contains(id));
    leaks.extend(owed.map(|(_, what)| Leak { kind: LeakKind::Chunk, what: what.into() }));
    Ok(leaks)
}
