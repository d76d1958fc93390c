//! Who decides, and why, where a decision has no `--dry-run`.

use clap::Args;

use crate::operate::{Operator, Role, Signed};

/// The author of a decision, and the reason.
#[derive(Debug, Args)]
pub(crate) struct Signature {
    /// Who decides, for the audit.
    #[arg(long, value_name = "NAME", env = "USER")]
    actor: String,

    /// Why, for the audit.
    #[arg(long, value_name = "TEXT")]
    note: String,
}

impl Signature {
    /// As the layer below takes it. Who runs this program holds the database's credentials, and so
    /// may decide.
    pub(crate) fn signed(&self) -> Signed {
        Signed { operator: Operator::new(self.actor.clone(), Role::Operator), reason: self.note.clone() }
    }
}
