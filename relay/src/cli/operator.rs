//! The operator of commands that only read.

use operate::{Operator, Role};

/// Returns the operator for reads, which are not recorded.
pub(crate) fn viewer() -> Operator {
    Operator::new("the command line", Role::Viewer)
}
