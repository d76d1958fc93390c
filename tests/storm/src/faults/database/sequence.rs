//! The sequence of the outbox goes back, as after a restore of data without it, or a logical upgrade.

use async_trait::async_trait;
use rand::Rng as _;
use rand::rngs::StdRng;

use super::session;
use crate::Failure;
use crate::faults::{Fault, Struck};
use crate::stage::Stage;

/// `setval` to an earlier id: new rows get ids that the relay has passed.
#[derive(Debug)]
pub struct SequenceReset;

#[async_trait]
impl Fault for SequenceReset {
    fn name(&self) -> &'static str {
        "sequence-reset"
    }

    fn by_default(&self) -> bool {
        false
    }

    async fn strike(&mut self, stage: &Stage, rng: &mut StdRng) -> Result<Struck, Failure> {
        let back: i64 = rng.random_range(1..=500);
        let mut session = session::connect(&stage.database.producers).await?;
        let sql =
            "SELECT setval('outbox_message_id_seq', greatest(last_value - $1, 1)) FROM outbox_message_id_seq";
        let id: i64 = sqlx::query_scalar(sql).bind(back).fetch_one(&mut session).await?;
        session::end(session).await;
        Ok(Struck::new("outbox_message_id_seq", format!("back to {id}")))
    }

    async fn heal(&mut self, _stage: &Stage) -> Result<(), Failure> {
        Ok(())
    }
}
