//! Reads dead letters and the decisions about them.

use std::num::NonZeroU32;

use time::OffsetDateTime;
use uuid::Uuid;

use super::decision::{Decision, LetterDecision};
use super::query::{DeadLetterQuery, FoundLetter, LetterFilter, LetterGroup, LetterSlice, LetterSurvey};
use super::record::DeadLetter;
use crate::dialect::Dialect;
use crate::ids::{ConsumerName, DeadLetterId};
use crate::inbox::Inbox;
use crate::store_error::StoreError;

impl<DB: Dialect> Inbox<DB> {
    /// Returns dead letters that match a query, oldest first. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`], also when the database did not answer within the call timeout.
    pub async fn dead_letters(&self, query: &DeadLetterQuery) -> Result<Vec<DeadLetter>, StoreError> {
        let what = "list the dead letters";
        let listing = async {
            let mut connection = self.acquire(what).await?;
            self.tables().dead_letters(&mut connection, query).await.map_err(StoreError::during(what))
        };
        self.in_time(what, listing).await
    }

    /// Returns up to 1,000 dead letters of a message, or of a delivery by its
    /// [`Delivery::subject`](message::Delivery::subject), as a list without payloads has them: the
    /// open ones first, and the newest first of open and closed ones. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`], also when the database did not answer within the call timeout.
    pub async fn dead_letters_of(
        &self,
        subject: Uuid,
        consumer: Option<&ConsumerName>,
    ) -> Result<Vec<DeadLetter>, StoreError> {
        let what = "list the dead letters of a message";
        let listing = async {
            let mut connection = self.acquire(what).await?;
            let found = self.tables().dead_letters_of(&mut connection, subject, consumer).await;
            found.map_err(StoreError::during(what))
        };
        self.in_time(what, listing).await
    }

    /// Returns one dead letter; `None` when there is none with this id. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`], also when the database did not answer within the call timeout.
    pub async fn dead_letter_by_id(&self, id: DeadLetterId) -> Result<Option<DeadLetter>, StoreError> {
        let what = "read a dead letter";
        let reading = async {
            let mut connection = self.acquire(what).await?;
            self.tables().dead_letter(&mut connection, id, false).await.map_err(StoreError::during(what))
        };
        self.in_time(what, reading).await
    }

    /// Returns the next open dead letters that match, oldest first, without their payloads: at most
    /// `limit`. Looks at [`LETTERS_LOOKED_AT_MAX`](crate::LETTERS_LOOKED_AT_MAX) letters, so a
    /// slice can be empty and still have a next one. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn open_letters(
        &self,
        filter: &LetterFilter,
        after: Option<DeadLetterId>,
        limit: u32,
    ) -> Result<LetterSlice<DeadLetter>, StoreError> {
        let what = "list the dead letters";
        let listing = async {
            let mut connection = self.acquire(what).await?;
            let found = self.tables().open_letters(&mut connection, filter, after, limit).await;
            found.map_err(StoreError::during(what))
        };
        self.in_time(what, listing).await
    }

    /// Returns the next open dead letters that match, for a decision. Looks at
    /// [`LETTERS_LOOKED_AT_MAX`](crate::LETTERS_LOOKED_AT_MAX) letters, and returns all of these
    /// that match. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn choose_letters(
        &self,
        filter: &LetterFilter,
        after: Option<DeadLetterId>,
    ) -> Result<LetterSlice<FoundLetter>, StoreError> {
        let what = "choose dead letters";
        let choosing = async {
            let mut connection = self.acquire(what).await?;
            let found = self.tables().choose_letters(&mut connection, filter, after).await;
            found.map_err(StoreError::during(what))
        };
        self.in_time(what, choosing).await
    }

    /// Returns the database's time: letters that die later are younger. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn now(&self) -> Result<OffsetDateTime, StoreError> {
        let what = "read the clock";
        let reading = async {
            let mut connection = self.acquire(what).await?;
            self.tables().read_clock(&mut connection).await.map_err(StoreError::during(what))
        };
        Ok(self.in_time(what, reading).await?.now)
    }

    /// Counts the open dead letters that match, and groups their errors. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn survey(&self, filter: &LetterFilter) -> Result<LetterSurvey, StoreError> {
        let what = "count the dead letters";
        let counting = async {
            let mut connection = self.acquire(what).await?;
            let found = self.tables().survey_letters(&mut connection, filter).await;
            found.map_err(StoreError::during(what))
        };
        self.in_time(what, counting).await
    }

    /// Groups the open dead letters of a consumer by topic, reason and error: the
    /// [`LETTER_ERRORS_LOOKED_AT`](crate::LETTER_ERRORS_LOOKED_AT) oldest and as many of the newest.
    /// Reads neither headers nor payloads. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn letter_errors(&self, consumer: &ConsumerName) -> Result<Vec<LetterGroup>, StoreError> {
        let what = "count the errors of dead letters";
        let counting = async {
            let mut connection = self.acquire(what).await?;
            let found = self.tables().letter_errors(&mut connection, consumer).await;
            found.map_err(StoreError::during(what))
        };
        self.in_time(what, counting).await
    }

    /// Returns the result of a decision about dead letters, of one consumer or of all; `None` when
    /// it changed nothing. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn decision(
        &self,
        id: Uuid,
        consumer: Option<&ConsumerName>,
    ) -> Result<Option<LetterDecision>, StoreError> {
        let what = "read a decision about dead letters";
        let reading = async {
            let mut connection = self.acquire(what).await?;
            let found = self.tables().letter_decision(&mut connection, id, consumer).await;
            found.map_err(StoreError::during(what))
        };
        self.in_time(what, reading).await
    }

    /// Returns the decisions about dead letters, newest first, at most `limit`. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`], also when the database did not answer within the call timeout.
    pub async fn decisions(&self, limit: NonZeroU32) -> Result<Vec<Decision>, StoreError> {
        self.decisions_before(i64::MAX, limit).await
    }

    /// Returns the decisions about dead letters with a [`number`](Decision::number) below `before`,
    /// newest first, at most `limit`. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`], also when the database did not answer within the call timeout.
    pub async fn decisions_before(
        &self,
        before: i64,
        limit: NonZeroU32,
    ) -> Result<Vec<Decision>, StoreError> {
        let what = "list the decisions about dead letters";
        let listing = async {
            let mut connection = self.acquire(what).await?;
            let found = self.tables().decisions(&mut connection, before, limit.get()).await;
            found.map_err(StoreError::during(what))
        };
        self.in_time(what, listing).await
    }

    /// Returns the decisions about these dead letters, newest first, at most `limit` for each.
    /// Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`], also when the database did not answer within the call timeout.
    pub async fn decisions_of(
        &self,
        letters: &[DeadLetterId],
        limit: NonZeroU32,
    ) -> Result<Vec<Decision>, StoreError> {
        let what = "list the decisions about dead letters";
        let letters: Vec<Uuid> = letters.iter().map(|letter| letter.0).collect();
        let listing = async {
            let mut connection = self.acquire(what).await?;
            let found = self.tables().decisions_of(&mut connection, &letters, limit.get()).await;
            found.map_err(StoreError::during(what))
        };
        self.in_time(what, listing).await
    }

    /// Returns those of these dead letters that belong to a topic and are still stored, in no
    /// particular order. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`], also when the database did not answer within the call timeout.
    pub async fn letters_of_topic(
        &self,
        letters: &[DeadLetterId],
        topic: &str,
    ) -> Result<Vec<DeadLetterId>, StoreError> {
        let what = "look up the topics of dead letters";
        let letters: Vec<Uuid> = letters.iter().map(|letter| letter.0).collect();
        let looking = async {
            let mut connection = self.acquire(what).await?;
            let found = self.tables().letters_of_topic(&mut connection, &letters, topic).await;
            found.map_err(StoreError::during(what))
        };
        Ok(self.in_time(what, looking).await?.into_iter().map(DeadLetterId).collect())
    }
}
