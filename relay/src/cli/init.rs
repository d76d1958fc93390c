//! `relay init`: writes a configuration from flags or questions, and tests the answers.

use std::fs::OpenOptions;
use std::io::{ErrorKind, IsTerminal as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use clap::Args;
use dialoguer::{Input, Select};
use operate::PipelineConfig;
use operate::doctor::{CheckState, Finding, reach_broker, reach_database};
use secrecy::ExposeSecret as _;

use super::database::DatabaseUrl;
use super::exit::Exit;
use super::failure::Failure;
use super::hint;
use super::output::print;
use crate::config::{Config, Overrides, Starter, StarterBroker, StarterDatabase};

/// The arguments of `relay init`.
#[derive(Debug, Args)]
pub struct Init {
    /// The file to write; it must not exist.
    #[arg(long, value_name = "FILE", default_value = "relay.toml")]
    out: PathBuf,

    /// The pipeline's name.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    #[command(flatten)]
    database: DatabaseUrl,

    /// The PostgreSQL schema of the tables. Default: the search_path.
    #[arg(long, value_name = "NAME")]
    schema: Option<String>,

    /// Publish to Kafka: host:port of some brokers, separated by commas.
    #[arg(long, value_name = "SERVERS", value_delimiter = ',', group = "broker")]
    kafka: Vec<String>,

    /// Publish to RabbitMQ: amqp[s]://user@host/vhost. A URL with a password is refused here: put
    /// it in the variable.
    #[arg(long, value_name = "URL", env = "RELAY_RABBITMQ_URL", hide_env_values = true, group = "broker")]
    rabbitmq: Option<String>,

    /// Publish to SQS in this region.
    #[arg(long, value_name = "REGION", group = "broker")]
    sqs: Option<String>,

    /// The endpoint of an SQS-compatible server.
    #[arg(long, value_name = "URL", requires = "sqs")]
    sqs_endpoint: Option<String>,

    /// Post to an HTTP endpoint (a webhook): http[s]://host/path.
    #[arg(long, value_name = "URL", group = "broker")]
    http: Option<String>,

    /// Write the file without testing database and broker.
    #[arg(long)]
    no_check: bool,
}

impl Init {
    pub(crate) async fn execute(&self) -> Result<Exit, Failure> {
        if self.out.exists() {
            return Err(self.exists());
        }
        let mut starter = Starter {
            name: self.asked(self.name.as_ref(), "--name", "Name of the pipeline", "orders")?,
            database: StarterDatabase::Url(String::new()),
            schema: self.schema.clone(),
            // A placeholder until the broker is known; nothing connects to it.
            broker: StarterBroker::Kafka(vec![String::from("127.0.0.1:9092")]),
        };
        // Read in any case: a file that cannot be read is an error of its option.
        let known = self.database.read()?.map(|url| url.expose_secret().to_owned());
        let file = self.database.file()?;
        loop {
            let example = "postgres://relay@127.0.0.1/orders";
            starter.database = match &file {
                Some(path) => StarterDatabase::File(path.clone()),
                None => {
                    let url = self.asked(known.as_ref(), "--database", "URL of the database", example)?;
                    StarterDatabase::Url(url)
                }
            };
            let pipeline = match self.read(&starter) {
                Ok(pipeline) => pipeline,
                Err(failure) if known.is_none() => {
                    failure.print();
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            if self.no_check || self.passes(&reach_database(&pipeline).await, known.is_some())? {
                break;
            }
        }
        let known = self.given_broker();
        loop {
            starter.broker = match &known {
                Some(broker) => broker.clone(),
                None => ask_for_broker()?,
            };
            let pipeline = match self.read(&starter) {
                Ok(pipeline) => pipeline,
                Err(failure) if known.is_none() => {
                    failure.print();
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            if self.no_check || self.passes(&reach_broker(&pipeline).await, known.is_some())? {
                break;
            }
        }
        self.write(&starter.to_toml())?;
        let file = self.out.display();
        let quoted = hint::quoted(&file.to_string());
        print(&format!(
            "{file} is written. Next: relay doctor --config {quoted}; relay run --config {quoted}"
        ))?;
        Ok(Exit::Success)
    }

    fn exists(&self) -> Failure {
        let help = "choose another file with --out, or delete it";
        Failure::with_help(Exit::Usage, format_args!("{} exists", self.out.display()), help)
    }

    /// Returns the value of a flag, or asks for one.
    fn asked(
        &self,
        given: Option<&String>,
        flag: &str,
        prompt: &str,
        example: &str,
    ) -> Result<String, Failure> {
        match given {
            Some(given) => Ok(given.clone()),
            None => {
                demand_terminal(flag)?;
                let input = Input::<String>::new().with_prompt(prompt).default(example.to_owned());
                input.interact_text().map_err(no_answer)
            }
        }
    }

    fn given_broker(&self) -> Option<StarterBroker> {
        if !self.kafka.is_empty() {
            return Some(StarterBroker::Kafka(self.kafka.clone()));
        }
        if let Some(url) = &self.rabbitmq {
            return Some(StarterBroker::Rabbitmq(url.clone()));
        }
        if let Some(url) = &self.http {
            return Some(StarterBroker::Http(url.clone()));
        }
        let region = self.sqs.clone()?;
        Some(StarterBroker::Sqs { region, endpoint: self.sqs_endpoint.clone() })
    }

    /// Returns the pipeline that the file would have. Ignores variables of the environment: they
    /// are not written.
    fn read(&self, starter: &Starter) -> Result<PipelineConfig, Failure> {
        let (mut config, _) = Config::read(&self.out, &starter.to_toml(), &Overrides::default())?;
        Ok(config.pipelines.remove(0))
    }

    /// Prints a finding and returns whether it passes. A flag's value must pass; a typed value may
    /// be typed again.
    fn passes(&self, finding: &Finding, is_final: bool) -> Result<bool, Failure> {
        let remedy = finding.remedy.as_deref().unwrap_or_default();
        note!("{}: {}: {}", finding.subject, finding.state.as_str(), finding.measured);
        match finding.state {
            CheckState::Fail if is_final => {
                let exit = if finding.unavailable { Exit::Unavailable } else { Exit::Usage };
                let help = format!("{remedy}; --no-check writes the file anyway");
                Err(Failure::with_help(exit, format_args!("{}: {}", finding.subject, finding.measured), help))
            }
            CheckState::Fail => {
                note!("  {remedy}");
                Ok(false)
            }
            _ => Ok(true),
        }
    }

    /// Writes the file, readable only by its owner: URLs hold passwords. Never overwrites a file
    /// that was created meanwhile.
    fn write(&self, text: &str) -> Result<(), Failure> {
        let path: &Path = &self.out;
        let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        match opened.and_then(|mut file| file.write_all(text.as_bytes())) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(self.exists()),
            Err(error) => {
                let help = "choose a file in a writable folder with --out";
                Err(Failure::with_help(Exit::Usage, format_args!("{}: {error}", path.display()), help))
            }
        }
    }
}

fn ask_for_broker() -> Result<StarterBroker, Failure> {
    demand_terminal("--kafka, --rabbitmq, --sqs or --http")?;
    let kinds = ["Kafka", "RabbitMQ", "SQS", "HTTP"];
    let kind = Select::new().with_prompt("Broker").items(kinds).default(0).interact().map_err(no_answer)?;
    let ask = |prompt: &str, example: &str| {
        let input = Input::<String>::new().with_prompt(prompt).default(example.to_owned());
        input.interact_text().map_err(no_answer)
    };
    Ok(match kind {
        0 => {
            let servers = ask("Brokers, separated by commas", "127.0.0.1:9092")?;
            StarterBroker::Kafka(servers.split(',').map(|server| server.trim().to_owned()).collect())
        }
        1 => StarterBroker::Rabbitmq(ask("URL", "amqp://guest:guest@127.0.0.1")?),
        2 => StarterBroker::Sqs { region: ask("Region", "eu-central-1")?, endpoint: None },
        _ => StarterBroker::Http(ask("URL", "https://hooks.example.com/outbox")?),
    })
}

fn demand_terminal(flag: &str) -> Result<(), Failure> {
    if std::io::stdin().is_terminal() && std::io::stderr().is_terminal() {
        return Ok(());
    }
    let help = "pass name, database and broker as flags: relay init --help";
    Err(Failure::with_help(Exit::Usage, format_args!("{flag} is missing, and stdin is not a terminal"), help))
}

fn no_answer(error: dialoguer::Error) -> Failure {
    Failure::new(Exit::Usage, format_args!("no answer: {error}"))
}
