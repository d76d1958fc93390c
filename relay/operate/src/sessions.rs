//! The sessions of the page: who is logged in, and the end of a session before its time.
//!
//! A login is a signed cookie, so every process with the same configuration accepts it without
//! asking a database. Lines of the audit of each outbox say which sessions have begun and ended:
//! `login`, `logout` and `revoke`. So a session ends in all processes that share a database
//! ([ADR 64](https://github.com/outbox-toolkit/outbox-toolkit/blob/main/docs/adr/0064-sessions-end-by-lines-of-the-audit.md)).
//!
//! | module | what it holds |
//! |---|---|
//! | `book` | what is known of sessions, and which of them have ended; pure |
//! | `follower` | reads new lines of the outboxes |
//! | `line` | the words of the lines; pure |

mod book;
mod follower;
mod line;

use std::time::Duration;

use serde::Serialize;
use time::OffsetDateTime;

use super::error::{OperateError, OperateErrorKind};
use super::operator::{Operator, Role, Signed};
use super::places::{OutboxPlace, Places};
use super::seconds;
use super::turns::in_turns;

pub use book::{Book, Ended};
pub use follower::{Follower, Unread};
pub use line::{InvalidSessionId, SessionId, Which};

/// Lifetime of a session.
pub const LIFETIME: Duration = Duration::from_secs(12 * 3_600);
/// The maximum difference between the clocks of the page's process and of the database. A session
/// begins by the first clock, and a revocation has the time of the second. So sessions that began
/// up to this long after a revocation of a user or of everybody end as well.
pub const MARGIN: Duration = Duration::from_secs(60);
/// Maximum time for the lines of one outbox.
const LOOK_MAX: Duration = Duration::from_secs(30);
/// The reason of lines that no person writes.
const NOTE: &str = "the page";

/// A session of the page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SessionLine {
    /// Its id.
    pub session: SessionId,
    /// The user.
    pub user: String,
    /// The user's role at the login.
    pub role: String,
    /// The time of the login, by the database's clock.
    #[serde(serialize_with = "seconds::serialize")]
    pub since: OffsetDateTime,
    /// Its end before its time, if there was one.
    pub ended: Option<Ended>,
}

/// Returns the sessions that have begun within [`LIFETIME`], the latest first, and the errors of
/// places that do not answer. A session whose login no database could store is missing.
/// Cancel-safe.
///
/// # Errors
/// [`OperateError`] when the operator may not view sessions, or no place answers.
pub async fn sessions(
    places: &Places,
    operator: &Operator,
) -> Result<(Vec<SessionLine>, Vec<OperateError>), OperateError> {
    operator.permit(Role::Viewer, "view sessions")?;
    let mut follower = Follower::new().logins(true);
    let unread = follower.look(places, LOOK_MAX).await;
    let silent = unread.iter().filter(|unread| !unread.is_cut).count();
    let is_none_read = places.outboxes.len() == silent;
    let away: Vec<OperateError> =
        unread.into_iter().map(|unread| unread.error).chain(places.away.iter().cloned()).collect();
    if is_none_read && let Some(error) = OperateError::all_of(away.clone()) {
        return Err(error);
    }
    Ok((follower.book().sessions(OffsetDateTime::now_utc() - LIFETIME), away))
}

/// Records that a session has begun. Not cancel-safe: places that were reached have the line.
///
/// # Errors
/// [`OperateError`] of the places that do not have it.
pub async fn note_login(places: &Places, session: &SessionId, user: &Operator) -> Result<(), OperateError> {
    let selection = line::begun(session, user.role());
    note(places, &Signed { operator: user.clone(), note: NOTE.to_owned() }, line::LOGIN, &selection).await
}

/// Records that a user has logged out. Not cancel-safe, as [`note_login`].
///
/// # Errors
/// [`OperateError`] of the places that do not have it.
pub async fn note_logout(places: &Places, session: &SessionId, user: &Operator) -> Result<(), OperateError> {
    let selection = Which::Session(session.clone()).to_string();
    note(places, &Signed { operator: user.clone(), note: NOTE.to_owned() }, line::LOGOUT, &selection).await
}

/// The sessions that a revocation concerns, as far as the databases know of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Revoked {
    /// The number of sessions of the last 12 hours that it ends.
    pub sessions: usize,
    /// The number of those that had ended before.
    pub ended_before: usize,
    /// The databases whose logins are not known, or not all of them.
    #[serde(skip)]
    pub unread: Vec<OperateError>,
}

/// Ends sessions in all processes that share one of these databases, within a few seconds, also
/// those that no database knows of: the line of a login can be missing. It writes the line before
/// it counts the sessions, which can take half a minute. Not cancel-safe: repeat it, which does no
/// harm.
///
/// # Errors
/// [`OperateError`] when the operator may not do that, or for places that do not have the line: the
/// processes that read only those go on accepting the sessions.
pub async fn revoke(places: &Places, signed: &Signed, which: &Which) -> Result<Revoked, OperateError> {
    signed.check("end sessions")?;
    if places.outboxes.is_empty() && places.away.is_empty() {
        let text = "there is no database to store the end of a session";
        return Err(OperateError::refused(text, "name a configuration with a pipeline"));
    }
    let selection = which.to_string();
    note(places, signed, line::REVOKE, &selection).await?;
    let mut follower = Follower::new().logins(true).without(signed.signature(Some(selection)));
    let unread = follower.look(places, LOOK_MAX).await.into_iter().map(|unread| unread.error).collect();
    let mut concerned = follower.book().sessions(OffsetDateTime::now_utc() - LIFETIME);
    concerned.retain(|line| which.has(line));
    let ended_before = concerned.iter().filter(|line| line.ended.is_some()).count();
    Ok(Revoked { sessions: concerned.len() - ended_before, ended_before, unread })
}

/// Writes a line to every outbox: a process may read only one of them.
async fn note(places: &Places, signed: &Signed, action: &str, selection: &str) -> Result<(), OperateError> {
    let write = |place: &OutboxPlace| {
        let (entries, pipeline) = (place.entries.clone(), place.pipeline.clone());
        let by = signed.signature(Some(selection.to_owned()));
        async move {
            let noted = entries.note_operation(&pipeline, action, &by).await;
            noted.map_err(|error| OperateError::from(error).about(&pipeline))
        }
    };
    let noted = in_turns(places.outboxes.iter().map(write).collect()).await;
    let failed = noted.into_iter().filter_map(Result::err).chain(places.away.iter().cloned()).collect();
    OperateError::all_of(failed).map_or(Ok(()), Err)
}

/// Refuses a session that would end at once: one that begins within [`MARGIN`] of a revocation.
///
/// # Errors
/// [`OperateErrorKind::Conflict`], with how long to wait.
pub fn check_begin(ended: Option<&Ended>, now: OffsetDateTime) -> Result<(), OperateError> {
    let Some(ended) = ended else { return Ok(()) };
    let wait = (ended.at + MARGIN - now).whole_seconds().max(0) + 1;
    let text = format!("the sessions of this user were ended by {} a moment ago", ended.actor);
    let help = format!("log in again in {wait} s");
    Err(OperateError::new(OperateErrorKind::Conflict, text).with_help(help))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Sample;
    use follower::LINES_MAX;

    const LIMIT: Duration = Duration::from_secs(60);

    fn session() -> SessionId {
        "AAAAAAAAAAAAAAAAAAAA-_".parse().unwrap()
    }

    /// Makes a session that an operator has ended, then this many operations of an action.
    async fn ended_before(action: &str, count: usize) -> Sample {
        let sample = Sample::open().await;
        let places = Places::new().outbox(&sample.pipeline);
        let eve = Operator::new("eve", Role::Viewer);
        note_login(&places, &session(), &eve).await.unwrap();
        let by = Signed { operator: Operator::new("ann", Role::Operator), note: String::from("stolen") };
        revoke(&places, &by, &Which::Session(session())).await.unwrap();
        let insert = format!(
            "INSERT INTO outbox_operation (actor, note, selection, action, relay) \
             WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count}) \
             SELECT 'monitor', 'a test', 'session ' || printf('%022d', i) || ' as viewer', '{action}', 'orders' FROM n"
        );
        sample.run(&insert).await;
        sample
    }

    /// Goal: a process that starts learns of the ends of sessions, however many other operations,
    /// logins included, there were since. Oracle: the end is known, and nothing is missing.
    #[tokio::test]
    async fn other_operations_hide_no_end() {
        for action in ["view", "login"] {
            let sample = ended_before(action, LINES_MAX + 1).await;
            let mut follower = Follower::new();
            let unread = follower.look(&Places::new().outbox(&sample.pipeline), LIMIT).await;
            assert!(unread.is_empty(), "{action}: {unread:?}");
            let ended = follower.book().end_of(&session(), "eve", OffsetDateTime::now_utc());
            assert_eq!(ended.map(|ended| ended.actor.as_str()), Some("ann"), "{action}");
        }
    }

    /// Goal: an operator learns whether the end of sessions concerns any, and the line is there
    /// nevertheless. Oracle: the counts, and the end of a session whose login has no line.
    #[tokio::test]
    async fn the_end_of_sessions_says_how_many_it_concerns() {
        let sample = Sample::open().await;
        let places = Places::new().outbox(&sample.pipeline);
        let by = Signed { operator: Operator::new("ann", Role::Operator), note: String::from("stolen") };
        for letter in ["A", "B"] {
            let session = letter.repeat(22).parse().unwrap();
            note_login(&places, &session, &Operator::new("eve", Role::Viewer)).await.unwrap();
        }
        let unknown = Which::Session("C".repeat(22).parse().unwrap());
        for (which, sessions, ended_before) in [
            (Which::User(String::from("Eve")), 0, 0),
            (unknown, 0, 0),
            (Which::Session("A".repeat(22).parse().unwrap()), 1, 0),
            (Which::User(String::from("eve")), 1, 1),
            (Which::All, 0, 2),
        ] {
            let revoked = revoke(&places, &by, &which).await.unwrap();
            assert_eq!(revoked, Revoked { sessions, ended_before, unread: Vec::new() }, "{which}");
        }
        let mut follower = Follower::new();
        follower.look(&places, LIMIT).await;
        let began_at = OffsetDateTime::now_utc();
        assert!(follower.book().end_of(&"C".repeat(22).parse().unwrap(), "bob", began_at).is_some());
    }

    /// Goal: a stolen session ends before the databases are searched for logins, which can take
    /// long. Oracle: a login that is stored together with the line of its end is counted.
    #[tokio::test]
    async fn the_end_of_sessions_is_written_before_they_are_counted() {
        let sample = Sample::open().await;
        let eve = format!("session {} as viewer", "A".repeat(22));
        let trigger = format!(
            "CREATE TRIGGER on_end AFTER INSERT ON outbox_operation WHEN NEW.action = 'revoke' BEGIN \
             INSERT INTO outbox_operation (actor, note, selection, action, relay) \
             VALUES ('eve', 'a test', '{eve}', 'login', 'orders'); END"
        );
        sample.run(&trigger).await;
        let places = Places::new().outbox(&sample.pipeline);
        let by = Signed { operator: Operator::new("ann", Role::Operator), note: String::from("stolen") };
        let revoked = revoke(&places, &by, &Which::User(String::from("eve"))).await.unwrap();
        assert_eq!(revoked, Revoked { sessions: 1, ended_before: 0, unread: Vec::new() });
        let again = revoke(&places, &by, &Which::User(String::from("eve"))).await.unwrap();
        assert_eq!((again.sessions, again.ended_before), (0, 1), "the earlier line is another one");
    }

    /// Goal: a line from a time at which the database's clock was far behind hides no earlier one,
    /// and the search for more ends. Oracle: the end is known.
    #[tokio::test]
    async fn an_old_line_hides_no_earlier_one() {
        let sample = ended_before("revoke", 1).await;
        sample
            .run(
                "UPDATE outbox_operation SET at = 0 WHERE selection LIKE '% as viewer' AND action = 'revoke'",
            )
            .await;
        let mut follower = Follower::new();
        let unread = follower.look(&Places::new().outbox(&sample.pipeline), LIMIT).await;
        assert!(unread.is_empty(), "{unread:?}");
        assert!(follower.book().end_of(&session(), "eve", OffsetDateTime::now_utc()).is_some());
    }

    /// Goal: the list of sessions has logins before many other operations, and says what it leaves
    /// out. Oracle: the session and its end; an error that names the action, beside the sessions.
    #[tokio::test]
    async fn the_list_is_cut_by_logins_alone() {
        let eve = Operator::new("eve", Role::Viewer);
        let others = ended_before("view", LINES_MAX + 1).await;
        let listed = sessions(&Places::new().outbox(&others.pipeline), &eve).await;
        let (list, away) = listed.unwrap();
        assert!(away.is_empty(), "{away:?}");
        assert!(list.len() == 1 && list[0].ended.is_some(), "{list:?}");
        let logins = ended_before("login", LINES_MAX + 1).await;
        let listed = sessions(&Places::new().outbox(&logins.pipeline), &eve).await;
        let (list, away) = listed.unwrap();
        assert_eq!(list.len(), LINES_MAX);
        assert!(away.len() == 1 && away[0].to_string().contains("operations \"login\""), "{away:?}");
    }
}
