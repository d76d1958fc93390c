//! The words of lines about sessions. Pure.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use super::SessionLine;
use crate::operator::Role;

/// A session has begun.
pub(super) const LOGIN: &str = "login";
/// Its user has ended it.
pub(super) const LOGOUT: &str = "logout";
/// An operator has ended sessions.
pub(super) const REVOKE: &str = "revoke";

const SESSION: &str = "session ";
const USER: &str = "user ";
const ALL: &str = "all sessions";
const ROLE: &str = " as ";

/// Length of an id in bytes: 128 random bits in base64url.
const ID_LEN: usize = 22;

/// The id of a session. It proves nothing: the signature of the cookie does.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct SessionId(String);

/// A text that is not the id of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no session has this id; `relay sessions list` shows the ids")]
pub struct InvalidSessionId;

impl SessionId {
    /// Returns it as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for SessionId {
    type Err = InvalidSessionId;

    fn from_str(text: &str) -> Result<Self, InvalidSessionId> {
        let is_id = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        if text.len() == ID_LEN && text.chars().all(is_id) {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidSessionId)
        }
    }
}

/// The sessions that end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    /// One session.
    Session(SessionId),
    /// All sessions of a user.
    User(String),
    /// All sessions.
    All,
}

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Session(id) => write!(f, "{SESSION}{id}"),
            Self::User(name) => write!(f, "{USER}{name}"),
            Self::All => f.write_str(ALL),
        }
    }
}

impl Which {
    /// Returns whether a session is one of these.
    pub(super) fn has(&self, line: &SessionLine) -> bool {
        match self {
            Self::Session(id) => line.session == *id,
            Self::User(name) => line.user == *name,
            Self::All => true,
        }
    }

    /// Reads what a line names; `None` for a text of another version.
    pub(super) fn read(text: &str) -> Option<Self> {
        if text == ALL {
            return Some(Self::All);
        }
        if let Some(name) = text.strip_prefix(USER) {
            return Some(Self::User(name.to_owned()));
        }
        text.strip_prefix(SESSION)?.parse().ok().map(Self::Session)
    }
}

/// Returns the selection of a session that begins.
pub(super) fn begun(session: &SessionId, role: Role) -> String {
    format!("{SESSION}{session}{ROLE}{}", role.as_str())
}

/// Reads the selection of a session that began: its id and the role.
pub(super) fn read_begun(text: &str) -> Option<(SessionId, &str)> {
    let (id, role) = text.strip_prefix(SESSION)?.split_once(ROLE)?;
    Some((id.parse().ok()?, role))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_they_are_written() {
        let id: SessionId = "AAAAAAAAAAAAAAAAAAAA-_".parse().unwrap();
        for which in [
            Which::All,
            Which::Session(id.clone()),
            Which::User(String::from("ann")),
            Which::User(String::from("all sessions")),
            Which::User(String::from("session x")),
        ] {
            assert_eq!(Which::read(&which.to_string()), Some(which));
        }
        assert_eq!(read_begun(&begun(&id, Role::Viewer)), Some((id, "viewer")));
        for text in ["", "session ", "session x", "everything", "session AAAAAAAAAAAAAAAAAAAA-_ as viewer"] {
            assert_eq!(Which::read(text), None, "{text}");
        }
        for text in ["", "x", "AAAAAAAAAAAAAAAAAAAAA", "AAAAAAAAAAAAAAAAAAAAA é", "AAAAAAAAAAAAAAAAAAAA.."] {
            assert_eq!(text.parse::<SessionId>(), Err(InvalidSessionId), "{text}");
        }
    }
}
