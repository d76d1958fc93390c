//! Open dead letters that match a filter.

use migrations::query::{Query, Row};
use uuid::Uuid;

use crate::dead_letters::{
    DeadLetter, FoundLetter, LETTER_ERRORS_LOOKED_AT, LETTERS_GROUPED_MAX, LETTERS_LOOKED_AT_MAX,
    LETTERS_SURVEYED_MAX, LetterFilter, LetterGroup, LetterSlice, LetterSurvey,
};
use crate::dialect::Dialect;
use crate::ids::{ConsumerName, DeadLetterId, Tenant};
use crate::rows;
use crate::tables::Tables;

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

    /// Groups the oldest and the newest open dead letters of a consumer.
    pub(crate) async fn letter_errors(
        &self,
        connection: &mut DB::Connection,
        consumer: &ConsumerName,
    ) -> Result<Vec<LetterGroup>> {
        let filter = LetterFilter { consumer: Some(consumer.clone()), ..LetterFilter::default() };
        let groups = Query::<DB>::new(&self.shared.letter_groups);
        let groups = asked(groups, &filter, None, LETTER_ERRORS_LOOKED_AT).rows(connection).await?;
        groups.iter().map(rows::letter_group).collect()
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
pub(in crate::tables) fn slice<DB: Dialect, T>(
    found: &[Row<DB>],
    read: impl Fn(&Row<DB>) -> Result<T>,
) -> Result<LetterSlice<T>> {
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
