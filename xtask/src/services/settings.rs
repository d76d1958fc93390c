//! What the environment decides: folders, ports, and services that somebody else runs.

use super::{Name, fault::Fault};
use std::path::PathBuf;

/// The variable that moves all data, logs, downloads and state files.
pub(crate) const DIR_VARIABLE: &str = "OUTBOX_SERVICES_DIR";

/// One TCP port of a service, always on 127.0.0.1.
pub(crate) struct Port {
    pub(crate) variable: &'static str,
    pub(crate) default: u16,
}

impl Port {
    /// The number from the variable, or the default.
    pub(crate) fn number(&self) -> Result<u16, Fault> {
        match std::env::var(self.variable) {
            Ok(text) => parse(self.variable, &text),
            Err(_) => Ok(self.default),
        }
    }
}

fn parse(variable: &str, text: &str) -> Result<u16, Fault> {
    text.parse::<u16>().ok().filter(|port| *port > 0).ok_or_else(|| {
        Fault::Failed(format!("{variable}={text} is not a port: use a number from 1 to 65535"))
    })
}

/// The folder that holds one folder per service, and what is shared between them.
pub(crate) fn services_dir() -> Result<PathBuf, Fault> {
    match std::env::var_os(DIR_VARIABLE).filter(|value| !value.is_empty()) {
        Some(dir) => std::path::absolute(dir)
            .map_err(|error| Fault::Failed(format!("{DIR_VARIABLE} is not a usable path: {error}"))),
        None => crate::workspace::root().map(|root| root.join("target/services")).map_err(Fault::Failed),
    }
}

/// The address in the service's variable, if a person set one.
pub(crate) fn given_address(name: Name) -> Option<String> {
    std::env::var(name.variable()).ok().filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn a_port_is_a_number_above_zero() {
        assert_eq!(parse("P", "15432").ok(), Some(15432));
        for bad in ["0", "65536", "-1", "", "http"] {
            let error = parse("P", bad).expect_err(bad).to_string();
            assert!(error.contains(&format!("P={bad} is not a port")), "{error}");
        }
    }
}
