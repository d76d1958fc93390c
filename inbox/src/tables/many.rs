//! Many dead letters at once.

use migrations::query::{Query, Row};
use uuid::Uuid;

use super::Tables;
use crate::dead_letter::{DeadLetter, DeadLetterId};
use crate::dialect::Dialect;
use crate::letters::{
    FoundLetter, LETTERS_GROUPED_MAX, LETTERS_LOOKED_AT_MAX, LETTERS_SURVEYED_MAX, LetterDecision,
    LetterFilter, LetterSlice, LetterSurvey,
};
use crate::many::ManyDecided;
use crate::name::{ConsumerName, Tenant};
use crate::rows;

type Result<T> = std::result::Result<T, sqlx::Error>;

impl<DB: Dialect> Tables<DB> {
    /// Reads the next open dead letters that match, without their payloads.
    pub(crate) async fn open_letters(
        &self,
        connection: &mut DB::Connection,
        filter: &LetterFilter,
        after: Option<DeadLetterId>,
        limit: u32,
    ) -> Result<LetterSlice<DeadLetter>> {
        let query = Query::<DB>::new(&self.shared.open_letters);
        let found = asked(query, filter, after, LETTERS_LOOKED_AT_MAX).bind(limit).rows(connection).await?;
        let mut slice = slice(&found, rows::letter)?;
        // The limit may have cut off dead letters that match.
        if slice.letters.len() >= limit as usize {
            slice.next = slice.letters.last().map(|letter| letter.id);
        }
        Ok(slice)
    }

    /// Reads the next open dead letters that match, with the columns that a decision needs.
    pub(crate) async fn choose_letters(
        &self,
        connection: &mut DB::Connection,
        filter: &LetterFilter,
        after: Option<DeadLetterId>,
    ) -> Result<LetterSlice<FoundLetter>> {
        let query = Query::<DB>::new(&self.shared.choose_letters);
        let found = asked(query, filter, after, LETTERS_LOOKED_AT_MAX).rows(connection).await?;
        slice(&found, rows::found_letter)
    }

    /// Counts the open dead letters that match, and groups those from both ends.
    pub(crate) async fn survey_letters(
        &self,
        connection: &mut DB::Connection,
        filter: &LetterFilter,
    ) -> Result<LetterSurvey> {
        let total = Query::<DB>::new(&self.shared.letter_total);
        let total = asked(total, filter, None, LETTERS_SURVEYED_MAX.saturating_add(1));
        let total = total.one(&mut *connection).await?;
        let groups = Query::<DB>::new(&self.shared.letter_groups);
        let groups = asked(groups, filter, None, LETTERS_GROUPED_MAX).rows(connection).await?;
        let looked_at: u64 = total.get("scanned")?;
        Ok(LetterSurvey {
            at: total.get("at")?,
            count: total.get("letters")?,
            is_at_least: looked_at > u64::from(LETTERS_SURVEYED_MAX),
            groups: groups.iter().map(rows::letter_group).collect::<Result<_>>()?,
            is_sample: looked_at > 2 * u64::from(LETTERS_GROUPED_MAX),
        })
    }

    /// Reads the changes of a decision.
    pub(crate) async fn letter_decision(
        &self,
        connection: &mut DB::Connection,
        id: Uuid,
        consumer: Option<&ConsumerName>,
    ) -> Result<Option<LetterDecision>> {
        let of_decision = |statement| {
            let consumer = consumer.map(ConsumerName::as_str);
            Query::<DB>::new(statement).bind(id).bind(consumer).bind(LETTERS_SURVEYED_MAX)
        };
        let head = of_decision(&self.shared.letter_decision).first(&mut *connection).await?;
        let Some(head) = head else { return Ok(None) };
        let now = of_decision(&self.shared.letter_outcomes).rows(connection).await?;
        rows::letter_decision(&head, &now).map(Some)
    }

    /// Locks dead letters, and reads them without their payloads.
    pub(crate) async fn lock_letters(
        &self,
        connection: &mut DB::Connection,
        ids: &[Uuid],
    ) -> Result<Vec<DeadLetter>> {
        let found = Query::<DB>::new(&self.shared.lock_letters).bind(ids).rows(connection).await?;
        found.iter().map(rows::letter).collect()
    }

    /// Stores requests to redrive. Returns the dead letters of the new ones: one that is already
    /// open, or was made by the same decision, is left unchanged.
    pub(crate) async fn note_requests(
        &self,
        connection: &mut DB::Connection,
        ids: &[Uuid],
        accept_late: bool,
        decided: &ManyDecided,
    ) -> Result<Vec<Uuid>> {
        let noted = Query::<DB>::new(&self.shared.note_requests)
            .bind(&decided.signature.actor)
            .bind(&decided.signature.note)
            .bind(accept_late)
            .bind(decided.signature.selection.as_deref())
            .bind(decided.id)
            .bind(ids)
            .rows(connection)
            .await?;
        noted.iter().map(|row| row.get("dead_letter")).collect()
    }
}

/// Adds the values of the walk and of the conditions.
fn asked<DB: Dialect>(
    query: Query<DB>,
    filter: &LetterFilter,
    after: Option<DeadLetterId>,
    looked_at_max: u32,
) -> Query<DB> {
    let [older_than, newer_than] = filter.ages();
    let pattern = filter.error_pattern();
    query
        .bind(filter.consumer.as_ref().map(ConsumerName::as_str))
        .bind(after.map(|id| id.0))
        .bind(looked_at_max)
        .bind(filter.tenant.as_ref().map(Tenant::as_str))
        .bind(filter.topic.as_deref())
        .bind(filter.key.as_deref())
        .bind(filter.reason.as_deref())
        .bind(pattern.as_deref())
        .bind(filter.kind.as_deref())
        .bind(older_than)
        .bind(newer_than)
        .bind(filter.as_of)
}

/// Reads a slice. Each row has the end of the walk, and one dead letter or none.
fn slice<DB: Dialect, T>(found: &[Row<DB>], read: impl Fn(&Row<DB>) -> Result<T>) -> Result<LetterSlice<T>> {
    let Some(first) = found.first() else { return Ok(LetterSlice { letters: Vec::new(), next: None }) };
    let scanned: u64 = first.get("scanned")?;
    let seen_to: Option<Uuid> = first.get("seen_to")?;
    let next = seen_to.map(DeadLetterId).filter(|_| scanned >= u64::from(LETTERS_LOOKED_AT_MAX));
    let mut letters = Vec::with_capacity(found.len());
    for row in found {
        if row.get::<Option<Uuid>>("id")?.is_some() {
            letters.push(read(row)?);
        }
    }
    Ok(LetterSlice { letters, next })
}
