//! The inbox of one consumer: its settings, and its operations.

use std::error::Error;

use message::{ConsumerName, Delivery, Malformed, Message, Tenant};

use crate::admit::Admit;
use crate::fail::Fail;
use crate::failure::Failure;
use crate::maintain::{Maintain, RETENTION_DAYS_DEFAULT};
use crate::redrive::{BeginRedrive, FailRedrive, RedriveRequest, TakeRedrive};
use crate::settings::InboxSettings;
use crate::store::Store;

/// How often a handler may fail before its message becomes a dead letter.
const ATTEMPTS_MAX_DEFAULT: u32 = 10;

/// The inbox of one consumer. Cheap to clone.
///
/// ```
/// use statements::{ConsumerName, Inbox};
/// # fn main() -> Result<(), statements::message::InvalidText> {
/// let inbox = Inbox::new(ConsumerName::new("billing")?).attempts_max(5);
/// # drop(inbox);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Inbox {
    settings: InboxSettings,
}

impl Inbox {
    /// Makes the inbox of a consumer, for messages without a tenant.
    #[must_use]
    pub fn new(consumer: ConsumerName) -> Self {
        let settings = InboxSettings {
            consumer,
            tenant: Tenant::none(),
            attempts_max: ATTEMPTS_MAX_DEFAULT,
            retention_days: RETENTION_DAYS_DEFAULT,
        };
        Self { settings }
    }

    /// Sets the tenant of the messages that follow: a part of their identity.
    #[must_use]
    pub fn tenant(mut self, tenant: Tenant) -> Self {
        self.settings.tenant = tenant;
        self
    }

    /// Sets how often a handler may fail before its message becomes a dead letter: 10 by default,
    /// the first time included. 0 counts as 1.
    #[must_use]
    pub fn attempts_max(mut self, attempts_max: u32) -> Self {
        self.settings.attempts_max = attempts_max.max(1);
        self
    }

    /// Sets how many days ids are remembered: 1 to 366, 14 by default. Choose two to three times
    /// the longest time after which a duplicate can arrive. All consumers of a schema share its
    /// days: set the longest of all of them in each process.
    #[must_use]
    pub fn retention_days(mut self, days: u16) -> Self {
        self.settings.retention_days = days;
        self
    }

    /// Admits a message to the transaction in which the operation runs. If it is new, have the
    /// effect in the same transaction, then [`finish`](crate::Guard::finish) it.
    ///
    /// Waits for a transaction that admits the same message at the same time. The commit waits for
    /// the disk even if the server's settings do not ask for it.
    pub fn admit(&self, message: &Message) -> Admit {
        Admit::new(&self.settings, message)
    }

    /// Records that a message was not handled, after its transaction was rolled back. One that was
    /// refused or rejected becomes a dead letter at once. Otherwise the failure is counted, and
    /// from [`attempts_max`](Self::attempts_max) on the message becomes a dead letter in the same
    /// statement. Do not count an outage of the database, or a conflict with another transaction.
    ///
    /// The failure's text is stored for operators, cut to 4,096 bytes.
    pub fn fail<D: Error + 'static>(&self, message: &Message, failure: &Failure<D>) -> Fail {
        Fail::new(&self.settings, message, failure)
    }

    /// Stores a delivery that is not a message as a dead letter.
    pub fn refuse_delivery(&self, delivery: &Delivery, malformed: &Malformed) -> Store {
        Store::delivery(&self.settings, delivery, malformed)
    }

    /// Begins the next redrive that an operator asked for, if there is one. Ask every few seconds,
    /// outside a transaction: a process that ends while it has the request in hand is counted, and
    /// after five of them the request ends.
    pub fn begin_redrive(&self) -> BeginRedrive {
        BeginRedrive::new(&self.settings)
    }

    /// Takes the message of a redrive that was begun, admitted to the transaction in which the
    /// operation runs. Commit also if there is none.
    pub fn take_redrive(&self, request: RedriveRequest) -> TakeRedrive {
        TakeRedrive::new(&self.settings, request)
    }

    /// Ends a redrive whose handler failed, after its transaction was rolled back. The dead letter
    /// stays open.
    pub fn fail_redrive<D: Error + 'static>(
        &self,
        request: RedriveRequest,
        failure: &Failure<D>,
    ) -> FailRedrive {
        FailRedrive::new(&self.settings, request, &failure.text())
    }

    /// Creates the days that rows of the inbox lie in, a week ahead, and forgets those before the
    /// retention, with the failures of their messages. Removes dead letters that were closed 30
    /// days ago, and decisions after three years. Run it at the start and every hour, in no
    /// transaction of your own: its locks last until that ends.
    ///
    /// The date of this process's clock is sent as well, and the earlier one of both clocks decides
    /// what is forgotten: otherwise a clock that is far ahead for a moment would make every message
    /// too old, for ever.
    ///
    /// Returns the parts that failed: print them; the next call does them. It fails (SQLSTATE
    /// 55P03) only if today's day is missing and cannot be created: try again.
    pub fn maintain(&self) -> Maintain {
        Maintain::new(self.settings.retention_days)
    }
}
