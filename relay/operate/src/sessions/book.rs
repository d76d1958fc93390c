//! Keeps which sessions have begun, and which have ended. Pure.

use std::collections::{BTreeMap, HashMap};

use outbox_log::admin::Operation;
use serde::Serialize;
use time::OffsetDateTime;

use super::line::{LOGIN, LOGOUT, REVOKE, SessionId, Which, read_begun};
use super::{LIFETIME, MARGIN, SessionLine};
use crate::seconds;

/// The end of a session before its time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ended {
    /// When, by the database's clock.
    #[serde(serialize_with = "seconds::serialize")]
    pub at: OffsetDateTime,
    /// By whom.
    pub actor: String,
    /// Why.
    pub reason: String,
}

/// The sessions that the lines name.
#[derive(Debug, Clone, Default)]
pub struct Book {
    begun: BTreeMap<SessionId, Begun>,
    sessions: HashMap<SessionId, Ended>,
    users: HashMap<String, Ended>,
    all: Option<Ended>,
}

#[derive(Debug, Clone)]
struct Begun {
    user: String,
    role: String,
    at: OffsetDateTime,
}

impl Book {
    /// Takes a line. The same line may come again, and lines in any order.
    pub(super) fn take(&mut self, line: &Operation) {
        let selection = line.signature.selection.as_deref().unwrap_or_default();
        if line.action == LOGIN {
            if let Some((id, role)) = read_begun(selection) {
                let user = line.signature.actor.clone();
                self.begun.entry(id).or_insert(Begun { user, role: role.to_owned(), at: line.at });
            }
            return;
        }
        let is_end = line.action == LOGOUT || line.action == REVOKE;
        let Some(which) = Which::read(selection).filter(|_| is_end) else { return };
        let (actor, reason) = (line.signature.actor.clone(), line.signature.note.clone());
        self.end(which, Ended { at: line.at, actor, reason });
    }

    /// Ends sessions. Of several ends of the same sessions, the latest counts.
    pub fn end(&mut self, which: Which, ended: Ended) {
        let place = match which {
            Which::All => {
                self.all = self.all.take().filter(|known| known.at >= ended.at).or(Some(ended));
                return;
            }
            Which::Session(id) => {
                // A session has one end: the first.
                let known = self.sessions.entry(id).or_insert_with(|| ended.clone());
                if ended.at < known.at {
                    *known = ended;
                }
                return;
            }
            Which::User(name) => self.users.entry(name).or_insert_with(|| ended.clone()),
        };
        if ended.at > place.at {
            *place = ended;
        }
    }

    /// Returns the end of a session that began at this time by the clock of the page; `None` for
    /// one that goes on.
    #[must_use]
    pub fn end_of(&self, session: &SessionId, user: &str, began_at: OffsetDateTime) -> Option<&Ended> {
        let of_many = |ended: &&Ended| began_at < ended.at + MARGIN;
        let of_user = || self.users.get(user).filter(of_many);
        let of_all = || self.all.as_ref().filter(of_many);
        self.sessions.get(session).or_else(of_user).or_else(of_all)
    }

    /// Forgets what began or ended before this time and no longer matters to any session.
    pub(super) fn forget(&mut self, before: OffsetDateTime) {
        self.begun.retain(|_, begun| begun.at >= before);
        self.sessions.retain(|_, ended| ended.at >= before);
        self.users.retain(|_, ended| ended.at >= before);
        self.all = self.all.take().filter(|ended| ended.at >= before);
    }

    /// Returns the sessions that have begun since, the latest first.
    pub(super) fn sessions(&self, since: OffsetDateTime) -> Vec<SessionLine> {
        let begun = self.begun.iter().filter(|(_, begun)| begun.at >= since);
        let line = |(id, begun): (&SessionId, &Begun)| SessionLine {
            session: id.clone(),
            user: begun.user.clone(),
            role: begun.role.clone(),
            since: begun.at,
            ended: self.end_of(id, &begun.user, begun.at).cloned(),
        };
        let mut lines: Vec<SessionLine> = begun.map(line).collect();
        lines.sort_by(|one, other| other.since.cmp(&one.since).then_with(|| one.session.cmp(&other.session)));
        lines
    }
}

/// The maximum age of lines that still matter: a session lives for [`LIFETIME`], and clocks differ.
pub(super) const MATTERS: std::time::Duration = std::time::Duration::from_secs(LIFETIME.as_secs() + 3_600);

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use outbox::Signature;

    use super::*;

    fn at(second: i64) -> OffsetDateTime {
        OffsetDateTime::from_unix_timestamp(1_700_000_000 + second).unwrap()
    }

    fn line(second: i64, action: &str, actor: &str, selection: &str) -> Operation {
        let selection = Some(selection.to_owned());
        let signature = Signature { actor: actor.to_owned(), note: String::from("why"), selection };
        Operation { number: second, at: at(second), signature, action: action.to_owned(), subject: () }
    }

    fn id(letter: char) -> SessionId {
        letter.to_string().repeat(22).parse().unwrap()
    }

    fn read(lines: &[Operation]) -> Book {
        let mut book = Book::default();
        lines.iter().for_each(|line| book.take(line));
        book
    }

    #[test]
    fn an_end_is_that_of_one_session_of_a_user_or_of_all() {
        let (a, b) = (id('a'), id('b'));
        let of_one = read(&[line(100, "revoke", "ann", &format!("session {a}"))]);
        assert_eq!(of_one.end_of(&a, "eve", at(500)).unwrap().actor, "ann", "its clock does not matter");
        assert_eq!(of_one.end_of(&b, "eve", at(0)), None);
        let left = read(&[line(100, "logout", "eve", &format!("session {a}"))]);
        assert!(left.end_of(&a, "eve", at(0)).is_some());
        let of_user = read(&[line(100, "revoke", "ann", "user eve")]);
        for (user, began, ends) in
            [("eve", 0, true), ("eve", 100, true), ("eve", 159, true), ("eve", 160, false), ("ann", 0, false)]
        {
            assert_eq!(of_user.end_of(&a, user, at(began)).is_some(), ends, "{user} {began}");
        }
        let of_all = read(&[line(100, "revoke", "ann", "all sessions")]);
        assert!(of_all.end_of(&b, "anybody", at(0)).is_some() && of_all.end_of(&b, "eve", at(200)).is_none());
    }

    #[test]
    fn lines_may_come_in_any_order_and_again() {
        let lines = [
            line(100, "revoke", "ann", "user eve"),
            line(300, "revoke", "bob", "user eve"),
            line(200, "pause", "ann", "user bob"),
            line(250, "revoke", "ann", "users of a later version"),
            line(50, "login", "eve", &format!("session {} as viewer", id('a'))),
        ];
        let mut backwards = lines.to_vec();
        backwards.reverse();
        backwards.extend(lines.to_vec());
        for book in [read(&lines), read(&backwards)] {
            assert_eq!(book.end_of(&id('x'), "eve", at(200)).unwrap().actor, "bob");
            assert_eq!(book.end_of(&id('x'), "bob", at(0)), None);
            let sessions = book.sessions(at(0));
            assert_eq!(sessions.len(), 1);
            assert_eq!((sessions[0].user.as_str(), sessions[0].role.as_str()), ("eve", "viewer"));
            assert!(sessions[0].ended.is_some());
        }
        let mut book = read(&lines);
        book.forget(at(301));
        assert_eq!(book.end_of(&id('x'), "eve", at(200)), None);
        assert!(book.sessions(at(0)).is_empty() && MATTERS > LIFETIME + Duration::from_secs(60));
    }
}
