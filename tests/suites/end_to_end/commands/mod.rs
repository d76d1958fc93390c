//! The commands of the program, run as processes: their output as a table and as JSON, their exit
//! codes, and what they leave in the database.

mod adopt;
mod consumers;
mod dead;
mod doctor;
mod erasing;
mod history;
mod migrate;
mod once;
mod pausing;
pub(crate) mod refusals;
mod replaying;
mod setup;
mod several;
mod showing;
mod terminal;

use std::process::Output;

use serde_json::Value;
use tests::Failure;
use tests::relay_process::{Config, relay, relay_with};

tests::cases! {
    modules { refusals, setup }
    night modules {
        adopt, consumers, dead, doctor, erasing, history, migrate, once, pausing, replaying, several, showing, terminal,
    }
}

/// The result of a command.
#[derive(Debug)]
pub(crate) struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Ran {
    /// Runs a command with a configuration.
    pub(crate) async fn with(config: &Config, arguments: &[&str]) -> Result<Self, Failure> {
        let path = config.path().to_str().ok_or("the path is not UTF-8")?;
        Self::of(&[arguments, &["--config", path]].concat()).await
    }

    /// Runs a command with exactly these arguments.
    pub(crate) async fn of(arguments: &[&str]) -> Result<Self, Failure> {
        Self::ended_with(relay(arguments).await?)
    }

    /// Runs a command on a database.
    pub(crate) async fn on(url: &str, arguments: &[&str]) -> Result<Self, Failure> {
        Self::of_variables(arguments, &[("RELAY_DATABASE_URL", url)]).await
    }

    /// Runs a command with extra environment variables.
    pub(crate) async fn of_variables(
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<Self, Failure> {
        Self::ended_with(relay_with(variables, arguments).await?)
    }

    fn ended_with(output: Output) -> Result<Self, Failure> {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes);
        Ok(Self { code: output.status.code(), out: text(output.stdout)?, err: text(output.stderr)? })
    }

    /// Demands success.
    pub(crate) fn done(self) -> Result<Self, Failure> {
        self.ended(0)
    }

    /// Demands an exit code.
    pub(crate) fn ended(self, code: i32) -> Result<Self, Failure> {
        if self.code == Some(code) { Ok(self) } else { Err(format!("not {code}: {self:?}").into()) }
    }

    /// Parses its standard output as JSON.
    pub(crate) fn json(&self) -> Result<Value, Failure> {
        serde_json::from_str(&self.out).map_err(|error| format!("{error}: {self:?}").into())
    }

    /// Demands exit code 2, errors that contain all of `parts`, and no secret anywhere in the
    /// output.
    pub(crate) fn refused_without(self, secret: &str, parts: &[&str]) -> Result<(), Failure> {
        let ran = self.ended(2)?;
        assert!(!format!("{}{}", ran.out, ran.err).contains(secret), "{ran:?}");
        for part in parts {
            assert!(ran.err.contains(part), "{part:?} is not in {ran:?}");
        }
        Ok(())
    }

    /// Demands this exit code, errors that contain all of `parts`, and an empty standard output.
    pub(crate) fn refused(self, code: i32, parts: &[&str]) -> Result<(), Failure> {
        let ran = self.ended(code)?;
        assert_eq!(ran.out, "", "{ran:?}");
        for part in parts {
            assert!(ran.err.contains(part), "{part:?} is not in {ran:?}");
        }
        Ok(())
    }
}

/// Returns the text of one member of every row.
pub(crate) fn column<'a>(rows: &'a Value, name: &str) -> Vec<&'a str> {
    rows.as_array().into_iter().flatten().filter_map(|row| row[name].as_str()).collect()
}
