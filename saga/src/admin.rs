//! Lists and decisions for operators.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use message::{InvalidText, shield};
use migrations::SqlErrorKind;
use outbox::Signature;

use crate::dialect::Dialect;
use crate::error::StoreError;
use crate::key::{self, NAME_BYTES_MAX, SagaId};
use crate::operator::{Action, DecidedSaga, Decision, Overdue, SagaQuery};
use crate::record::{Condition, SagaOutline, SagaRecord, Seen, State, StepRecord};
use crate::sagas::Sagas;
use crate::tables::{Skipped, Tables};

/// The choice of an operator about a saga, with its arguments.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Choice {
    /// [`Action::Retry`].
    Retry,
    /// [`Action::Cancel`].
    Cancel,
    /// [`Action::Skip`].
    Skip {
        /// The step.
        step: String,
        /// The result to give it; `None` while the saga is being undone.
        result: Option<serde_json::Value>,
    },
}

impl Choice {
    /// Returns the kind of the choice, without its arguments.
    #[must_use]
    pub fn action(&self) -> Action {
        match self {
            Self::Retry => Action::Retry,
            Self::Cancel => Action::Cancel,
            Self::Skip { .. } => Action::Skip,
        }
    }

    /// Returns the step to skip.
    #[must_use]
    pub fn step(&self) -> Option<&str> {
        match self {
            Self::Skip { step, .. } => Some(step),
            Self::Retry | Self::Cancel => None,
        }
    }
}

/// The reason why a decision was refused. Nothing was changed, except with
/// [`DecideError::Unknown`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecideError {
    /// There is no such saga, or it has been deleted.
    #[error("there is no saga {id}; an ended saga is deleted after its retention")]
    NotFound {
        /// The saga.
        id: SagaId,
    },
    /// The saga has continued, got stuck elsewhere or been cancelled since the operator saw it. The
    /// same decision would now have a different meaning.
    #[error("the saga {id} has changed since it was shown: it is {condition} now")]
    Changed {
        /// The saga.
        id: SagaId,
        /// Its [condition](SagaOutline::condition).
        condition: Condition,
    },
    /// The state of the saga does not permit this decision.
    #[error("the saga {id} is {state}{}; {action} needs one that is {needed}", if *.is_stuck { ", stuck" } else { "" })]
    NotNow {
        /// The saga.
        id: SagaId,
        /// Its state.
        state: State,
        /// Whether it is stuck.
        is_stuck: bool,
        /// The choice.
        action: Action,
        /// The state that is needed.
        needed: &'static str,
    },
    /// The step has its outcome, has nothing to undo, or has not begun, and it is not the one at
    /// which the saga is stuck.
    #[error(
        "the step {step} of {id} cannot be skipped: it has not begun, has its outcome, or has nothing to undo{}; see \
         `relay sagas show`", stuck_at(.at.as_deref())
    )]
    NotSkipped {
        /// The saga.
        id: SagaId,
        /// The step.
        step: String,
        /// The step at which the saga is stuck, if it is stuck at one.
        at: Option<String>,
    },
    /// The decision skips a step of a running saga without a result, but its function needs one to
    /// continue.
    #[error(
        "the step {step} of {id} needs a result as JSON, which the saga's code continues with; use null for \
         a step without a result"
    )]
    NoResult {
        /// The saga.
        id: SagaId,
        /// The step.
        step: String,
    },
    /// The decision skips an undo with a result: the operator believes that the saga still runs.
    #[error(
        "{id} is being undone, and an undo has no result: omit the result to skip the undo of {step}; see \
         `relay sagas show`"
    )]
    ResultOfUndo {
        /// The saga.
        id: SagaId,
        /// The step.
        step: String,
    },
    /// The name of the step, the actor or the note cannot be used.
    #[error(transparent)]
    Name(#[from] InvalidText),
    /// The commit was not answered, or its error does not prove a rollback: the decision may be in
    /// force.
    #[error("it is unknown whether this was done: {0}; check the saga again")]
    Unknown(#[source] StoreError),
    /// The database refused or is unavailable.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn stuck_at(step: Option<&str>) -> String {
    let place = step.map_or_else(|| String::from("at none of its steps"), |step| format!("at {step}"));
    format!(", and the saga is stuck {place}")
}

impl<DB: Dialect> Sagas<DB> {
    /// Lists sagas, the oldest first, without their contents. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn list(&self, query: &SagaQuery) -> Result<Vec<SagaOutline>, StoreError> {
        let what = "list sagas";
        let tx = self.begin(what, Tables::begin_by_index).await?;
        self.call(what, self.0.tables.list(tx, query)).await
    }

    /// Reads a saga and its steps, in the order in which they began. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn show(&self, id: &SagaId) -> Result<Option<(SagaRecord, Vec<StepRecord>)>, StoreError> {
        let Some(saga) = self.find(id).await? else { return Ok(None) };
        let mut connection = self.acquire().await?;
        let steps = self.0.tables.steps(&mut connection, id);
        Ok(Some((saga, self.call("read the steps of a saga", steps).await?)))
    }

    /// Reads a saga and its steps without their contents: a step has no result. It needs only the
    /// rights of an observer. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn look(&self, id: &SagaId) -> Result<Option<(SagaOutline, Vec<StepRecord>)>, StoreError> {
        let mut connection = self.acquire().await?;
        self.call("read a saga", self.0.tables.look(&mut connection, id)).await
    }

    /// Counts the sagas of each type and version that are overdue by more than `by`, up to
    /// [`OVERDUE_COUNTED_MAX`](crate::OVERDUE_COUNTED_MAX) of each. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn overdue(&self, by: Duration) -> Result<Vec<Overdue>, StoreError> {
        let what = "count overdue sagas";
        let tx = self.begin(what, Tables::begin_by_index).await?;
        self.call(what, self.0.tables.overdue(tx, by.min(crate::SPAN_MAX))).await
    }

    /// Lists the decisions, the latest first. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn decisions(&self, limit: NonZeroU32) -> Result<Vec<Decision>, StoreError> {
        self.decisions_before(i64::MAX, limit).await
    }

    /// Lists the decisions with numbers below `before`, the latest first. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn decisions_before(
        &self,
        before: i64,
        limit: NonZeroU32,
    ) -> Result<Vec<Decision>, StoreError> {
        let mut connection = self.acquire().await?;
        let decisions = self.0.tables.decisions(&mut connection, before, limit.get());
        self.call("list the decisions about sagas", decisions).await
    }

    /// Lets a stuck saga continue where it stopped, with its attempts counted from zero.
    ///
    /// # Errors
    /// [`DecideError`]. Like the other decisions, it runs to its end even if this call is dropped.
    pub async fn retry(&self, id: &SagaId, signature: &Signature) -> Result<(), DecideError> {
        self.decide(id, Choice::Retry, None, signature).await
    }

    /// Cancels a saga, which is then undone. A saga that a worker runs is undone after its current
    /// step. A saga that is about to finish either finishes, and this call fails, or is undone.
    ///
    /// # Errors
    /// [`DecideError`].
    pub async fn cancel(&self, id: &SagaId, signature: &Signature) -> Result<(), DecideError> {
        self.decide(id, Choice::Cancel, None, signature).await
    }

    /// Skips a step of a stuck saga, which then continues. While the saga is being undone, this
    /// skips the undo of the step at which it is stuck, and of no other step. While it runs, this
    /// skips the step itself, which gets `result`. A step that has not begun must be the one at
    /// which the saga is stuck: after a misspelt name the saga would repeat work that an operator
    /// has done by hand. If the step at which it is stuck already has a result that its code cannot
    /// read, `result` replaces it.
    ///
    /// # Errors
    /// [`DecideError`]: [`NoResult`](DecideError::NoResult) if the saga runs and `result` is
    /// missing, [`ResultOfUndo`](DecideError::ResultOfUndo) if it is being undone and `result` is
    /// given.
    pub async fn skip(
        &self,
        id: &SagaId,
        step: &str,
        result: Option<&serde_json::Value>,
        signature: &Signature,
    ) -> Result<(), DecideError> {
        let choice = Choice::Skip { step: step.to_owned(), result: result.cloned() };
        self.decide(id, choice, None, signature).await
    }

    /// Decides about a saga like [`retry`](Self::retry), [`cancel`](Self::cancel) and
    /// [`skip`](Self::skip). If `seen` is given, the saga must still be as the operator saw it.
    ///
    /// # Errors
    /// [`DecideError`], [`Changed`](DecideError::Changed) if the saga has changed since.
    pub async fn decide(
        &self,
        id: &SagaId,
        choice: Choice,
        seen: Option<Seen>,
        signature: &Signature,
    ) -> Result<(), DecideError> {
        if let Choice::Skip { step, .. } = &choice {
            key::check("the name of a step", step, NAME_BYTES_MAX)?;
        }
        signature.check()?;
        let (sagas, id, signature) = (self.clone(), id.clone(), signature.clone());
        shield(async move {
            let is_committing = AtomicBool::new(false);
            let deciding = sagas.decide_now(id, choice, seen, signature, &is_committing);
            match sagas.0.db.any(deciding).await {
                Ok(decided) => decided,
                Err(late) => {
                    let late = StoreError::during("store a decision about a saga")(late);
                    let is_unknown = is_committing.load(Ordering::Relaxed);
                    Err(if is_unknown { DecideError::Unknown(late) } else { late.into() })
                }
            }
        })
        .await
    }

    /// Sets `is_committing` before it sends the commit: until then, an end of this future also ends
    /// the transaction.
    async fn decide_now(
        &self,
        id: SagaId,
        choice: Choice,
        seen: Option<Seen>,
        signature: Signature,
        is_committing: &AtomicBool,
    ) -> Result<(), DecideError> {
        let failed = StoreError::during;
        let tables = &self.0.tables;
        let mut tx = self.begin("begin a transaction", DB::begin_saga).await?;
        let found = tables.lock(&mut tx, &id).await.map_err(failed("read a saga"))?;
        let Some(saga) = found else { return Err(DecideError::NotFound { id }) };
        let (state, is_stuck) = (saga.state, saga.stuck_at.is_some());
        if seen.is_some_and(|seen| seen != saga.seen()) {
            return Err(DecideError::Changed { id, condition: saga.condition() });
        }
        let action = choice.action();
        let is_done = match &choice {
            Choice::Cancel => {
                let Signature { actor, note, .. } = &signature;
                let reason = crate::error::storable(&format!("cancelled by {actor}: {note}"));
                tables.cancel(&mut tx, &id, &reason).await.map_err(failed("cancel a saga"))?
            }
            _ if !is_stuck => false,
            Choice::Retry => tables.retry(&mut tx, &id).await.map_err(failed("resume a saga"))?,
            Choice::Skip { step, result } => {
                self.skip_in(&mut tx, &saga, step, result.as_ref()).await?;
                tables.retry(&mut tx, &id).await.map_err(failed("resume a saga"))?
            }
        };
        if !is_done {
            let needed = if action == Action::Cancel { "running" } else { "stuck" };
            return Err(DecideError::NotNow { id, state, is_stuck, action, needed });
        }
        let about = DecidedSaga { id, step: choice.step().map(str::to_owned) };
        let noted = tables.note(&mut tx, &signature, action, &about).await;
        noted.map_err(failed("note a decision"))?;
        is_committing.store(true, Ordering::Relaxed);
        tx.commit().await.map_err(|error| {
            let is_rolled_back = SqlErrorKind::says_rolled_back(&error);
            let error = failed("commit a decision")(error);
            if is_rolled_back { error.into() } else { DecideError::Unknown(error) }
        })?;
        tracing::info!(saga = %about.id, %action, actor = signature.actor, "an operator has decided");
        self.wake();
        Ok(())
    }

    /// Skips a step of a stuck saga whose row is locked.
    async fn skip_in(
        &self,
        tx: &mut DB::Connection,
        saga: &SagaOutline,
        step: &str,
        result: Option<&serde_json::Value>,
    ) -> Result<(), DecideError> {
        let (tables, id) = (&self.0.tables, &saga.id);
        let is_stuck_here = saga.waits_for.as_deref() == Some(step);
        let skipped = match (saga.state, result) {
            // The operator saw a saga that still ran; this would skip the undo instead.
            (State::Undoing, Some(_)) => {
                return Err(DecideError::ResultOfUndo { id: id.clone(), step: step.to_owned() });
            }
            (State::Undoing, None) if is_stuck_here => tables.skip_undo(tx, id, step).await,
            // Skipping another step would leave its effect for good, while this step keeps failing.
            (State::Undoing, None) => Ok(false),
            (_, None) => return Err(DecideError::NoResult { id: id.clone(), step: step.to_owned() }),
            (_, Some(result)) => {
                let result = result.to_string();
                tables.skip_step(tx, id, Skipped { step, is_stuck_here }, &result).await
            }
        };
        if skipped.map_err(StoreError::during("skip a step"))? {
            Ok(())
        } else {
            let (step, at) = (step.to_owned(), saga.waits_for.clone());
            Err(DecideError::NotSkipped { id: id.clone(), step, at })
        }
    }
}
