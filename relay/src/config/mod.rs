//! `relay.toml`: several pipelines in one file, environment variables and flags laid over it,
//! everything checked before anything starts.
//!
//! | module | what it holds |
//! |---|---|
//! | `tree` | settings in which every key and value knows where it was written |
//! | `env` | environment variables laid over the tree |
//! | `decode` | the tree made into typed sections; errors carry path and place |
//! | `file` | the sections as they are written |
//! | `units` | durations and sizes as people write them |
//! | `engine` | the section of the engine made into its settings |
//! | `check` | what the sections mean together |
//! | `database`, `broker` | where messages come from and where they go |
//! | `adopt` | the foreign outbox table that `relay adopt` takes over |
//! | `retention` | how long history is kept |
//! | `level` | the level of the log, or its directives |
//! | `http` | where metrics and health are served |
//! | `otlp`, `otel_env` | which collector of OpenTelemetry gets traces and metrics |
//! | `page` | where the page for operators is served, and to whom |
//! | `inbox` | inboxes that `relay verify` compares with |
//! | `redact` | what is secret, and how it is kept out of everything that is printed |
//! | `schema` | the JSON Schema of the file, for editors |
//! | `starter` | the configuration to begin with |
//! | `effective` | what is in force, for people and machines |
//! | `error` | what is wrong, shown with its place |

mod adopt;
mod broker;
mod check;
mod database;
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
pub(crate) mod redact;
mod retention;
mod schema;
mod starter;
mod tree;
pub(crate) mod units;

use std::path::Path;

use message::Source;
use outbox::log::RelayName;

use engine::EngineOptions;

pub use adopt::{AdoptedTopic, Adoption, Field, NullPayload, Only, Pending, WhenSent};
pub use broker::Broker;
pub use database::Database;
pub use effective::{Effective, EffectiveSetting};
pub use error::ConfigError;
pub use file::{Log, LogFormat};
pub use http::Http;
pub use inbox::InboxConfig;
pub use otlp::{Otlp, OtlpHeaders};
pub use page::{PageConfig, PageCredential, PageTls, PageUser};
pub use retention::Retention;
pub use schema::schema;
pub use starter::{Starter, StarterBroker};

use check::Files;
use tree::{Node, Origin};

/// A checked configuration.
#[derive(Debug)]
pub struct Config {
    /// The pipelines, each with a name of its own; at least one.
    pub pipelines: Vec<PipelineConfig>,
    /// How the relay logs.
    pub log: Log,
    /// Where metrics and health are served.
    pub http: Http,
    /// Which collector gets traces and metrics; none without the section.
    pub otlp: Option<Otlp>,
    /// Where the page for operators is served; `None` when it is not.
    pub page: Option<PageConfig>,
    /// Inboxes that `relay verify` compares with.
    pub verify: Vec<InboxConfig>,
}

/// One pipeline: from one outbox to one broker.
#[derive(Debug, Clone)]
pub struct PipelineConfig {
    /// The relay's name: of cursor, lease and metrics.
    pub name: RelayName,
    /// The CloudEvents source of its messages.
    pub source: Source,
    /// Where the outbox is.
    pub database: Database,
    /// How long what has left is kept.
    pub retention: Retention,
    /// How long decisions of operators are kept, while messages are not kept for ever.
    pub audit_retention: Retention,
    /// Where its messages go.
    pub broker: Broker,
    /// How the pipeline behaves.
    pub settings: EngineOptions,
    /// The foreign outbox table that `relay adopt` takes over.
    pub adopt: Option<Adoption>,
}

/// A setting that a flag of the command line gives.
#[derive(Debug, Clone)]
pub struct Override {
    /// The flag, for errors: `--log-level`.
    pub flag: &'static str,
    /// The setting's path: `log.level`.
    pub path: &'static str,
    /// The value as given.
    pub value: String,
}

/// The sources of a configuration beside the file.
#[derive(Debug, Default)]
pub struct Overrides {
    /// Environment variables; those that do not begin with `RELAY__` are left alone.
    pub variables: Vec<(String, String)>,
    /// Flags; they win over variables, which win over the file.
    pub flags: Vec<Override>,
}

impl Overrides {
    /// This process's environment. A variable that is not UTF-8 is taken over with replacement
    /// characters, so that an override is never ignored in silence.
    #[must_use]
    pub fn from_environment() -> Self {
        let variables = std::env::vars_os()
            .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
            .collect();
        Self { variables, flags: Vec::new() }
    }
}

impl Config {
    /// Reads a file, lays variables and flags over it and checks everything. Connects to nothing;
    /// the files that broker settings name are opened. Also answers what is in force, to print it.
    ///
    /// # Errors
    /// [`ConfigError`] with the file's line and column, or the name of the variable or flag.
    pub fn load(path: &Path, overrides: &Overrides) -> Result<(Self, Effective), ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|error| ConfigError::unreadable(path, &error))?;
        Self::read(path, &text, overrides)
    }

    /// As [`load`](Self::load), and opens no other file: for a program that waits for files that
    /// are not there yet, and reads them at every connect.
    ///
    /// # Errors
    /// As for [`load`](Self::load).
    pub fn load_without_files(path: &Path, overrides: &Overrides) -> Result<(Self, Effective), ConfigError> {
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

    /// The pipeline of a name.
    #[must_use]
    pub fn pipeline(&self, name: &str) -> Option<&PipelineConfig> {
        self.pipelines.iter().find(|pipeline| pipeline.name.as_str() == name)
    }
}

#[cfg(test)]
mod tests;
