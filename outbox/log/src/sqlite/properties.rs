//! The cursor on a real file format. Whatever is committed, rolled back and removed, with pages of
//! any size and restarts between them, every committed row is read once and in order.

use std::sync::Arc;

use message::Source;
use migrations::{Line, Migrator};
use proptest::prelude::*;
use sqlx::{Connection as _, Sqlite, SqliteConnection};

use super::mark::id_of;
use super::reader::SqliteReader;
use super::reconcile::passed;
use super::tables;
use crate::tables::Tables;
use crate::{Cursor, Difference, EntryId, LogReader, Mark, PageLimit, RelayName, RowLimit, stored};

#[derive(Debug, Clone)]
enum Step {
    /// A transaction with payloads of these lengths ends.
    Write { payloads: Vec<usize>, is_committed: bool },
    /// The relay reads a page.
    Read(PageLimit),
    /// The relay stores its cursor and starts again from the stored one.
    Restart,
    /// The rows that the cursor has passed are removed.
    Remove,
}

fn step() -> impl Strategy<Value = Step> {
    let payloads = prop::collection::vec(0_usize..300, 0..6);
    let limit = (1_usize..5, 1_usize..600).prop_map(|(entries_max, bytes_max)| PageLimit {
        entries_max,
        bytes_max,
        row: ROW,
    });
    prop_oneof![
        4 => (payloads, prop::bool::weighted(0.75))
            .prop_map(|(payloads, is_committed)| Step::Write { payloads, is_committed }),
        6 => limit.prop_map(Step::Read),
        1 => Just(Step::Restart),
        1 => Just(Step::Remove),
    ]
}

const ROW: RowLimit = RowLimit::of(message::SizeLimit::SQS);

/// A relay on a database, and the rows that it should have read.
struct Course {
    reader: SqliteReader,
    base: Mark,
    open: Option<(Difference, EntryId)>,
    committed: Vec<i64>,
    read: Vec<i64>,
}

impl Course {
    async fn begin() -> Self {
        let mut connection = SqliteConnection::connect("sqlite::memory:").await.unwrap();
        Migrator::<Sqlite>::new(Line::Outbox).up(&mut connection).await.unwrap();
        let reader = SqliteReader {
            connection,
            relay: RelayName::new("relay").unwrap(),
            source: Source::new("properties").unwrap(),
            tables: Arc::new(Tables::new(tables::texts(None))),
        };
        Self { reader, base: Mark::new("0"), open: None, committed: Vec::new(), read: Vec::new() }
    }

    fn cursor(&self) -> Cursor {
        match &self.open {
            Some((difference, after)) => Cursor::inside(difference, *after),
            None => Cursor::at(self.base.clone()),
        }
    }

    async fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Write { payloads, is_committed } => self.write(&payloads, is_committed).await,
            Step::Read(limit) => self.read(limit).await?,
            Step::Restart => {
                let cursor = stored::read(&stored::write(&self.cursor()).unwrap()).unwrap();
                prop_assert_eq!(&cursor, &self.cursor());
                self.open = cursor.open();
                self.base = cursor.base;
            }
            Step::Remove => {
                let until = passed(&stored::write(&self.cursor()).unwrap()).unwrap();
                let delete = sqlx::query("DELETE FROM outbox_message WHERE id <= ?1").bind(until);
                delete.execute(&mut self.reader.connection).await.unwrap();
            }
        }
        let until = passed(&stored::write(&self.cursor()).unwrap()).unwrap();
        prop_assert!(
            self.read.iter().all(|id| *id <= until),
            "the cursor has not reached everything that was read"
        );
        let missed = self.committed.iter().find(|id| **id <= until && !self.read.contains(id));
        prop_assert_eq!(missed, None, "the cursor at {} has passed what was never read", until);
        Ok(())
    }

    async fn write(&mut self, payloads: &[usize], is_committed: bool) {
        let mut tx = self.reader.connection.begin().await.unwrap();
        let mut ids = Vec::new();
        for length in payloads {
            let insert = sqlx::query_scalar(
                "INSERT INTO outbox_message (topic, payload) VALUES ('t', ?1) RETURNING id",
            );
            ids.push(insert.bind(vec![b'x'; *length]).fetch_one(&mut *tx).await.unwrap());
        }
        if is_committed {
            tx.commit().await.unwrap();
            self.committed.extend::<Vec<i64>>(ids);
        } else {
            tx.rollback().await.unwrap();
        }
    }

    async fn read(&mut self, limit: PageLimit) -> Result<(), TestCaseError> {
        if self.open.is_none() {
            let next = self.reader.next_difference(&self.base).await.unwrap();
            let Some(difference) = next else {
                prop_assert_eq!(&self.read, &self.committed, "nothing is said to be new");
                return Ok(());
            };
            self.open = Some((difference, EntryId(id_of(&self.base).unwrap())));
        }
        let Some((difference, after)) = self.open.take() else { return Ok(()) };
        let page = self.reader.read_page(&difference, after, limit).await.unwrap();
        prop_assert!(page.entries.len() <= limit.entries_max);
        prop_assert!(page.exhausted || !page.entries.is_empty(), "a page without progress");
        self.read.extend(page.entries.iter().map(|entry| entry.id.0));
        if page.exhausted {
            self.base = difference.head;
        } else {
            let after = page.entries.last().map_or(after, |entry| entry.id);
            self.open = Some((difference, after));
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_committed_row_is_read_once_and_in_order(steps in prop::collection::vec(step(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut course = Course::begin().await;
            for step in steps {
                course.step(step).await?;
            }
            while course.read.len() < course.committed.len() {
                let before = course.read.len();
                course.step(Step::Read(PageLimit { entries_max: 3, bytes_max: 400, row: ROW })).await?;
                let is_going_on = course.read.len() > before || course.open.is_none();
                prop_assert!(is_going_on, "read {:?} of {:?}", course.read, course.committed);
            }
            prop_assert_eq!(course.read, course.committed);
            Ok(())
        })?;
    }
}
