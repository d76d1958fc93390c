//! The sequence of the outbox is set back, as after a logical upgrade, or after a restore that
//! leaves out the sequence.

use async_trait::async_trait;
use rand::Rng as _;
use rand::rngs::StdRng;

use super::session;
use crate::Failure;
use crate::faults::{Fault, FaultKind, Injected};
use crate::journal::{Journal, SET_BACK, SetBack};
use crate::stage::Stage;

/// A fault that calls `setval` with an earlier id, so that new rows get ids that the relay has
/// passed. Rows that the relay has not read yet may be published after newer rows of their keys
/// (`docs/operations/histories.md`). So the fault records the range of ids that are assigned twice.
#[derive(Debug)]
pub struct SequenceReset;

/// Ids that producers may use between the query for the sequence's position and `setval`.
const MEANWHILE: i64 = 100;

#[async_trait]
impl Fault<Stage> for SequenceReset {
    fn kind(&self) -> FaultKind {
        FaultKind::new("sequence-reset")
    }

    async fn inject(&mut self, stage: &Stage, rng: &mut StdRng) -> Result<Injected, Failure> {
        let back: i64 = rng.random_range(1..=500);
        let mut session = session::connect(&stage.database.producers).await?;
        let last: i64 = sqlx::query_scalar("SELECT last_value FROM outbox_message_id_seq")
            .fetch_one(&mut session)
            .await?;
        let id = (last - back).max(1);
        let again = SetBack { above: id, up_to: last + MEANWHILE };
        Journal::open(&stage.folder.join(SET_BACK))?.write(&[again])?;
        let set = "SELECT setval('outbox_message_id_seq', $1)";
        sqlx::query(set).bind(id).execute(&mut session).await?;
        session::end(session).await;
        Ok(Injected::new("outbox_message_id_seq", format!("back to {id}")))
    }
}
