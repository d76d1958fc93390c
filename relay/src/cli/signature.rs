//! The author and the reason of a decision, for commands without `--dry-run`.

use clap::Args;
use operate::{Operator, Role, Signed};

/// The author of a decision, and the reason.
#[derive(Debug, Args)]
pub(crate) struct Signature {
    /// Your name, for the audit.
    #[arg(long, value_name = "NAME", env = "USER")]
    actor: String,

    /// The reason, for the audit.
    #[arg(long, value_name = "TEXT")]
    note: String,
}

impl Signature {
    /// Converts this for `operate`. A user who runs this program holds the database's credentials,
    /// and so may decide.
    pub(crate) fn signed(&self) -> Signed {
        Signed { operator: Operator::new(self.actor.clone(), Role::Operator), reason: self.note.clone() }
    }
}
