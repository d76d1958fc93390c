//! Decides whether a cursor belongs to this history, and can be trusted. Pure: `facts`
//! reads the facts.
//!
//! A cursor compares transaction ids and ids of the sequence with those of rows. Both always ascend
//! within one history of one server; a restore, a reset or a promotion can make them start again.
//! So at every grant of a lease the cursor is compared with the server. Either it is sound, or it
//! is rebased and the messages that leave again are reported.

use crate::postgres::mark::{History, PgMark};

/// The server's answers about itself and the log, from one snapshot.
#[derive(Debug, Clone)]
pub(super) struct ServerFacts {
    /// The current history.
    pub(super) history: History,
    /// The server whose transaction ids the rows carry, if it is recorded.
    pub(super) recorded_system: Option<String>,
    /// Every transaction id below this one has been given out.
    pub(super) next_xid: u64,
    /// The largest transaction id of a row.
    pub(super) newest_xid: Option<u64>,
    /// The id that the sequence gave out last.
    pub(super) position: i64,
    /// The largest id of a row.
    pub(super) newest_id: Option<i64>,
}

/// A stored cursor, and the log's facts about it.
#[derive(Debug, Clone)]
pub(super) struct CursorFacts {
    pub(super) base: PgMark,
    /// The head of the difference in progress.
    pub(super) head: Option<PgMark>,
    /// Rows of that difference up to this id are settled.
    pub(super) after: i64,
    /// A row up to the floor of the base or the head whose transaction began after that mark was
    /// taken. Exists only if the sequence gave out an id twice.
    pub(super) given_out_again: Option<i64>,
}

/// Whether a cursor can be trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Decision {
    /// It belongs to this history.
    Sound,
    /// It does not belong to this history, and can be repaired.
    Rebase(Cause),
}

/// Why a cursor does not belong to this history.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Cause {
    #[error("the log was written by the server {recorded}, but is now on {found}")]
    OtherServer { recorded: String, found: String },
    #[error("a row has the transaction id {newest}, but this server has assigned only ids below {next}")]
    RowAhead { newest: u64, next: u64 },
    #[error("the cursor was stored on the server {recorded}, but this is {found}")]
    CursorOfOtherServer { recorded: String, found: String },
    #[error(
        "the cursor knows transaction ids up to {xmax}, but this server has assigned only ids below {next}"
    )]
    CursorAhead { xmax: u64, next: u64 },
    #[error(
        "the sequence outbox_message_id_seq stands at {position}, behind the cursor at {reached}: the sequence was set back"
    )]
    SequenceBehindCursor { position: i64, reached: i64 },
    #[error(
        "the row {id} was written after the cursor had passed {floor}: outbox_message_id_seq was set back"
    )]
    IdGivenOutAgain { id: i64, floor: i64 },
    #[error("the sequence outbox_message_id_seq stands at {position}, but rows have ids up to {newest}")]
    SequenceBehindRows { position: i64, newest: i64 },
}

impl Cause {
    /// Returns whether the transaction ids in the cursor mean the same on this server.
    pub(super) fn keeps_transaction_ids(&self) -> bool {
        match self {
            Self::OtherServer { .. }
            | Self::RowAhead { .. }
            | Self::CursorOfOtherServer { .. }
            | Self::CursorAhead { .. } => false,
            Self::SequenceBehindCursor { .. }
            | Self::IdGivenOutAgain { .. }
            | Self::SequenceBehindRows { .. } => true,
        }
    }
}

impl ServerFacts {
    /// Decides whether the rows' transaction ids and the sequence come from this server.
    pub(super) fn decide(&self) -> Decision {
        let found = &self.history.system_identifier;
        if self.recorded_system.as_ref() != Some(found) {
            let recorded = self.recorded_system.clone().unwrap_or_else(|| String::from("(none recorded)"));
            return Decision::Rebase(Cause::OtherServer { recorded, found: found.clone() });
        }
        if let Some(newest) = self.newest_xid.filter(|newest| *newest >= self.next_xid) {
            return Decision::Rebase(Cause::RowAhead { newest, next: self.next_xid });
        }
        match self.newest_id.filter(|newest| *newest > self.position) {
            Some(newest) => Decision::Rebase(Cause::SequenceBehindRows { position: self.position, newest }),
            None => Decision::Sound,
        }
    }

    /// Decides whether a cursor belongs to this server's history. A cause that makes transaction
    /// ids meaningless comes first.
    pub(super) fn decide_about(&self, cursor: &CursorFacts) -> Decision {
        let server = self.decide();
        if matches!(&server, Decision::Rebase(cause) if !cause.keeps_transaction_ids()) {
            return server;
        }
        // Checked before its transaction ids, which this server may have reached since.
        if let Some(recorded) = cursor.other_server(&self.history) {
            let found = self.history.system_identifier.clone();
            return Decision::Rebase(Cause::CursorOfOtherServer { recorded: recorded.to_owned(), found });
        }
        let xmax = cursor.head.as_ref().map_or(cursor.base.xmax, |head| head.xmax.max(cursor.base.xmax));
        if xmax > self.next_xid {
            return Decision::Rebase(Cause::CursorAhead { xmax, next: self.next_xid });
        }
        let reached = cursor.reached();
        if self.position < reached {
            return Decision::Rebase(Cause::SequenceBehindCursor { position: self.position, reached });
        }
        match cursor.given_out_again {
            Some(id) => Decision::Rebase(Cause::IdGivenOutAgain { id, floor: reached }),
            None => server,
        }
    }
}

/// Returns why a mark that was stored outside the database cannot be trusted here. An abandoned
/// timeline may have given out transaction ids that this one gives out again. Another run is no
/// reason, as long as the mark's transaction ids were on disk before the mark was kept.
pub(super) fn doubt_about(marks: &[&PgMark], here: &History) -> Option<String> {
    let histories = marks.iter().filter_map(|mark| mark.history.as_ref());
    let other = |history: &&History| !history.is_of(&here.system_identifier, here.timeline);
    histories.into_iter().find(other).map(|history| {
        format!(
            "it was made on the server {} in timeline {}, but this is {} in timeline {}",
            history.system_identifier, history.timeline, here.system_identifier, here.timeline
        )
    })
}

impl CursorFacts {
    /// Returns the server whose transaction ids the cursor contains, if recorded and not this one.
    pub(super) fn other_server(&self, here: &History) -> Option<&str> {
        [Some(&self.base), self.head.as_ref()]
            .into_iter()
            .filter_map(|mark| Some(mark?.history.as_ref()?.system_identifier.as_str()))
            .find(|system| *system != here.system_identifier)
    }

    /// Returns whether a rebase abandons transactions that were in flight at the base and may still
    /// be open on this server.
    pub(super) fn gives_up_open_transactions(&self, cause: &Cause, here: &History) -> bool {
        !cause.keeps_transaction_ids() && !self.base.in_flight.is_empty() && self.other_server(here).is_none()
    }

    /// Returns the largest id that the cursor knows to be given out.
    pub(super) fn reached(&self) -> i64 {
        let head = self.head.as_ref().map_or(0, |head| head.floor);
        self.base.floor.max(head).max(self.after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = "0190b5a2-0000-4000-8000-000000000001";

    fn server() -> ServerFacts {
        ServerFacts {
            history: format!("77/1/{RUN}").parse().unwrap(),
            recorded_system: Some(String::from("77")),
            next_xid: 1_000,
            newest_xid: Some(990),
            position: 50,
            newest_id: Some(50),
        }
    }

    fn mark(floor: i64, snapshot: &str) -> PgMark {
        PgMark::new(floor, snapshot.to_owned()).unwrap()
    }

    fn cursor() -> CursorFacts {
        CursorFacts { base: mark(40, "900:910:900"), head: None, after: 0, given_out_again: None }
    }

    #[test]
    fn a_history_is_read_as_it_is_written() {
        let text = format!("7423998144812032000/12/{RUN}");
        assert_eq!(text.parse::<History>().unwrap().to_string(), text);
        for other in
            ["", "1/2", &format!("x/1/{RUN}"), &format!("1/-1/{RUN}"), "1/1/run", &format!("1/1/{RUN}/")]
        {
            assert!(other.parse::<History>().is_err(), "{other}");
        }
    }

    #[test]
    fn a_cursor_of_this_history_is_sound() {
        assert_eq!(server().decide_about(&cursor()), Decision::Sound);
        let inside = CursorFacts { head: Some(mark(50, "1000:1000:")), after: 45, ..cursor() };
        assert_eq!(server().decide_about(&inside), Decision::Sound);
        // A promotion or another run does not make another server.
        let promoted = format!("77/9/{}", RUN.replace('1', "2")).parse().unwrap();
        let before = CursorFacts { base: cursor().base.in_history(&promoted), ..cursor() };
        assert_eq!(server().decide_about(&before), Decision::Sound);
        let first = CursorFacts { base: PgMark::origin(), ..cursor() };
        let empty = ServerFacts { newest_xid: None, newest_id: None, position: 0, ..server() };
        assert_eq!(empty.decide_about(&first), Decision::Sound);
    }

    #[test]
    fn a_mark_that_was_kept_elsewhere_is_believed_in_its_timeline_only() {
        let here = server().history;
        let kept = |history: String| mark(40, "900:910:900").in_history(&history.parse().unwrap());
        let another_run = kept(format!("77/1/{}", RUN.replace('1', "2")));
        assert_eq!(doubt_about(&[&another_run, &mark(50, "1000:1000:")], &here), None);
        let untold: History = format!("77/0/{RUN}").parse().unwrap();
        assert_eq!(doubt_about(&[&kept(untold.to_string())], &here), None);
        assert_eq!(doubt_about(&[&another_run], &untold), None);
        assert!(doubt_about(&[&kept(format!("66/0/{RUN}"))], &here).is_some());
        for other in [format!("77/2/{RUN}"), format!("66/1/{RUN}")] {
            let doubt = doubt_about(&[&another_run, &kept(other)], &here).unwrap();
            assert!(doubt.contains("this is 77 in timeline 1"), "{doubt}");
        }
    }

    #[test]
    fn a_cursor_of_another_history_is_rebased_for_a_reason() {
        let (fine, at) = (server(), cursor());
        let (here, there) = (fine.history.clone(), format!("66/1/{RUN}").parse().unwrap());
        let elsewhere =
            Cause::CursorOfOtherServer { recorded: String::from("66"), found: String::from("77") };
        let table: [(ServerFacts, CursorFacts, Cause); 10] = [
            (
                ServerFacts { recorded_system: Some(String::from("66")), ..fine.clone() },
                at.clone(),
                Cause::OtherServer { recorded: String::from("66"), found: String::from("77") },
            ),
            (
                ServerFacts { newest_xid: Some(1_000), ..fine.clone() },
                at.clone(),
                Cause::RowAhead { newest: 1_000, next: 1_000 },
            ),
            // Since then, this server has given out as many transaction ids.
            (
                fine.clone(),
                CursorFacts { base: at.base.clone().in_history(&there), ..at.clone() },
                elsewhere.clone(),
            ),
            (
                fine.clone(),
                CursorFacts {
                    base: at.base.clone().in_history(&here),
                    head: Some(mark(50, "950:950:").in_history(&there)),
                    ..at.clone()
                },
                elsewhere,
            ),
            (
                fine.clone(),
                CursorFacts { base: mark(40, "900:1001:900"), ..at.clone() },
                Cause::CursorAhead { xmax: 1_001, next: 1_000 },
            ),
            (
                fine.clone(),
                CursorFacts { head: Some(mark(50, "1001:1001:")), ..at.clone() },
                Cause::CursorAhead { xmax: 1_001, next: 1_000 },
            ),
            (
                ServerFacts { position: 39, newest_id: None, ..fine.clone() },
                at.clone(),
                Cause::SequenceBehindCursor { position: 39, reached: 40 },
            ),
            (
                ServerFacts { position: 49, newest_id: None, ..fine.clone() },
                CursorFacts { head: Some(mark(41, "950:950:")), after: 50, ..at.clone() },
                Cause::SequenceBehindCursor { position: 49, reached: 50 },
            ),
            (
                fine.clone(),
                CursorFacts { given_out_again: Some(3), ..at.clone() },
                Cause::IdGivenOutAgain { id: 3, floor: 40 },
            ),
            (
                ServerFacts { newest_id: Some(51), ..fine },
                at,
                Cause::SequenceBehindRows { position: 50, newest: 51 },
            ),
        ];
        for (server, cursor, cause) in table {
            assert_eq!(server.decide_about(&cursor), Decision::Rebase(cause));
        }
    }

    #[test]
    fn only_a_cursor_of_this_server_has_transactions_that_may_be_open() {
        let (here, there) = (server().history, format!("66/1/{RUN}").parse().unwrap());
        let at = |mark: PgMark| CursorFacts { base: mark, ..cursor() };
        let in_flight = || mark(40, "900:910:900");
        let ahead = Cause::RowAhead { newest: 1_000, next: 1_000 };
        assert!(at(in_flight().in_history(&here)).gives_up_open_transactions(&ahead, &here));
        // Written by a release that stored no history.
        assert!(at(in_flight()).gives_up_open_transactions(&ahead, &here));
        assert!(!at(in_flight().in_history(&there)).gives_up_open_transactions(&ahead, &here));
        assert!(!at(mark(40, "910:910:")).gives_up_open_transactions(&ahead, &here));
        let behind = Cause::SequenceBehindRows { position: 1, newest: 2 };
        assert!(!at(in_flight()).gives_up_open_transactions(&behind, &here));
    }

    #[test]
    fn what_makes_transaction_ids_meaningless_goes_first() {
        let server = ServerFacts { recorded_system: None, position: 0, ..server() };
        let Decision::Rebase(cause) = server.decide_about(&cursor()) else { panic!("sound") };
        assert!(!cause.keeps_transaction_ids(), "{cause}");
        let behind = ServerFacts {
            position: 0,
            newest_id: Some(9),
            recorded_system: Some(String::from("77")),
            ..server
        };
        let Decision::Rebase(cause) = behind.decide_about(&cursor()) else { panic!("sound") };
        assert!(cause.keeps_transaction_ids(), "{cause}");
    }
}
