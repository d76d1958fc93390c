//! `relay.toml`: several pipelines in one file, overridden by environment variables and flags.
//! Everything is checked before anything starts.
//!
//! | module | what it holds |
//! |---|---|
//! | `tree` | settings, each with the place of its key and value |
//! | `env` | environment variables laid over the tree |
//! | `decode` | turns the tree into typed sections; errors have path and place |
//! | `file` | the sections as written in the file |
//! | `engine_section` | the section of the engine, and how it becomes its settings |
//! | `check` | checks across sections |
//! | `problems` | the problems that the checks find, each with its path |
//! | `broker` | checks of the broker to which messages go |
//! | `adopt` | the foreign outbox table that `relay adopt` takes over |
//! | `retention` | bounds of how long history is kept |
//! | `level` | the level of the log, or its directives |
//! | `http` | the endpoint of metrics and health |
//! | `otlp`, `otel_env` | the OpenTelemetry collector for traces and metrics |
//! | `page` | address and users of the page for operators |
//! | `inbox` | inboxes for `relay verify` |
//! | `redact` | secrets, and how they are kept out of everything printed |
//! | `schema` | the JSON Schema of the file, for editors |
//! | `starter` | the configuration that `relay init` writes |
//! | `effective` | the settings in force, for people and machines |
//! | `error` | problems, shown with their places |

mod adopt;
mod broker;
mod check;
mod decode;
mod effective;
mod engine_section;
mod env;
mod error;
mod file;
mod http;
mod inbox;
pub(crate) mod level;
#[cfg(feature = "otlp")]
pub(crate) mod otel_env;
pub(crate) mod otlp;
mod page;
mod problems;
pub(crate) mod redact;
mod retention;
mod schema;
mod starter;
mod tree;

use std::collections::BTreeMap;
use std::path::Path;

use ::adopt::Adoption;
use operate::{InboxConfig, PipelineConfig};
use outbox_log::RelayName;
use web::PageConfig;

pub(crate) use effective::{Effective, EffectiveSetting};
pub(crate) use error::ConfigError;
pub(crate) use file::{Log, LogFormat};
pub(crate) use http::Http;
pub(crate) use otlp::Otlp;
#[cfg(feature = "otlp")]
pub(crate) use otlp::OtlpHeaders;
pub(crate) use schema::schema;
pub(crate) use starter::{Starter, StarterBroker, StarterDatabase};

use check::Files;
use tree::{Node, Origin};

/// A checked configuration.
#[derive(Debug)]
pub(crate) struct Config {
    /// The pipelines, each with a unique name; at least one.
    pub(crate) pipelines: Vec<PipelineConfig>,
    /// The foreign outbox tables that `relay adopt` takes over, by pipeline.
    #[cfg_attr(
        not(feature = "postgres"),
        expect(dead_code, reason = "only tables of PostgreSQL are taken over")
    )]
    pub(crate) adoptions: BTreeMap<RelayName, Adoption>,
    /// The log of the relay.
    pub(crate) log: Log,
    /// The endpoint of metrics and health.
    pub(crate) http: Http,
    /// The collector of traces and metrics; `None` without the section.
    pub(crate) otlp: Option<Otlp>,
    /// The page for operators; `None` when it is not served.
    pub(crate) page: Option<PageConfig>,
    /// Inboxes for `relay verify`.
    pub(crate) verify: Vec<InboxConfig>,
}

/// A setting from a flag of the command line.
#[derive(Debug, Clone)]
pub(crate) struct Override {
    /// The flag, for errors: `--log-level`.
    pub(crate) flag: &'static str,
    /// The setting's path: `log.level`.
    pub(crate) path: &'static str,
    /// The value as given.
    pub(crate) value: String,
}

/// The sources of a configuration besides the file.
#[derive(Debug, Default)]
pub(crate) struct Overrides {
    /// Environment variables; those that do not begin with `RELAY__` are ignored.
    pub(crate) variables: Vec<(String, String)>,
    /// Flags; they override variables, which override the file.
    pub(crate) flags: Vec<Override>,
}

impl Overrides {
    /// Reads this process's environment. A variable that is not UTF-8 is kept with replacement
    /// characters, so that an override is never silently ignored.
    #[must_use]
    pub(crate) fn from_environment() -> Self {
        let variables = std::env::vars_os()
            .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
            .collect();
        Self { variables, flags: Vec::new() }
    }
}

impl Config {
    /// Reads a file, lays variables and flags over it and checks everything. Connects to nothing,
    /// but opens the files that broker settings name. Also returns the settings in force.
    ///
    /// # Errors
    /// [`ConfigError`] with the file's line and column, or the name of the variable or flag.
    pub(crate) fn load(path: &Path, overrides: &Overrides) -> Result<(Self, Effective), ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|error| ConfigError::unreadable(path, &error))?;
        Self::read(path, &text, overrides)
    }

    /// Like [`load`](Self::load), but opens no other file: for a program that waits for missing
    /// files and reads them at each connection.
    ///
    /// # Errors
    /// Those of [`load`](Self::load).
    pub(crate) fn load_without_files(
        path: &Path,
        overrides: &Overrides,
    ) -> Result<(Self, Effective), ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|error| ConfigError::unreadable(path, &error))?;
        Self::read_with(path, &text, overrides, Files::Left)
    }

    pub(crate) fn read(
        path: &Path,
        text: &str,
        overrides: &Overrides,
    ) -> Result<(Self, Effective), ConfigError> {
        Self::read_with(path, text, overrides, Files::Opened)
    }

    fn read_with(
        path: &Path,
        text: &str,
        overrides: &Overrides,
        files: Files,
    ) -> Result<(Self, Effective), ConfigError> {
        let path = path.to_owned();
        let mut tree = Node::parse(text).map_err(|error| {
            let file = error::File { path: path.clone(), masked: redact::broken_source(text) };
            let origin = error.span.map(Origin::File);
            let message = format!("this is not TOML: {}", error.message);
            ConfigError::one(&file, decode::Wrong { path: String::new(), message, help: None, origin })
        })?;
        let file = error::File { path, masked: redact::source(text, &tree) };
        let one = |wrong| ConfigError::one(&file, wrong);
        env::overlay(&mut tree, overrides.variables.iter().cloned()).map_err(one)?;
        for Override { flag, path, value } in &overrides.flags {
            let steps: Vec<String> = path.split('.').map(str::to_owned).collect();
            env::set(&mut tree, &steps, value.clone(), &Origin::Flag(flag)).map_err(one)?;
        }
        #[cfg(feature = "otlp")]
        otel_env::underlay(&mut tree, &overrides.variables).map_err(one)?;
        let sections = decode::decode(&tree).map_err(one)?;
        match check::check(sections, files) {
            Ok(config) => {
                let effective = Effective::new(tree, &config);
                Ok((config, effective))
            }
            Err(mut wrongs) => {
                for wrong in &mut wrongs {
                    wrong.origin = Some(tree.nearest(&wrong.path).origin.clone());
                }
                Err(ConfigError::of(&file, wrongs))
            }
        }
    }

    /// Returns the pipeline with this name.
    #[must_use]
    pub(crate) fn pipeline(&self, name: &str) -> Option<&PipelineConfig> {
        self.pipelines.iter().find(|pipeline| pipeline.name.as_str() == name)
    }
}

#[cfg(test)]
mod tests;
