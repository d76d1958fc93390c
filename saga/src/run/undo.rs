//! The forms of an undo: none, and a closure.

use std::future::Future;
use std::sync::Arc;

use outbox::OutboxTransaction;
use serde::de::DeserializeOwned;

use super::rollback::roll_back;
use super::work::{Accepts, CallUndo, Code, StepUndo, TxUndo};
use super::{Halt, Parts, Stopped, change};
use crate::crash_points;
use crate::dialect::Dialect;
use crate::key::StepKey;
use crate::record::{Commits, StepRecord, StepState, UndoState};
use crate::stop::{Next, StepError, Stop};

/// A step without an undo.
pub struct NoUndo;

/// A step with an undo.
pub struct Undo<U>(pub(crate) U);

/// The undo of a request, which may have no reply.
pub struct UndoRequest<U>(pub(crate) U);

/// An undo that commits in a transaction with its record.
pub trait UndoInTx<DB: Dialect, T>: Send {
    /// The undo state with which the step is stored.
    const STATE: UndoState;
    /// Runs the undo.
    fn undo(
        self,
        tx: &mut OutboxTransaction<DB>,
        value: Option<&T>,
    ) -> impl Future<Output = Result<(), StepError>> + Send;
}

impl<DB: Dialect, T: Sync> UndoInTx<DB, T> for NoUndo {
    const STATE: UndoState = UndoState::None;

    async fn undo(self, _: &mut OutboxTransaction<DB>, _: Option<&T>) -> Result<(), StepError> {
        Err(StepError::stop("the code no longer has an undo for this step"))
    }
}

impl<DB: Dialect, T: Sync, U, E, M> UndoInTx<DB, T> for Undo<Code<U, E, M>>
where
    U: for<'t> StepUndo<'t, DB, T, E> + Send,
    E: Into<StepError> + 'static,
    M: Accepts<E>,
{
    const STATE: UndoState = UndoState::Pending;

    async fn undo(self, tx: &mut OutboxTransaction<DB>, value: Option<&T>) -> Result<(), StepError> {
        match value {
            Some(value) => self.0.into_closure().run(tx, value).await.map_err(Into::into),
            None => Err(StepError::stop("the step has no stored result")),
        }
    }
}

impl<DB: Dialect, T: Sync, U, E, M> UndoInTx<DB, T> for UndoRequest<Code<U, E, M>>
where
    U: for<'t> TxUndo<'t, DB, T, E> + Send,
    E: Into<StepError> + 'static,
    M: Accepts<E>,
{
    const STATE: UndoState = UndoState::Pending;

    async fn undo(self, tx: &mut OutboxTransaction<DB>, value: Option<&T>) -> Result<(), StepError> {
        self.0.into_closure().run(tx, value).await.map_err(Into::into)
    }
}

/// An undo elsewhere.
pub trait UndoElsewhere<T>: Send {
    /// The undo state with which the step is stored.
    const STATE: UndoState;
    /// Runs the undo.
    fn undo(self, key: &StepKey, value: Option<&T>) -> impl Future<Output = Result<(), StepError>> + Send;
}

impl<T: Sync> UndoElsewhere<T> for NoUndo {
    const STATE: UndoState = UndoState::None;

    async fn undo(self, _: &StepKey, _: Option<&T>) -> Result<(), StepError> {
        Err(StepError::stop("the code no longer has an undo for this call"))
    }
}

impl<T: Sync, U, E, M> UndoElsewhere<T> for Undo<Code<U, E, M>>
where
    U: for<'t> CallUndo<'t, T, E> + Send,
    E: Into<StepError> + 'static,
    M: Accepts<E>,
{
    const STATE: UndoState = UndoState::Pending;

    async fn undo(self, key: &StepKey, value: Option<&T>) -> Result<(), StepError> {
        self.0.into_closure().run(key, value).await.map_err(Into::into)
    }
}

impl<DB: Dialect> Parts<DB> {
    /// Undoes a step; undo, messages and record commit together.
    pub(super) async fn undo_in_tx<T, U>(&mut self, row: &StepRecord, undo: U) -> Stopped
    where
        T: DeserializeOwned + Send + Sync,
        U: UndoInTx<DB, T>,
    {
        self.try_undo_in_tx(row, undo).await.err().unwrap_or_else(Stop::paused)
    }

    async fn try_undo_in_tx<T, U>(&mut self, row: &StepRecord, undo: U) -> Result<(), Stopped>
    where
        T: DeserializeOwned + Send + Sync,
        U: UndoInTx<DB, T>,
    {
        let value = self.stored_value::<T>(row)?;
        let sagas = Arc::clone(&self.sagas);
        let _turn = self.turn(&sagas).await?;
        let mut tx = self.begin(&row.name).await?;
        let undone = self.while_held(undo.undo(&mut tx, value.as_ref())).await;
        if let Err(error) = undone {
            // If this fails, the transaction is rolled back anyway, at the latest when the
            // connection is returned.
            let _ = sagas.db.any(roll_back(tx, &error)).await;
            return self.failed_undo(row, &error);
        }
        let undone = change(row, row.state, UndoState::Done, None, None);
        self.change_step_in(&mut tx, &undone, Commits::WithEffect).await?;
        self.at(crash_points::BEFORE_UNDO_COMMIT).await?;
        self.commit(&row.name, tx).await?;
        self.at(crash_points::AFTER_UNDO_COMMIT).await?;
        self.has_progressed = true;
        self.halt(Halt::Undone)
    }

    /// Undoes a call, and stores that.
    pub(super) async fn undo_call<T, U>(&mut self, row: &StepRecord, undo: U) -> Stopped
    where
        T: DeserializeOwned + Send + Sync,
        U: UndoElsewhere<T>,
    {
        self.try_undo_call(row, undo).await.err().unwrap_or_else(Stop::paused)
    }

    async fn try_undo_call<T, U>(&mut self, row: &StepRecord, undo: U) -> Result<(), Stopped>
    where
        T: DeserializeOwned + Send + Sync,
        U: UndoElsewhere<T>,
    {
        let value = self.stored_value::<T>(row)?;
        self.check_lease()?;
        if let Err(error) = undo.undo(&self.held.id.key(&row.name), value.as_ref()).await {
            return self.failed_undo(row, &error);
        }
        self.at(crash_points::AFTER_UNDO_CALL).await?;
        self.change_step(&change(row, row.state, UndoState::Done, None, None)).await?;
        self.has_progressed = true;
        self.halt(Halt::Undone)
    }

    /// Returns the result to undo, or `None` if the outcome is unknown. The saga may have been
    /// cancelled between a reply and the run that would have taken it: only this undo sees that
    /// reply. A reply that does not fit is ignored here, because the undo must also work without a
    /// reply.
    fn stored_value<T: DeserializeOwned>(&mut self, row: &StepRecord) -> Result<Option<T>, Stopped> {
        match row.state {
            StepState::Done => self.decode(&row.name, row.result.as_deref()).map(Some),
            StepState::Waiting => {
                Ok(self.mailbox.get(&row.name).and_then(|reply| serde_json::from_str(reply).ok()))
            }
            _ => Ok(None),
        }
    }

    fn failed_undo<T>(&mut self, row: &StepRecord, error: &StepError) -> Result<T, Stopped> {
        let name = &row.name;
        if error.next == Next::Stop {
            return self.stuck(format!("the undo of {name} cannot run: {error}"));
        }
        self.failed_step(&format!("the undo of {name}"), error)
    }
}
