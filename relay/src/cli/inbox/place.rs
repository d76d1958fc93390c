//! The inbox's database.

use std::num::NonZeroU32;

use ::inbox::{
    DeadLetter, DeadLetterId, DeadLetterQuery, Decision, Dialect as Store, InboxOptions, OpenError,
    RedriveError, RedriveOptions, Redriven, Requested, Signature, StoreError,
};
use migrations::Identifier;
#[cfg(feature = "postgres")]
use sqlx::Postgres;
use sqlx::{Connection, Sqlite};

use super::super::database::{ConnectOptions, TablesDatabase};
use super::super::exit::Exit;
use super::super::failure::{Failure, exit_of, told};

/// An open inbox.
pub(crate) enum Opened {
    #[cfg(feature = "postgres")]
    Postgres(::inbox::Inbox<Postgres>),
    Sqlite(::inbox::Inbox<Sqlite>),
}

impl Opened {
    pub(crate) async fn of(database: &TablesDatabase) -> Result<Self, Failure> {
        let goal = database.goal()?;
        let schema = goal.options.schema.clone();
        Ok(match goal.connect_options("relay inbox")? {
            #[cfg(feature = "postgres")]
            ConnectOptions::Postgres(options) => Self::Postgres(open(options, schema).await?),
            ConnectOptions::Sqlite(options) => Self::Sqlite(open(options, schema).await?),
        })
    }
}

async fn open<DB: Store + outbox::Dialect>(
    options: <DB::Connection as Connection>::Options,
    schema: Option<Identifier>,
) -> Result<::inbox::Inbox<DB>, Failure> {
    let pool = outbox::pool_options::<DB>().max_connections(1).connect_lazy_with(options);
    let opened = ::inbox::Inbox::open(pool, InboxOptions { schema, ..InboxOptions::default() }).await;
    opened.map_err(|error| match error {
        OpenError::Schema(error) => Failure::from(error),
        error => Failure::new(exit_of(error.fault()), told(&error)),
    })
}

/// The same call on either database.
macro_rules! on {
    ($opened:expr, $inbox:ident => $call:expr) => {
        match $opened {
            #[cfg(feature = "postgres")]
            Opened::Postgres($inbox) => $call.await,
            Opened::Sqlite($inbox) => $call.await,
        }
    };
}

impl Opened {
    pub(crate) async fn dead_letters(&self, query: &DeadLetterQuery) -> Result<Vec<DeadLetter>, Failure> {
        on!(self, inbox => inbox.dead_letters(query)).map_err(failed)
    }

    pub(crate) async fn dead_letter(&self, id: DeadLetterId) -> Result<Option<DeadLetter>, Failure> {
        on!(self, inbox => inbox.dead_letter_by_id(id)).map_err(failed)
    }

    pub(crate) async fn decisions(&self, limit: NonZeroU32) -> Result<Vec<Decision>, Failure> {
        on!(self, inbox => inbox.decisions(limit)).map_err(failed)
    }

    pub(crate) async fn request_redrive(
        &self,
        id: DeadLetterId,
        options: RedriveOptions,
        signature: &Signature,
    ) -> Result<Requested, Failure> {
        on!(self, inbox => inbox.request_redrive(id, options, signature)).map_err(refused)
    }

    pub(crate) async fn discard(&self, id: DeadLetterId, signature: &Signature) -> Result<Redriven, Failure> {
        on!(self, inbox => inbox.discard(id, signature)).map_err(refused)
    }

    pub(crate) async fn close(self) {
        on!(self, inbox => inbox.pool().close());
    }
}

fn failed(error: StoreError) -> Failure {
    Failure::new(exit_of(error.fault()), told(&error))
}

fn refused(error: RedriveError) -> Failure {
    match error {
        RedriveError::Store(error) => failed(error),
        error => Failure::new(Exit::Usage, error.report()),
    }
}
