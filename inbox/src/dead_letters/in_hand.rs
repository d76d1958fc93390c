//! Records which process has the message of a dead letter in hand while redriving it.

use uuid::Uuid;

use super::record::DeadLetter;
use crate::attempts::{Forget, InHand};
use crate::dialect::Dialect;
use crate::ids::Key;
use crate::inbox::Inbox;
use crate::store_error::StoreError;

/// The process that has the message of a dead letter in hand.
pub(crate) enum Hand {
    /// The asking process; this is now recorded.
    Own {
        /// The reason to stop redriving the message, once too many processes have ended with it in
        /// hand.
        given_up: Option<String>,
    },
    /// Another process. It is about to lock the dead letter, or has ended.
    OfAnother(Uuid),
}

impl<DB: Dialect> Inbox<DB> {
    /// Records that a process has the message of a dead letter in hand, unless another process has
    /// recorded that. Takes over the note of the process `ended`, and counts its end.
    ///
    /// The caller holds the lock of the dead letter or of its request. That alone does not show
    /// that the other process has ended: it briefly releases the lock when it commits its note.
    pub(crate) async fn take_letter(
        &self,
        connection: &mut DB::Connection,
        letter: &DeadLetter,
        process: Uuid,
        ended: Option<Uuid>,
    ) -> Result<Hand, StoreError> {
        let failed = StoreError::during("record the message to redrive");
        let keys = [letter.key()];
        let take = async {
            let taken = DB::take_in_hand(connection, self.tables(), &keys, process).await?;
            let owner = taken.first().and_then(|taken: &InHand| taken.owner);
            let Some(owner) = owner.filter(|owner| ended == Some(*owner)) else { return Ok(taken) };
            self.tables().take_over(connection, keys[0], owner, process).await?;
            DB::take_in_hand(connection, self.tables(), &keys, process).await
        };
        let taken = take.await.map_err(failed)?;
        let taken = taken.first();
        Ok(match taken.and_then(|taken| taken.owner) {
            Some(owner) => Hand::OfAnother(owner),
            None => Hand::Own { given_up: taken.and_then(InHand::given_up) },
        })
    }

    /// Removes the note of a process that has not begun, because another process was faster.
    pub(crate) async fn leave_letter(&self, key: Key<'_>, process: Uuid) -> Result<(), StoreError> {
        let what = "note that a redrive has not begun";
        let mut connection = self.acquire(what).await?;
        DB::put_down(&mut connection, self.tables(), &[key], process).await.map_err(StoreError::during(what))
    }

    /// Removes the note, because the process survived the handler. Failures stay, unless the
    /// message is finished: it took effect, or the redrive failed and counting restarts with the
    /// next decision.
    pub(crate) async fn put_letter_down(&self, key: Key<'_>, is_over: bool) -> Result<(), StoreError> {
        let what = "record that a redrive has ended";
        let mut connection = self.acquire(what).await?;
        let forget = if is_over { Forget::All } else { Forget::Unnoted };
        DB::forget_attempts(&mut connection, self.tables(), &[key], forget)
            .await
            .map_err(StoreError::during(what))
    }
}
