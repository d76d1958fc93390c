//! `relay config check`, `show` and `schema`, and where the configuration comes from.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use operate::PipelineConfig;

use super::exit::Exit;
use super::failure::Failure;
use super::output::{Format, Table, print};
use crate::config::{Config, Effective, EffectiveSetting, Overrides, schema};
use crate::near;

/// The location of the configuration.
#[derive(Debug, Clone, Default, Args)]
pub struct ConfigFile {
    /// The configuration file. Environment variables (RELAY__<PIPELINE>__<SECTION>__<SETTING>)
    /// override it. Default: relay.toml in the working directory, then /etc/relay/relay.toml.
    #[arg(long = "config", value_name = "FILE", env = "RELAY_CONFIG")]
    path: Option<PathBuf>,
}

/// Default places of the configuration, in this order. Packages install the second.
const PLACES: [&str; 2] = ["relay.toml", "/etc/relay/relay.toml"];

impl ConfigFile {
    /// Returns the checked configuration and the settings in force. Opens the files of broker
    /// settings.
    pub(crate) fn load(&self, overrides: &Overrides) -> Result<(Config, Effective), Failure> {
        Ok(Config::load(&self.found()?, overrides)?)
    }

    /// Like [`Self::load`], for the daemon: it waits for files that are not there yet.
    pub(crate) fn load_without_files(&self, overrides: &Overrides) -> Result<(Config, Effective), Failure> {
        Ok(Config::load_without_files(&self.found()?, overrides)?)
    }

    /// Returns the checked configuration.
    pub(crate) fn read(&self) -> Result<Config, Failure> {
        Ok(self.load(&Overrides::from_environment())?.0)
    }

    /// Returns the name of the file for a suggested command.
    pub(crate) fn shown(&self) -> String {
        self.found().map_or_else(|_| PLACES.join(" or "), |path| path.display().to_string())
    }

    /// Returns the named file, or the first default place that exists. A file that exists but
    /// cannot be read is not skipped.
    fn found(&self) -> Result<PathBuf, Failure> {
        if let Some(path) = &self.path {
            return Ok(path.clone());
        }
        let is_there = |place: &&&str| match Path::new(place).metadata() {
            Err(error) => !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory),
            Ok(_) => true,
        };
        PLACES.iter().find(is_there).map(PathBuf::from).ok_or_else(|| {
            let text = format!("there is no configuration: neither {} exists", PLACES.join(" nor "));
            let help = "name it with --config FILE or RELAY_CONFIG; `relay init` writes one";
            Failure::with_help(Exit::Usage, text, help)
        })
    }
}

/// One pipeline of a configuration. The name is optional when there is only one.
#[derive(Debug, Clone, Args)]
pub(crate) struct OnePipeline {
    #[command(flatten)]
    pub(crate) config: ConfigFile,

    /// The pipeline. Required if the configuration has several.
    #[arg(long, value_name = "NAME")]
    pipeline: Option<String>,
}

impl OnePipeline {
    /// Returns the pipeline.
    pub(crate) fn read(&self) -> Result<PipelineConfig, Failure> {
        self.only(&self.config.read()?).cloned()
    }

    /// Returns the pipeline, and the old table that it takes over.
    #[cfg(feature = "postgres")]
    pub(crate) fn read_with_adoption(&self) -> Result<(PipelineConfig, Option<adopt::Adoption>), Failure> {
        let mut config = self.config.read()?;
        let pipeline = self.only(&config)?.clone();
        let adoption = config.adoptions.remove(&pipeline.name);
        Ok((pipeline, adoption))
    }

    fn only<'a>(&self, config: &'a Config) -> Result<&'a PipelineConfig, Failure> {
        match (&self.pipeline, &config.pipelines[..]) {
            (Some(name), _) => find(config, name),
            (None, [pipeline]) => Ok(pipeline),
            (None, _) => {
                let help = format!("add --pipeline NAME: {}", names(config));
                Err(Failure::with_help(Exit::Usage, "the configuration has several pipelines", help))
            }
        }
    }
}

/// Returns the pipeline with this name.
pub(crate) fn find<'a>(config: &'a Config, name: &str) -> Result<&'a PipelineConfig, Failure> {
    config.pipeline(name).ok_or_else(|| {
        let known = config.pipelines.iter().map(|pipeline| pipeline.name.as_str());
        let help = format!("{}configured pipelines: {}", near::meant(name, known), names(config));
        Failure::with_help(Exit::Usage, format_args!("no pipeline is called {name:?}"), help)
    })
}

fn names(config: &Config) -> String {
    config.pipelines.iter().map(|pipeline| pipeline.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// Actions on the configuration.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Check the configuration, and print the effective settings without secrets. Opens no
    /// connection.
    Check(ConfigFile),
    /// Show every setting in force, its value without secrets, and where it comes from.
    Show {
        #[command(flatten)]
        file: ConfigFile,

        /// Print a TOML file with the sources as comments, instead of a table or JSON.
        #[arg(long)]
        toml: bool,
    },
    /// Print the JSON Schema of the file, for editors.
    Schema,
}

impl ConfigCommand {
    pub(crate) fn execute(&self, format: Format) -> Result<Exit, Failure> {
        match self {
            Self::Check(file) => {
                let (_, effective) = file.load(&Overrides::from_environment())?;
                format.print(&effective.to_json(), |_| effective.to_string())?;
            }
            Self::Show { file, toml } => {
                let (_, effective) = file.load(&Overrides::from_environment())?;
                if *toml {
                    print(&effective.to_string())?;
                } else {
                    format.print(&effective.settings(), |settings| shown(settings))?;
                }
            }
            Self::Schema => Format::Json.print(&schema(), |_| String::new())?,
        }
        Ok(Exit::Success)
    }
}

fn shown(settings: &[EffectiveSetting]) -> String {
    let rows = settings.iter().map(|setting| {
        let value = match setting.value.as_str() {
            Some(text) => text.to_owned(),
            None => setting.value.to_string(),
        };
        [setting.setting.clone(), value, setting.origin.clone()]
    });
    Table::new(["setting", "value", "from"], rows).cut("value").shown()
}
