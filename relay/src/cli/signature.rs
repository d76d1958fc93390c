//! The author and the reason of a decision.

use clap::Args;
use operate::{Operator, Role, Signed};

use super::exit::Exit;
use super::failure::Failure;

/// The author of a decision, and the reason.
#[derive(Debug, Args)]
pub(crate) struct Signature {
    /// Your name, for the audit. A decision needs it if USER is not set.
    #[arg(long, value_name = "NAME", env = USER)]
    actor: Option<String>,

    /// The reason, for the audit. Every decision needs one.
    #[arg(long, alias = "reason", value_name = "TEXT")]
    pub(crate) note: Option<String>,
}

/// The variable with the name of the user.
const USER: &str = "USER";

impl Signature {
    /// Converts this for `operate`. A user who runs this program holds the databases' credentials,
    /// and so may decide.
    ///
    /// # Errors
    /// [`Failure`] names everything that is missing.
    pub(crate) fn signed(&self) -> Result<Signed, Failure> {
        let user = std::env::var_os(USER);
        let missing = self.missing(user.as_ref().map(|user| user.is_empty()));
        if missing.is_empty() {
            return Ok(self.unsigned());
        }
        Err(Failure::new(Exit::Usage, missing.join("\n")))
    }

    /// Converts this for a dry run, which the audit does not record.
    pub(crate) fn unsigned(&self) -> Signed {
        let name = self.actor.clone().unwrap_or_default();
        let note = self.note.clone().unwrap_or_default();
        Signed { operator: Operator::new(name, Role::Operator), note }
    }

    /// Like [`signed`](Self::signed), but a dry run needs neither.
    pub(crate) fn signed_unless(&self, dry_run: bool) -> Result<Signed, Failure> {
        if dry_run { Ok(self.unsigned()) } else { self.signed() }
    }

    /// Returns a sentence for each missing value. `user_is_empty` is `None` if the variable is not
    /// set.
    fn missing(&self, user_is_empty: Option<bool>) -> Vec<String> {
        let is_missing = |value: &Option<String>| value.as_ref().is_none_or(String::is_empty);
        let mut missing = Vec::new();
        if is_missing(&self.actor) {
            let why = match user_is_empty {
                None => "$USER is not set",
                Some(true) => "$USER is empty",
                Some(false) => "it is empty",
            };
            missing.push(format!("--actor NAME, your name for the audit, is required: {why}"));
        }
        if is_missing(&self.note) {
            missing.push(String::from("--note TEXT, the reason for the audit, is required"));
        }
        missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signature(actor: Option<&str>, note: Option<&str>) -> Signature {
        Signature { actor: actor.map(str::to_owned), note: note.map(str::to_owned) }
    }

    #[test]
    fn everything_that_is_missing_is_named_at_once() {
        assert!(signature(Some("ann"), Some("a test")).missing(Some(false)).is_empty());
        let both = signature(None, None).missing(None);
        assert!(both[0].starts_with("--actor NAME") && both[0].ends_with("$USER is not set"), "{both:?}");
        assert!(both[1].starts_with("--note TEXT"), "{both:?}");
        // The shell of a container sets it to nothing.
        let empty = signature(Some(""), Some("a test")).missing(Some(true));
        assert_eq!(empty.len(), 1);
        assert!(empty[0].ends_with("$USER is empty"), "{empty:?}");
        let given = signature(Some(""), Some("a test")).missing(Some(false));
        assert!(given[0].ends_with("it is empty"), "{given:?}");
    }

    #[test]
    fn a_dry_run_needs_no_signature() {
        assert!(signature(None, None).signed_unless(true).is_ok());
        let refused = signature(Some("ann"), None).signed_unless(false).unwrap_err();
        assert_eq!(refused.exit(), Exit::Usage);
        assert!(refused.to_string().contains("--note TEXT"), "{refused}");
    }
}
