//! All sightings, on disk: a temporary SQLite file that orders them by message. Memory use does not
//! grow with the number of messages. The file takes about 100 bytes for each row that was read.

use std::collections::HashMap;
use std::fmt::Display;

use futures_util::TryStreamExt as _;
use futures_util::stream::BoxStream;
use inbox::reconcile::Unfinished;
use outbox_log::ExceptionState;
use outbox_log::reconcile::{Row, Stage};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteRow, SqliteSynchronous};
use sqlx::{ConnectOptions as _, Connection as _, Row as _, SqliteConnection};
use tempfile::TempDir;
use uuid::Uuid;

use super::reconcile::{Applied, Copies, Seen, Stored};
use crate::error::{OperateError, OperateErrorKind};

/// Numbers of the places in the file. Those of inboxes follow, two for each.
const OUTBOX: i64 = 0;
const BROKER: i64 = 1;
const INBOXES: i64 = 2;

const CREATE: [&str; 3] = [
    "CREATE TABLE sighting (id BLOB NOT NULL, place INTEGER NOT NULL, times INTEGER NOT NULL, fingerprint BLOB, \
     differ INTEGER NOT NULL, stage TEXT, topic INTEGER, edited INTEGER, part INTEGER, nth INTEGER, kind INTEGER, PRIMARY KEY (id, place)) WITHOUT ROWID",
    "CREATE TABLE unfinished (id BLOB NOT NULL, place INTEGER NOT NULL, how INTEGER NOT NULL, PRIMARY KEY (id, place)) WITHOUT ROWID",
    "CREATE TABLE suspect (id BLOB PRIMARY KEY) WITHOUT ROWID",
];
const ADD: &str = "INSERT INTO sighting (id, place, times, fingerprint, differ, stage, topic, edited, part, nth, kind) \
    VALUES (?1, ?2, 1, ?3, 0, ?4, ?5, ?6, ?7, ?8, ?9) ON CONFLICT (id, place) DO UPDATE SET times = times + 1, \
    differ = differ OR fingerprint IS NOT excluded.fingerprint";
const ALL: &str = "SELECT s.id, s.place, s.times, s.fingerprint, s.differ, s.stage, s.topic, s.edited, \
    s.part, s.nth, s.kind, (SELECT u.how FROM unfinished AS u WHERE u.id = s.id AND u.place = s.place) AS unfinished \
    FROM sighting AS s ORDER BY s.id, s.place";
/// A message that is only unfinished has no sighting in that inbox, so the query also reads its
/// mark.
const SUSPECTS: &str = "SELECT s.id, s.place, s.times, s.fingerprint, s.differ, s.stage, s.topic, s.edited, s.part, s.nth, s.kind, NULL AS unfinished \
    FROM suspect JOIN sighting AS s USING (id) \
    UNION ALL SELECT u.id, u.place, 0, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, u.how FROM unfinished AS u ORDER BY 1, 2";

/// The place of a sighting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum At {
    Outbox,
    Broker,
    Inbox(usize),
    Effects(usize),
}

impl At {
    fn number(self) -> i64 {
        match self {
            Self::Outbox => OUTBOX,
            Self::Broker => BROKER,
            Self::Inbox(inbox) => INBOXES + 2 * inbox as i64,
            Self::Effects(inbox) => INBOXES + 2 * inbox as i64 + 1,
        }
    }

    fn of_number(number: i64) -> Self {
        let of_inboxes = usize::try_from(number - INBOXES).unwrap_or_default();
        match number {
            OUTBOX => Self::Outbox,
            BROKER => Self::Broker,
            _ if of_inboxes.is_multiple_of(2) => Self::Inbox(of_inboxes / 2),
            _ => Self::Effects(of_inboxes / 2),
        }
    }
}

/// Names that are kept once; the file has their numbers.
#[derive(Default)]
struct Names {
    all: Vec<String>,
    numbers: HashMap<String, i64>,
}

impl Names {
    fn number(&mut self, name: &str) -> i64 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = self.all.len() as i64;
        self.all.push(name.to_owned());
        self.numbers.insert(name.to_owned(), number);
        number
    }

    fn name(&self, number: Option<i64>) -> String {
        number.and_then(|number| self.all.get(usize::try_from(number).ok()?)).cloned().unwrap_or_default()
    }
}

fn number_of(unfinished: Unfinished) -> i64 {
    match unfinished {
        Unfinished::Closed => 0,
        Unfinished::Retrying => 1,
        Unfinished::DeadLetter => 2,
    }
}

fn unfinished_of(number: i64) -> Unfinished {
    match number {
        0 => Unfinished::Closed,
        1 => Unfinished::Retrying,
        _ => Unfinished::DeadLetter,
    }
}

/// All sightings. The file is deleted when this is dropped.
pub(super) struct Spool {
    connection: SqliteConnection,
    topics: Names,
    kinds: Names,
    inboxes: usize,
    _directory: TempDir,
}

fn failed(error: impl Display) -> OperateError {
    let text = format_args!("the temporary file of the comparison failed: {error}");
    let help = "it is in the directory for temporary files (TMPDIR) and takes about 100 bytes per row";
    OperateError::new(OperateErrorKind::Unavailable, text).with_help(help)
}

impl Spool {
    pub(super) async fn create(inboxes: usize) -> Result<Self, OperateError> {
        let directory = tempfile::Builder::new().prefix("relay-verify-").tempdir().map_err(failed)?;
        let options = SqliteConnectOptions::new()
            .filename(directory.path().join("seen.db"))
            .create_if_missing(true)
            // The file does not outlive the process, so it does not have to survive a crash.
            .journal_mode(SqliteJournalMode::Off)
            .synchronous(SqliteSynchronous::Off);
        let mut connection = options.connect().await.map_err(failed)?;
        for statement in CREATE {
            sqlx::query(statement).execute(&mut connection).await.map_err(failed)?;
        }
        Ok(Self {
            connection,
            topics: Names::default(),
            kinds: Names::default(),
            inboxes,
            _directory: directory,
        })
    }

    /// Returns every topic of the rows so far.
    pub(super) fn topics(&self) -> &[String] {
        &self.topics.all
    }

    /// Adds rows of the outbox.
    pub(super) async fn add_rows(&mut self, rows: &[Row]) -> Result<(), OperateError> {
        // Topics that are left to others are not read at this broker.
        let is_own = |row: &&Row| row.stage != Stage::LeftOut;
        let numbers: Vec<Option<(i64, i64)>> = rows
            .iter()
            .map(|row| {
                let row = Some(row).filter(is_own)?;
                Some((self.topics.number(&row.topic), self.kinds.number(&row.labels.kind)))
            })
            .collect();
        let mut tx = self.connection.begin().await.map_err(failed)?;
        for (row, numbers) in rows.iter().zip(numbers) {
            let add = sqlx::query(ADD).bind(row.id.as_bytes().as_slice()).bind(OUTBOX);
            let add = add.bind(row.fingerprint.as_bytes().as_slice()).bind(word(row.stage));
            let add = add.bind(numbers.map(|(topic, _)| topic)).bind(row.edited);
            let add = add.bind(None::<i32>).bind(None::<i64>).bind(numbers.map(|(_, kind)| kind));
            add.execute(&mut *tx).await.map_err(failed)?;
        }
        tx.commit().await.map_err(failed)
    }

    /// Adds messages seen in another place, with their fingerprints if they have one.
    pub(super) async fn add(&mut self, at: At, seen: &[(Uuid, Vec<u8>)]) -> Result<(), OperateError> {
        self.add_at(at, seen.iter().map(|(id, fingerprint)| (*id, fingerprint.as_slice(), None))).await
    }

    /// Adds messages with their fingerprints, partitions and offsets.
    pub(super) async fn add_at(
        &mut self,
        at: At,
        seen: impl Iterator<Item = (Uuid, &[u8], Option<(i32, i64)>)>,
    ) -> Result<(), OperateError> {
        let mut tx = self.connection.begin().await.map_err(failed)?;
        for (id, fingerprint, position) in seen {
            let add = sqlx::query(ADD).bind(id.as_bytes().as_slice()).bind(at.number()).bind(fingerprint);
            let add = add.bind(None::<&str>).bind(None::<i64>).bind(None::<bool>);
            let add =
                add.bind(position.map(|(part, _)| part)).bind(position.map(|(_, nth)| nth)).bind(None::<i64>);
            add.execute(&mut *tx).await.map_err(failed)?;
        }
        tx.commit().await.map_err(failed)
    }

    /// Adds messages that an inbox knows and that took no effect so far.
    pub(super) async fn add_unfinished(
        &mut self,
        inbox: usize,
        found: &[(Uuid, Unfinished)],
    ) -> Result<(), OperateError> {
        let add = "INSERT INTO unfinished VALUES (?1, ?2, ?3) \
                   ON CONFLICT (id, place) DO UPDATE SET how = max(how, excluded.how)";
        for (id, how) in found {
            sqlx::query(add)
                .bind(id.as_bytes().as_slice())
                .bind(At::Inbox(inbox).number())
                .bind(number_of(*how))
                .execute(&mut self.connection)
                .await
                .map_err(failed)?;
        }
        Ok(())
    }

    /// Deletes all sightings in a place.
    pub(super) async fn clear(&mut self, at: At) -> Result<(), OperateError> {
        let clear = sqlx::query("DELETE FROM sighting WHERE place = ?1").bind(at.number());
        clear.execute(&mut self.connection).await.map(drop).map_err(failed)
    }

    /// Deletes the sightings of some messages in a place, because they are read again.
    pub(super) async fn forget(&mut self, at: At, ids: &[Uuid]) -> Result<(), OperateError> {
        for id in ids {
            let forget = sqlx::query("DELETE FROM sighting WHERE id = ?1 AND place = ?2");
            let forget = forget.bind(id.as_bytes().as_slice()).bind(at.number());
            forget.execute(&mut self.connection).await.map_err(failed)?;
        }
        Ok(())
    }

    /// Replaces the suspects.
    pub(super) async fn suspect(&mut self, ids: &[Uuid]) -> Result<(), OperateError> {
        for clear in ["DELETE FROM suspect", "DELETE FROM unfinished"] {
            sqlx::query(clear).execute(&mut self.connection).await.map_err(failed)?;
        }
        for id in ids {
            let add = sqlx::query("INSERT OR IGNORE INTO suspect VALUES (?1)").bind(id.as_bytes().as_slice());
            add.execute(&mut self.connection).await.map_err(failed)?;
        }
        Ok(())
    }

    /// Calls `show` with every message and all its sightings, in the order of ids; or only with
    /// suspects.
    pub(super) async fn each(
        &mut self,
        suspects: bool,
        mut show: impl FnMut(Seen),
    ) -> Result<(), OperateError> {
        let words = Words { topics: &self.topics, kinds: &self.kinds };
        let sql = if suspects { SUSPECTS } else { ALL };
        let mut rows: BoxStream<'_, _> = sqlx::query(sql).fetch(&mut self.connection);
        let mut current: Option<Seen> = None;
        while let Some(row) = rows.try_next().await.map_err(failed)? {
            let id: &[u8] = row.try_get(0).map_err(failed)?;
            let id = Uuid::from_slice(id).unwrap_or_default();
            if current.as_ref().is_none_or(|seen| seen.id != id) {
                current.take().into_iter().for_each(&mut show);
                let inboxes = vec![Applied::default(); self.inboxes];
                current = Some(Seen { id, inboxes, ..Seen::default() });
            }
            if let Some(seen) = &mut current {
                words.put(seen, &row).map_err(failed)?;
            }
        }
        current.into_iter().for_each(show);
        Ok(())
    }
}

/// The names that the file has numbers for.
struct Words<'a> {
    topics: &'a Names,
    kinds: &'a Names,
}

impl Words<'_> {
    /// Adds one sighting to a message.
    fn put(&self, seen: &mut Seen, row: &SqliteRow) -> sqlx::Result<()> {
        let copies = copies(row)?;
        match At::of_number(row.try_get("place")?) {
            At::Outbox => seen.outbox = Some(self.stored(row, copies.fingerprint)?),
            At::Broker => {
                let (part, nth): (Option<i32>, Option<i64>) = (row.try_get("part")?, row.try_get("nth")?);
                seen.position = part.zip(nth);
                seen.broker = Some(copies);
            }
            At::Inbox(inbox) => {
                let Some(applied) = seen.inboxes.get_mut(inbox) else { return Ok(()) };
                let unfinished: Option<i64> = row.try_get("unfinished")?;
                applied.unfinished = applied.unfinished.max(unfinished.map(unfinished_of));
                // A message that is only unfinished was not seen here.
                if copies.times > 0 {
                    applied.remembered = Some(copies);
                }
            }
            At::Effects(inbox) => {
                if let Some(applied) = seen.inboxes.get_mut(inbox) {
                    applied.effects = copies.times;
                }
            }
        }
        Ok(())
    }

    fn stored(&self, row: &SqliteRow, fingerprint: Vec<u8>) -> sqlx::Result<Stored> {
        let stage: Option<String> = row.try_get("stage")?;
        Ok(Stored {
            stage: stage_of(stage.as_deref()),
            topic: self.topics.name(row.try_get("topic")?),
            kind: self.kinds.name(row.try_get("kind")?),
            fingerprint,
            edited: row.try_get("edited")?,
        })
    }
}

fn copies(row: &SqliteRow) -> sqlx::Result<Copies> {
    let fingerprint: Option<Vec<u8>> = row.try_get("fingerprint")?;
    Ok(Copies {
        times: row.try_get::<i64, _>("times")?.unsigned_abs(),
        fingerprint: fingerprint.unwrap_or_default(),
        differ: row.try_get("differ")?,
    })
}

const PASSED: &str = "passed";
const LEFT_OUT: &str = "left out";
/// Differs from the word of a parked entry, which the relay has not read yet.
const GIVEN_UP: &str = "given up";

fn word(stage: Stage) -> Option<&'static str> {
    match stage {
        Stage::Ahead => None,
        Stage::Passed => Some(PASSED),
        Stage::LeftOut => Some(LEFT_OUT),
        Stage::Discarded => Some(GIVEN_UP),
        Stage::Beside(state) => Some(state.as_str()),
    }
}

fn stage_of(word: Option<&str>) -> Stage {
    match word {
        None => Stage::Ahead,
        Some(PASSED) => Stage::Passed,
        Some(LEFT_OUT) => Stage::LeftOut,
        Some(GIVEN_UP) => Stage::Discarded,
        // Only `word` writes it.
        Some(state) => Stage::Beside(state.parse().unwrap_or(ExceptionState::Dead)),
    }
}

#[cfg(test)]
mod tests {
    use message::Fingerprint;

    use super::*;

    fn row(number: u128, stage: Stage) -> Row {
        let fingerprint = Fingerprint::of_parts("kind", "text/plain", b"payload");
        Row {
            id: Uuid::from_u128(number),
            topic: "orders".into(),
            labels: outbox_log::entries::Labels::default(),
            fingerprint,
            stage,
            edited: false,
        }
    }

    #[tokio::test]
    async fn the_sightings_of_a_message_come_together_in_the_order_of_ids() {
        let mut spool = Spool::create(2).await.unwrap();
        let stage = Stage::Beside(ExceptionState::Held);
        let rows = [row(2, Stage::Passed), row(1, stage), row(3, Stage::Ahead), row(5, Stage::Discarded)];
        spool.add_rows(&rows).await.unwrap();
        let id = Uuid::from_u128;
        let first = [1_u8];
        let records =
            [(id(2), &first[..], Some((0, 5))), (id(2), &first, Some((0, 6))), (id(4), &first, None)];
        spool.add_at(At::Broker, records.into_iter()).await.unwrap();
        spool.add(At::Broker, &[(id(4), vec![2])]).await.unwrap();
        spool.add(At::Inbox(1), &[(id(2), vec![7])]).await.unwrap();
        spool.add(At::Effects(1), &[(id(2), vec![]), (id(2), vec![])]).await.unwrap();
        let mut seen = Vec::new();
        spool.each(false, |next| seen.push(next)).await.unwrap();
        assert_eq!(seen.iter().map(|seen| seen.id).collect::<Vec<_>>(), [1, 2, 3, 4, 5].map(id));
        let stages: Vec<_> = seen.iter().filter_map(|seen| Some(seen.outbox.as_ref()?.stage)).collect();
        assert_eq!(stages, [stage, Stage::Passed, Stage::Ahead, Stage::Discarded]);
        assert_eq!(seen[1].broker, Some(Copies { times: 2, fingerprint: vec![1], differ: false }));
        assert_eq!((seen[1].position, seen[3].position), (Some((0, 5)), None));
        assert_eq!((seen[1].inboxes[0].clone(), seen[1].inboxes[1].effects), (Applied::default(), 2));
        assert!(seen[1].inboxes[1].remembered.is_some() && seen[3].broker.as_ref().unwrap().differ);
    }

    #[tokio::test]
    async fn suspects_are_looked_at_alone_and_with_what_is_unfinished() {
        let mut spool = Spool::create(1).await.unwrap();
        spool.add_rows(&[row(1, Stage::Passed), row(2, Stage::Passed)]).await.unwrap();
        let id = Uuid::from_u128(2);
        spool.suspect(&[id]).await.unwrap();
        spool.forget(At::Outbox, &[id]).await.unwrap();
        spool.add_rows(&[row(2, Stage::Ahead)]).await.unwrap();
        let found = [(id, Unfinished::DeadLetter), (id, Unfinished::Closed)];
        spool.add_unfinished(0, &found).await.unwrap();
        let mut seen = Vec::new();
        spool.each(true, |next| seen.push(next)).await.unwrap();
        assert_eq!(seen.len(), 1, "{seen:?}");
        assert_eq!(seen[0].outbox.as_ref().unwrap().stage, Stage::Ahead);
        assert_eq!(seen[0].inboxes[0].unfinished, Some(Unfinished::DeadLetter));
    }
}
