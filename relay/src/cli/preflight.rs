//! What is looked at before anything starts: a database that does not fit is the operator's to repair, and is said
//! at once instead of in an endless loop. A database that is away is waited for.

use std::sync::Arc;

use futures_util::future::join_all;
use message::Fault;
use outbox::log::{LogError, LogStore, RelayName};

use super::exit::Exit;
use super::failure::Failure;

/// A pipeline's log to look at.
pub(crate) struct Candidate {
    pub(crate) name: RelayName,
    pub(crate) store: Arc<dyn LogStore>,
}

/// Opens each log once.
///
/// # Errors
/// [`Failure`] when an operator has to act on any of them; it names them all.
pub(crate) async fn check(candidates: &[Candidate], config: &str) -> Result<(), Failure> {
    let looked = join_all(candidates.iter().map(|candidate| candidate.store.reader(&candidate.name))).await;
    let mut broken = Vec::new();
    for (Candidate { name, store }, opened) in candidates.iter().zip(looked) {
        let Err(error) = opened else { continue };
        match error.fault() {
            Fault::Operator => broken.push(line(name, store.origin(), &error)),
            // The pipeline says so itself, and keeps trying.
            Fault::Broker | Fault::Message => {}
        }
    }
    if broken.is_empty() {
        return Ok(());
    }
    let help = format!(
        "`relay migrate status --config {config}` shows the state of every database; add --config {config} to the \
         commands above"
    );
    Err(Failure::with_help(Exit::Usage, broken.join("\n"), help))
}

fn line(name: &RelayName, origin: &str, error: &LogError) -> String {
    format!("pipeline {name} ({origin}): {error}")
}
