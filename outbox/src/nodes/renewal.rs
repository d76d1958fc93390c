//! Takes a number, renews it, and takes another one when it is lost.

use std::sync::Arc;
use std::time::Duration;

use message::token::NodeTerm;
use tokio::sync::{mpsc, oneshot};

use super::HeldNumber;
use super::error::NodeError;
use super::handle::Shared;
use super::options::NodeOptions;
use crate::bounded::Bounded;
use crate::dialect::Dialect;
use crate::telemetry;

/// A request from the handle to its renewal task.
#[derive(Debug)]
pub(super) enum Command {
    /// Renew now.
    Renew(oneshot::Sender<Result<(), NodeError>>),
    /// Release the number and end.
    Close(oneshot::Sender<Result<(), NodeError>>),
}

/// The task behind a node. It never drops a database call half-way.
pub(super) struct Renewal<DB: Dialect> {
    pub(super) db: Bounded<DB>,
    pub(super) statements: DB::ProducerStatements,
    pub(super) options: NodeOptions,
    pub(super) shared: Arc<Shared>,
}

impl<DB: Dialect> Renewal<DB> {
    /// Runs until the last handle is dropped.
    pub(super) async fn run(self, mut commands: mpsc::Receiver<Command>) {
        let mut has_failed = false;
        loop {
            match tokio::time::timeout(self.pause(has_failed), commands.recv()).await {
                Err(_) => {
                    let kept = self.keep().await;
                    has_failed = kept.is_err();
                    if let Err(error) = kept {
                        tracing::warn!(%error, "could not renew the number of this node");
                    }
                }
                Ok(Some(Command::Renew(done))) => {
                    let kept = self.keep().await;
                    // Its attempt takes the place of the next one, which must not be late.
                    has_failed = kept.is_err();
                    // Sending fails if the caller was dropped.
                    drop(done.send(kept));
                }
                Ok(Some(Command::Close(done))) => return drop(done.send(self.give_back().await)),
                Ok(None) => {
                    if let Err(error) = self.give_back().await {
                        tracing::debug!(%error, "the number of this node stays taken until its lease ends");
                    }
                    return;
                }
            }
        }
    }

    /// Renews the lease, or takes another number when another node has this one.
    pub(super) async fn keep(&self) -> Result<(), NodeError> {
        let Some(term) = self.shared.mint().term() else { return self.take().await };
        // Read before the request: the database counts from a later moment.
        let asked_at = self.options.clock.elapsed();
        let held = HeldNumber::of(term, &self.options.holder);
        let renewed = async {
            let mut connection = self.db.acquire().await?;
            DB::renew_node(&mut connection, &self.statements, &held, self.options.lease).await
        };
        if self.db.call(renewed).await.map_err(NodeError::during("renew a node number"))? {
            self.shared.mint().hold(NodeTerm { until: asked_at + self.options.relied_on(), ..term });
            return Ok(());
        }
        self.shared.mint().give_up();
        telemetry::number_lost();
        tracing::error!(
            number = term.number,
            epoch = term.epoch,
            "another node has the number of this node, which was not renewed in time; taking a different one"
        );
        self.take().await
    }

    pub(super) async fn take(&self) -> Result<(), NodeError> {
        let asked_at = self.options.clock.elapsed();
        let (holder, lease) = (&self.options.holder, self.options.lease);
        let taken = async {
            let mut connection = self.db.acquire().await?;
            DB::take_node(&mut connection, &self.statements, holder, lease).await
        };
        let taken = self.db.call(taken).await.map_err(NodeError::during("lease a node number"))?;
        let HeldNumber { number, epoch, .. } = taken.ok_or(NodeError::AllTaken)?;
        let (Ok(small), Ok(short)) = (u16::try_from(number), u32::try_from(epoch)) else {
            return Err(NodeError::Corrupt { number, epoch });
        };
        let until = asked_at + self.options.relied_on();
        self.shared.mint().hold(NodeTerm { number: small, epoch: short, salt: rand::random(), until });
        telemetry::number_taken();
        tracing::info!(number, epoch, "this node has leased a number");
        Ok(())
    }

    async fn give_back(&self) -> Result<(), NodeError> {
        let Some(term) = self.shared.mint().term() else { return Ok(()) };
        // Make no more ids: another node may have the number at once.
        self.shared.mint().give_up();
        let held = HeldNumber::of(term, &self.options.holder);
        let released = async {
            let mut connection = self.db.acquire().await?;
            DB::release_node(&mut connection, &self.statements, &held).await
        };
        self.db.call(released).await.map(drop).map_err(NodeError::during("release a node number"))
    }

    /// Returns the pause until the next attempt: a third of the lease. Shorter after a failure and
    /// while the node has no number. So three attempts without an answer fit into a lease.
    fn pause(&self, has_failed: bool) -> Duration {
        let is_sound = !has_failed && self.shared.mint().term().is_some();
        self.options.lease / if is_sound { 3 } else { 10 }
    }
}
