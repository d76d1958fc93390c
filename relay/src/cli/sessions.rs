//! `relay sessions`: who is logged in to the page, and the end of sessions before their time.

use clap::{ArgGroup, Args, Subcommand};
use operate::sessions::{self, Revoked, SessionId, SessionLine, Which};
use operate::{PipelineConfig, Places};
use serde::Serialize;
use time::format_description::well_known::Rfc3339;

use super::config::{ConfigFile, find};
use super::exit::Exit;
use super::failure::Failure;
use super::operator::viewer;
use super::output::{Format, Table, counted, one_line};
use super::progress::during;
use super::signature::Signature;
use crate::config::Config;

/// Actions on the sessions of the page.
#[derive(Debug, Subcommand)]
pub enum Sessions {
    /// List the sessions of the last 12 hours, the latest first. Changes nothing.
    ///
    /// Sessions are logins through the form; programs that send a token or a password with each
    /// request have none, and neither have people whom a proxy logs in. Exits with 3 if a database
    /// is unreachable.
    List(List),
    /// End a session, the sessions of a user, or all sessions, in every process that reads one of
    /// these databases.
    ///
    /// Takes effect within a few seconds. The user can log in again with the same password or
    /// token: replace that as well if others know it. With --user or --all, a new login is possible
    /// after a minute. Exits with 3 if no session of the last 12 hours has this id or user: ids and
    /// names are compared exactly.
    Revoke(Revoke),
}

/// The arguments of `relay sessions list`.
#[derive(Debug, Args)]
pub struct List {
    #[command(flatten)]
    place: Place,

    /// Only sessions of this user.
    #[arg(long, value_name = "NAME")]
    user: Option<String>,

    /// Also sessions that have ended before their time, with the reason.
    #[arg(long)]
    ended: bool,
}

/// The sessions that end, the actor and the reason.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("which").required(true).args(["session", "user", "all"]))]
pub struct Revoke {
    #[command(flatten)]
    place: Place,

    /// The session with this id, as the list shows it.
    #[arg(long, value_name = "ID")]
    session: Option<SessionId>,

    /// All sessions of this user.
    #[arg(long, value_name = "NAME")]
    user: Option<String>,

    /// All sessions.
    #[arg(long)]
    all: bool,

    #[command(flatten)]
    signature: Signature,
}

/// The outboxes that record sessions.
#[derive(Debug, Args)]
struct Place {
    #[command(flatten)]
    config: ConfigFile,

    /// Only the database of this pipeline.
    #[arg(long, value_name = "NAME")]
    pipeline: Option<String>,
}

/// The result of a revocation.
#[derive(Debug, Serialize)]
struct Ended {
    ended: String,
    reason: String,
    #[serde(flatten)]
    revoked: Revoked,
}

impl Sessions {
    pub(crate) async fn execute(self, format: Format) -> Result<Exit, Failure> {
        match self {
            Self::List(list) => list.execute(format).await,
            Self::Revoke(revoke) => revoke.execute(format).await,
        }
    }
}

impl Place {
    fn open(&self) -> Result<Places, Failure> {
        let config: Config = self.config.read()?;
        let pipelines: Vec<&PipelineConfig> = match &self.pipeline {
            Some(name) => vec![find(&config, name)?],
            None => config.pipelines.iter().collect(),
        };
        Ok(pipelines.into_iter().fold(Places::new(), Places::outbox))
    }
}

impl List {
    async fn execute(self, format: Format) -> Result<Exit, Failure> {
        let places = self.place.open()?;
        let (mut lines, away) = during("reading", sessions::sessions(&places, &viewer())).await?;
        lines.retain(|line| self.user.as_ref().is_none_or(|user| line.user == *user));
        lines.retain(|line| self.ended || line.ended.is_none());
        format.print(&lines, |lines| shown(lines))?;
        for error in &away {
            note!("{error}");
        }
        Ok(if away.is_empty() { Exit::Success } else { Exit::Unavailable })
    }
}

impl Revoke {
    async fn execute(self, format: Format) -> Result<Exit, Failure> {
        let signed = self.signature.signed()?;
        let which = match (self.session, self.user) {
            (Some(session), _) => Which::Session(session),
            (_, Some(user)) => Which::User(user),
            _ => Which::All,
        };
        let places = self.place.open()?;
        let revoked = during("ending sessions", sessions::revoke(&places, &signed, &which)).await?;
        let ended = Ended { ended: which.to_string(), reason: signed.note, revoked };
        format.print(&ended, text)?;
        for error in &ended.revoked.unread {
            note!("{error}");
        }
        note!("takes effect within a few seconds in every process that reads these databases");
        let Some(nobody) = nobody(&which, &ended.revoked) else { return Ok(Exit::Success) };
        note!("{nobody}");
        Ok(Exit::Unavailable)
    }
}

fn text(ended: &Ended) -> String {
    let Ended { ended, revoked: Revoked { sessions, ended_before, unread }, .. } = ended;
    let least = if unread.is_empty() { "" } else { "at least " };
    let before = match ended_before {
        0 => String::new(),
        count => format!("; {count} had ended before"),
    };
    format!("ended: {} ({least}{}{before})", one_line(ended), counted(*sessions as u64, "session"))
}

/// Returns the note for a user or an id of which no database has a session: it may be misspelled.
fn nobody(which: &Which, revoked: &Revoked) -> Option<String> {
    let is_known = revoked.sessions + revoked.ended_before > 0;
    let whom = match which {
        Which::All => return None,
        Which::Session(_) => "this id",
        Which::User(_) => "this user",
    };
    (!is_known).then(|| {
        format!(
            "no session of the last 12 hours is known of {whom}: names and ids are compared exactly, and `relay \
             sessions list` shows them. The end is recorded nevertheless: a database may have missed a login"
        )
    })
}

fn shown(lines: &[SessionLine]) -> String {
    if lines.is_empty() {
        return String::from("no users are logged in to the page");
    }
    let rows = lines.iter().map(|line| {
        let SessionLine { session, user, role, since, ended } = line;
        let since = since.format(&Rfc3339).unwrap_or_else(|_| since.to_string());
        let ended = match ended {
            Some(ended) => format!("by {}: {}", ended.actor, ended.reason),
            None => String::from("-"),
        };
        [session.as_str(), user, role, &since, &ended].map(ToOwned::to_owned)
    });
    Table::new(["session", "user", "role", "since", "ended"], rows).cut("ended").shown()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn revoked(sessions: usize, ended_before: usize) -> Revoked {
        Revoked { sessions, ended_before, unread: Vec::new() }
    }

    /// Goal: an operator who mistypes a name does not believe that sessions have ended. Oracle: the
    /// text, and the note that comes with an exit code of 3.
    #[test]
    fn the_end_of_no_session_is_named() {
        let eve = Which::User(String::from("Eve"));
        let shown =
            |revoked| text(&Ended { ended: eve.to_string(), reason: String::from("stolen"), revoked });
        assert_eq!(shown(revoked(0, 0)), "ended: user Eve (0 sessions)");
        assert_eq!(shown(revoked(1, 2)), "ended: user Eve (1 session; 2 had ended before)");
        let note = nobody(&eve, &revoked(0, 0)).unwrap();
        assert!(note.contains("known of this user") && note.contains("relay sessions list"), "{note}");
        assert_eq!(nobody(&eve, &revoked(0, 1)), None);
        assert_eq!(nobody(&eve, &revoked(1, 0)), None);
        assert_eq!(nobody(&Which::All, &revoked(0, 0)), None);
    }
}
