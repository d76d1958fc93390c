//! The record of a started service, as JSON in its folder.

use super::{Name, process::Identity};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Written right after the process was started, removed after it was stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) service: Name,
    pub(crate) version: String,
    pub(crate) port: u16,
    pub(crate) data: PathBuf,
    #[serde(flatten)]
    pub(crate) process: Identity,
}

impl State {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    pub(crate) fn to_json(&self) -> String {
        // A struct of strings and numbers always serialises.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_survives_the_file() {
        let state = State {
            service: Name::Rabbitmq,
            version: "3.10.8".to_owned(),
            port: 15673,
            data: PathBuf::from("/services/rabbitmq/data"),
            process: Identity { pid: 42, started_ticks: 99_000, boot_id: "b".to_owned() },
        };
        assert_eq!(State::parse(&state.to_json()), Ok(state));
    }

    #[test]
    fn a_damaged_state_is_an_error() {
        for text in ["", "{}", "{\"service\": \"oracle\"}", "{\"service\": \"kafka\", \"pid\": \"x\"}"] {
            assert!(State::parse(text).is_err(), "{text}");
        }
    }
}
