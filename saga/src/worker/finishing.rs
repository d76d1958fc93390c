//! Ends sagas. All that end while another statement is under way share the next one.

use tokio::sync::oneshot;

use crate::base::Base;
use crate::dialect::Dialect;
use crate::error::StoreError;
use crate::record::{Held, Turn};
use crate::worker::endings::Ending;

/// Ends a finished saga, if it is held and not cancelled. Returns whether it was ended. The first
/// of the waiting callers acts for all.
pub(super) async fn finish<DB: Dialect>(
    sagas: &Base<DB>,
    held: &Held,
    output: &str,
) -> Result<bool, StoreError> {
    let (done, mut is_done) = oneshot::channel();
    sagas.finishing.add(Ending { held: held.clone(), output: output.to_owned(), done });
    loop {
        let turn = sagas.finishing.turn.lock().await;
        match is_done.try_recv() {
            Ok(finished) => return finished,
            // The caller that acted was dropped: reading the saga shows the outcome.
            Err(oneshot::error::TryRecvError::Closed) => return Ok(false),
            Err(oneshot::error::TryRecvError::Empty) => {}
        }
        let endings = sagas.finishing.take();
        store(sagas, endings).await;
        drop(turn);
    }
}

async fn store<DB: Dialect>(sagas: &Base<DB>, endings: Vec<Ending>) {
    if endings.len() > 1 {
        let all: Vec<(&Held, &str)> = endings.iter().map(|ending| (&ending.held, &*ending.output)).collect();
        if let Ok(finished) = together(sagas, &all).await {
            for (ending, finished) in endings.into_iter().zip(finished) {
                // A caller that was dropped meanwhile needs no answer.
                let _ = ending.done.send(Ok(finished));
            }
            return;
        }
    }
    // Alone, or one by one after an error that may concern only one of them.
    for Ending { held, output, done } in endings {
        let _ = done.send(alone(sagas, &held, &output).await);
    }
}

async fn together<DB: Dialect>(sagas: &Base<DB>, all: &[(&Held, &str)]) -> Result<Vec<bool>, StoreError> {
    let mut connection = sagas.acquire().await?;
    let finished = sagas.tables.finish_all(&mut connection, all);
    sagas.db.call(finished).await.map_err(StoreError::during("store finished sagas"))
}

async fn alone<DB: Dialect>(sagas: &Base<DB>, held: &Held, output: &str) -> Result<bool, StoreError> {
    let mut connection = sagas.acquire().await?;
    let finish = Turn::Finish { output };
    let finished = sagas.tables.turn(&mut connection, held, &finish);
    sagas.db.call(finished).await.map_err(StoreError::during("store a finished saga"))
}
