//! Operators and their rights.

use message::{NOTE_BYTES_MAX, TEXT_BYTES_MAX};
use outbox::Signature;
use outbox_log::admin::WITHDRAWN_BY;

use super::error::{OperateError, OperateErrorKind};

message::words! {
    /// The rights of an operator.
    #[derive(PartialOrd, Ord)]
    pub enum Role {
        /// May view everything except payloads.
        Viewer = "viewer",
        /// May also decide.
        Operator = "operator",
    }
}

/// The author of a request. The interface names it: the command line by the system user, who holds
/// the database's credentials and so may decide; the page by its login.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operator {
    name: String,
    role: Role,
}

impl Operator {
    /// Creates an operator with this name, which the audit records.
    #[must_use]
    pub fn new(name: impl Into<String>, role: Role) -> Self {
        Self { name: name.into(), role }
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the rights of this operator.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// Checks that this operator's role permits something.
    ///
    /// # Errors
    /// [`OperateErrorKind::Forbidden`] if it does not.
    pub fn permit(&self, needed: Role, what: &str) -> Result<(), OperateError> {
        if self.role >= needed {
            return Ok(());
        }
        let (name, role) = (&self.name, self.role.as_str());
        let text =
            format!("{name} has the role {role} and may not {what}: that needs the role {}", needed.as_str());
        Err(OperateError::new(OperateErrorKind::Forbidden, text))
    }
}

/// A decision's author and reason, for the audit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signed {
    /// The author.
    pub operator: Operator,
    /// The reason.
    pub note: String,
}

impl Signed {
    /// Converts this to the form that audits store, with the filter that chose several messages or
    /// the subject of another operation.
    pub(crate) fn signature(&self, selection: Option<String>) -> Signature {
        Signature { actor: self.operator.name.clone(), note: self.note.clone(), selection }
    }

    /// Checks that this operator may take a decision, and that it has an author and a reason that
    /// the audit can keep.
    ///
    /// # Errors
    /// [`OperateErrorKind::Forbidden`] or [`OperateErrorKind::Refused`].
    pub fn check(&self, what: &str) -> Result<(), OperateError> {
        self.operator.permit(Role::Operator, what)?;
        let parts = [
            ("name of the operator", &self.operator.name, TEXT_BYTES_MAX),
            ("reason", &self.note, NOTE_BYTES_MAX),
        ];
        for (what, text, bytes_max) in parts {
            let bytes = text.len();
            let problem = match () {
                () if text.trim().is_empty() => String::from("is empty: the audit keeps it"),
                () if bytes > bytes_max => format!("has {bytes} bytes; the maximum is {bytes_max}"),
                () if text.contains('\0') => String::from("contains a NUL character"),
                () if text == WITHDRAWN_BY => {
                    format!("is {text:?}, which is reserved for the decisions of forgotten relays")
                }
                () => continue,
            };
            let text = format!("the {what} {problem}");
            return Err(OperateError::new(OperateErrorKind::Refused, text));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signed(name: &str, role: Role, note: &str) -> Signed {
        Signed { operator: Operator::new(name, role), note: note.to_owned() }
    }

    #[test]
    fn a_viewer_may_look_and_not_decide() {
        let viewer = signed("eve", Role::Viewer, "I can");
        assert!(viewer.operator.permit(Role::Viewer, "look").is_ok());
        let refused = viewer.check("requeue").unwrap_err();
        assert_eq!(refused.kind(), OperateErrorKind::Forbidden);
        assert!(refused.to_string().contains("eve has the role viewer and may not requeue"), "{refused}");
    }

    #[test]
    fn a_decision_needs_a_name_and_a_reason() {
        assert!(signed("ann", Role::Operator, "prices are back").check("requeue").is_ok());
        let (longest, long) = ("n".repeat(NOTE_BYTES_MAX), "n".repeat(100 * NOTE_BYTES_MAX));
        assert!(signed("ann", Role::Operator, &longest).check("requeue").is_ok());
        for (name, reason, missing) in [
            (" ", "x", "the name of the operator is empty"),
            ("ann", " ", "the reason is empty"),
            ("ann", &long, "the reason has 200000 bytes; the maximum is 2000"),
            (&long[..256], "x", "the name of the operator has 256 bytes; the maximum is 255"),
            ("ann", "a\0b", "the reason contains a NUL character"),
            ("relay forget", "x", "is \"relay forget\", which is reserved"),
        ] {
            let refused = signed(name, Role::Operator, reason).check("requeue").unwrap_err();
            assert_eq!(refused.kind(), OperateErrorKind::Refused);
            assert!(refused.to_string().contains(missing), "{refused}");
        }
    }
}
