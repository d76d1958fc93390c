//! Checks the sections together and reports all problems at once, each with its path.

use std::collections::BTreeMap;

use ::adopt::Adoption;
use brokers::InvalidSetting;
use message::Source;
use migrations::{Dialect, Identifier};
use operate::{Broker, Database, PipelineConfig, Retention};
use outbox::connect::InvalidUrl;
use outbox_log::retention::{KEEP_DECISIONS, KEEP_MESSAGES};
use outbox_log::{LogOptions, RelayName};
use secrecy::ExposeSecret;

use super::decode::Wrong;
use super::file::{
    DatabaseSection, EndpointsSection, FileSection, KafkaSection, Log, PipelineSection, RabbitmqSection,
    SqsSection,
};
use super::http::Http;
use super::problems::Problems;
use super::retention;
use super::{Config, Otlp, adopt, broker, engine_section, env, inbox, level, page};
use engine::maintenance::KEEP_DECISIONS_DEFAULT;
use engine::{Filter, InvalidFilter, Rule};

/// The treatment of files that broker settings name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Files {
    /// The files are opened: a missing or unusable one is a problem of the configuration.
    Opened,
    /// The files are left to the connection, which reads them again at each attempt.
    Left,
}

/// Returns the checked configuration, or all its problems. Their places in the file are added
/// later, from the tree.
pub(crate) fn check(file: FileSection, files: Files) -> Result<Config, Vec<Wrong>> {
    let mut problems = Problems::default();
    if file.pipeline.is_empty() {
        let help = "add [[pipeline]] with name, [pipeline.database] and one of [pipeline.kafka], \
                    [pipeline.rabbitmq], [pipeline.sqs] and [pipeline.http]";
        problems.add(String::new(), "there is no pipeline", Some(help));
    }
    check_log(&file.log, &mut problems);
    let http = Http::check(file.http, &mut problems);
    let otlp = Otlp::check(file.otlp, &mut problems);
    let page = page::check(file.page, &mut problems);
    check_names(&file.pipeline, &mut problems);
    let names: Vec<String> = file.pipeline.iter().map(|section| section.name.clone()).collect();
    let inboxes = file.verify.inbox.into_iter().enumerate();
    let verify: Vec<_> = inboxes
        .filter_map(|(index, section)| {
            inbox::check(section, &format!("verify.inbox[{index}]"), &names, &mut problems)
        })
        .collect();
    let mut pipelines = Vec::new();
    let mut adoptions = BTreeMap::new();
    for (index, section) in file.pipeline.into_iter().enumerate() {
        let checked = pipeline(section, &format!("pipeline[{index}]"), files, &mut problems);
        let Some((mut pipeline, adoption)) = checked else { continue };
        pipeline.settings.topics_labelled_max = http.topics_max;
        adoptions.extend(adoption.map(|adoption| (pipeline.name.clone(), adoption)));
        pipelines.push(pipeline);
    }
    problems.none()?;
    Ok(Config { pipelines, adoptions, log: file.log, http, otlp, page, verify })
}

fn check_log(log: &Log, problems: &mut Problems) {
    if let Err(problem) = level::filter(&log.level) {
        problems.add(String::from("log.level"), problem, Some(level::HELP));
    }
}

/// Checks that each name is unique: it identifies one cursor and one prefix of environment
/// variables.
fn check_names(sections: &[PipelineSection], problems: &mut Problems) {
    let mut seen = BTreeMap::from(["LOG", "HTTP", "OTLP", "PAGE"].map(|name| (String::from(name), None)));
    for (index, PipelineSection { name, .. }) in sections.iter().enumerate() {
        let in_env = env::name_in_env(name);
        let message = match seen.insert(in_env.clone(), Some(name)) {
            None => continue,
            Some(Some(other)) if other == name => format!("{name:?} is the name of two pipelines"),
            Some(Some(other)) => {
                format!(
                    "{name:?} and {other:?} have the same name in environment variables ({}{in_env}__…)",
                    env::PREFIX
                )
            }
            Some(None) => {
                let what = match in_env.as_str() {
                    "LOG" => "the log",
                    "OTLP" => "the export to OpenTelemetry",
                    "PAGE" => "the page",
                    _ => "metrics and health",
                };
                format!("{name:?} is reserved: {}{in_env}__… configures {what}", env::PREFIX)
            }
        };
        problems.add(format!("pipeline[{index}].name"), message, Some("give each pipeline a different name"));
    }
}

/// Returns a pipeline, and the old table that it takes over.
fn pipeline(
    section: PipelineSection,
    path: &str,
    files: Files,
    problems: &mut Problems,
) -> Option<(PipelineConfig, Option<Adoption>)> {
    let name = RelayName::new(section.name.as_str())
        .map_err(|error| problems.add(format!("{path}.name"), error.to_string(), None))
        .ok();
    let source = Source::new(section.source.unwrap_or_else(|| format!("/{}", section.name)))
        .map_err(|error| problems.add(format!("{path}.source"), error.to_string(), None))
        .ok();
    let retention = section.database.retention.unwrap_or_default();
    let audit_retention = section.database.audit_retention.unwrap_or(Retention::For(KEEP_DECISIONS_DEFAULT));
    for (name, kept, bounds) in
        [("retention", retention, KEEP_MESSAGES), ("audit_retention", audit_retention, KEEP_DECISIONS)]
    {
        if let Err(problem) = retention::check(kept, bounds) {
            let help = Some("\"off\" keeps everything");
            problems.add(format!("{path}.database.{name}"), problem, help);
        }
    }
    let database = database(section.database, path, problems);
    let adoption = match section.adopt {
        Some(section) => adopt::check(section, path, problems).map(Some),
        None => Some(None),
    };
    let given =
        Given { kafka: section.kafka, rabbitmq: section.rabbitmq, sqs: section.sqs, http: section.http };
    let broker = broker(given, path, problems)?;
    let checked = broker::check(&broker).and_then(|()| match files {
        Files::Opened => broker::check_files(&broker),
        Files::Left => Ok(()),
    });
    if let Err(InvalidSetting { setting, problem, .. }) = checked {
        problems.add(format!("{path}.{setting}"), problem, None);
    }
    let (settings, refusals) =
        engine_section::settings(&section.engine, broker.size_limit(), broker.encoding());
    for (setting, problem) in refusals {
        problems.add(format!("{path}.engine.{setting}"), problem, None);
    }
    #[cfg(feature = "kafka")]
    if let Broker::Kafka(config) = &broker
        && let Err(refused) = settings.check_room("kafka.queue_bytes_max", config.queue_bytes_max)
    {
        problems.add(format!("{path}.{}", refused.setting), refused.problem, None);
    }
    let settings = settings.filter(filter(section.filter, path, problems)?);
    let pipeline = PipelineConfig {
        name: name?,
        source: source?,
        database: database?,
        retention,
        audit_retention,
        broker,
        settings,
    };
    Some((pipeline, adoption?))
}

fn filter(rules: Vec<Rule>, path: &str, problems: &mut Problems) -> Option<Filter> {
    let error = match Filter::any_of(rules) {
        Ok(filter) => return Some(filter),
        Err(error) => error,
    };
    match error {
        InvalidFilter::Rule { index, problem } => {
            problems.add(format!("{path}.filter[{index}]"), problem.to_string(), None);
        }
        other => problems.add(format!("{path}.filter"), other.to_string(), None),
    }
    None
}

fn database(section: DatabaseSection, path: &str, problems: &mut Problems) -> Option<Database> {
    let path = format!("{path}.database");
    let url = match brokers::Secret::from_pair("url", section.url, section.url_file) {
        Ok(url) => url,
        Err(error) => {
            problems.add(
                path,
                error.to_string(),
                Some("for example url = \"postgres://relay@db.internal/orders\""),
            );
            return None;
        }
    };
    let schema = section.schema.map(Identifier::new).transpose();
    let schema =
        schema.map_err(|error| problems.add(format!("{path}.schema"), error.to_string(), None)).ok()?;
    let options = LogOptions::default().schema(schema.clone()).allow_plaintext(section.allow_plaintext);
    // A file may be mounted later; a URL in the configuration can be checked now.
    if let brokers::Secret::Text(text) = &url {
        match Database::check(text.expose_secret(), &options) {
            Err(error @ InvalidUrl::Plaintext { .. }) => {
                problems.add(
                    format!("{path}.url"),
                    error.to_string(),
                    Some("to allow plaintext, set allow_plaintext = true"),
                );
            }
            Err(error) => problems.add(format!("{path}.url"), error.to_string(), None),
            Ok(Dialect::Sqlite) if schema.is_some() => {
                let message = "SQLite has no schemas";
                problems.add(format!("{path}.schema"), message, Some("remove the setting"));
            }
            Ok(_) => {}
        }
    }
    Some(Database::new(url, options))
}

/// The sections of brokers in a pipeline.
struct Given {
    kafka: Option<KafkaSection>,
    rabbitmq: Option<RabbitmqSection>,
    sqs: Option<SqsSection>,
    http: Option<EndpointsSection>,
}

fn broker(given: Given, path: &str, problems: &mut Problems) -> Option<Broker> {
    let help = "a pipeline publishes to exactly one of [pipeline.kafka], [pipeline.rabbitmq], [pipeline.sqs] and \
                [pipeline.http]";
    let Given { kafka, rabbitmq, sqs, http } = given;
    #[cfg(feature = "kafka")]
    let kafka = kafka.map(|config| ("kafka", Broker::Kafka(Box::new(config))));
    #[cfg(feature = "rabbitmq")]
    let rabbitmq = rabbitmq.map(|config| ("rabbitmq", Broker::Rabbitmq(Box::new(config))));
    #[cfg(feature = "sqs")]
    let sqs = sqs.map(|config| ("sqs", Broker::Sqs(Box::new(config))));
    #[cfg(feature = "http")]
    let http = http.map(|config| ("http", Broker::Http(Box::new(config))));
    // A section for a broker that this program lacks fails to parse, so there is none.
    #[cfg(not(feature = "kafka"))]
    let kafka = kafka.map(|absent| match absent {});
    #[cfg(not(feature = "rabbitmq"))]
    let rabbitmq = rabbitmq.map(|absent| match absent {});
    #[cfg(not(feature = "sqs"))]
    let sqs = sqs.map(|absent| match absent {});
    #[cfg(not(feature = "http"))]
    let http = http.map(|absent| match absent {});
    let mut given: Vec<(&str, Broker)> = [kafka, rabbitmq, sqs, http].into_iter().flatten().collect();
    match given.len() {
        1 => given.pop().map(|(_, broker)| broker),
        0 => {
            problems.add(path.to_owned(), "no broker is configured", Some(help));
            None
        }
        _ => {
            let names: Vec<&str> = given.iter().map(|(name, _)| *name).collect();
            problems.add(path.to_owned(), format!("{} are configured", names.join(" and ")), Some(help));
            None
        }
    }
}
