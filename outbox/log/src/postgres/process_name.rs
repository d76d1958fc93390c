//! Names of the relay's sessions, as the server shows them.

use crate::RelayName;

/// Returns the application name of a session of a relay, which shows operators what each process
/// does, and its version. The name of the relay comes last because the server truncates long names.
pub(super) fn process_name(role: &str, relay: &RelayName) -> String {
    format!("relay/{} {role} {relay}", env!("CARGO_PKG_VERSION"))
}
