//! The initial configuration: the answers of `relay init`, with comments about the rest. Pure.

use std::fmt::Write as _;

/// The answers for a pipeline.
#[derive(Debug, Clone)]
pub(crate) struct Starter {
    /// The pipeline's name.
    pub(crate) name: String,
    /// The database.
    pub(crate) database: StarterDatabase,
    /// The PostgreSQL schema of the tables.
    pub(crate) schema: Option<String>,
    /// The broker of its messages.
    pub(crate) broker: StarterBroker,
}

/// Where the file says the URL of the database is.
#[derive(Debug, Clone)]
pub(crate) enum StarterDatabase {
    /// In the file itself.
    Url(String),
    /// In another file, at this path. A password in it is not copied.
    File(String),
}

/// The broker of a pipeline.
#[derive(Debug, Clone)]
pub(crate) enum StarterBroker {
    /// Kafka: `host:port` of some brokers.
    Kafka(Vec<String>),
    /// RabbitMQ: its URL.
    Rabbitmq(String),
    /// SQS: its region, and the endpoint of a compatible server.
    Sqs {
        /// The region.
        region: String,
        /// The endpoint.
        endpoint: Option<String>,
    },
    /// HTTP: the URL of the endpoint.
    Http(String),
}

const HEAD: &str = "\
# Configuration of the relay. All keys: docs/configuration.md; effective settings: relay config show.
# A variable overrides this file: RELAY__<PIPELINE>__DATABASE__URL, RELAY__LOG__LEVEL.
# Lines that begin with `# key =` show defaults.

[[pipeline]]
# The name of cursor, lease and metrics. A different name means a new cursor: everything is published again.
";

const DATABASE: &str = "
[pipeline.database]
# Keep a password in a file: url_file = <path> instead of url. It is read at every connect.
";

const RETENTION: &str = "\
# How long a message stays after it was enqueued, if every relay has passed it; or off.
# retention = \"3d\"
";

const KAFKA: &str = "
[pipeline.kafka]
# Brokers that the client contacts first to discover the cluster.
";

const KAFKA_MORE: &str = "\
# At most max.message.bytes of every topic.
# message_bytes_max = 1000000
# compression = \"none\"
# Other machines need a section [pipeline.kafka.tls]; a user or a token needs [pipeline.kafka.sasl].
";

const RABBITMQ: &str = "
[pipeline.rabbitmq]
# Keep a password in a file: password_file = <path>.
";

const RABBITMQ_MORE: &str = "\
# The exchange to publish to; the topic is the routing key. Without an exchange, the topic is the queue's \
name.
# exchange = \"\"
# For relay doctor, which reads queue settings there: management_url = <http[s]://host:port>
";

const SQS: &str = "
[pipeline.sqs]
# Credentials come from the AWS environment: variables, profile, instance role.
";

const SQS_MORE: &str = "\
# Maps topics to queues (name or URL). An unlisted topic is published to the queue with the same name.
# queues = {}
";

const WEBHOOKS: &str = "
[pipeline.http]
# The endpoint of every topic; others get their own as [pipeline.http.endpoints.\"<topic>\"].
";

const WEBHOOKS_MORE: &str = "\
# Files with the secrets of its signatures (whsec_..., one a line): secret_files = [<path>].
# Addresses of private networks need to be allowed: private_networks = [<network>].
# Statuses that stop a topic instead of refusing its message, such as 401, 403 and 404.
# stopping_statuses = []
# mode = \"binary\"
";

// A program without the endpoint refuses the setting.
const HTTP: &str = if cfg!(feature = "metrics-endpoint") {
    "
[http]
# Metrics, /livez and /readyz, without credentials. A second relay on one machine needs another port.
listen = \"127.0.0.1:9464\"
"
} else {
    ""
};

const TAIL: &str = "
[pipeline.engine]
# Maximum bytes of messages in memory that are read but not confirmed.
# window = \"12MiB\"
# A standby replaces a killed relay after at most this time.
# lease_ttl = \"15s\"
# How long a shutdown waits for confirmations.
# shutdown_grace = \"20s\"
# Failed attempts after which a message is dead. Outages do not count.
# attempts_max = 10
# Later messages with the key of a dead message wait for an operator (hold), or are published (pass).
# on_dead = \"hold\"

[log]
# text or json.
# format = \"text\"
# level = \"info\"
";

impl Starter {
    /// Returns the file's text.
    #[must_use]
    pub(crate) fn to_toml(&self) -> String {
        let mut text = String::from(HEAD);
        let mut set = |head: &str, values: &[(&str, toml::Value)], more: &str| {
            text.push_str(head);
            for (key, value) in values {
                // Writing to a String cannot fail.
                let _ = writeln!(text, "{key} = {value}");
            }
            text.push_str(more);
        };
        let value = |text: &str| toml::Value::from(text);
        set("", &[("name", value(&self.name))], "");
        let mut database = vec![match &self.database {
            StarterDatabase::Url(url) => ("url", value(url)),
            StarterDatabase::File(path) => ("url_file", value(path)),
        }];
        database.extend(self.schema.as_deref().map(|schema| ("schema", value(schema))));
        set(DATABASE, &database, RETENTION);
        match &self.broker {
            StarterBroker::Kafka(servers) => {
                let servers = servers.iter().map(|server| value(server)).collect();
                set(KAFKA, &[("bootstrap_servers", toml::Value::Array(servers))], KAFKA_MORE);
            }
            StarterBroker::Rabbitmq(url) => set(RABBITMQ, &[("url", value(url))], RABBITMQ_MORE),
            StarterBroker::Sqs { region, endpoint } => {
                let mut values = vec![("region", value(region))];
                values.extend(endpoint.as_deref().map(|endpoint| ("endpoint_url", value(endpoint))));
                set(SQS, &values, SQS_MORE);
            }
            StarterBroker::Http(url) => set(WEBHOOKS, &[("url", value(url))], WEBHOOKS_MORE),
        }
        text.push_str(HTTP);
        text.push_str(TAIL);
        text
    }
}

#[cfg(all(test, feature = "http", feature = "kafka", feature = "rabbitmq", feature = "sqs"))]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::{Config, Overrides};

    fn starters() -> Vec<Starter> {
        let starter = |broker| Starter {
            name: String::from("orders"),
            database: StarterDatabase::Url(String::from("postgres://relay:s3c\"ret@127.0.0.1/orders")),
            schema: Some(String::from("shop")),
            broker,
        };
        vec![
            starter(StarterBroker::Kafka(vec![String::from("127.0.0.1:9092"), String::from("[::1]:9092")])),
            starter(StarterBroker::Rabbitmq(String::from("amqp://127.0.0.1"))),
            starter(StarterBroker::Sqs {
                region: String::from("eu-central-1"),
                endpoint: Some(String::from("http://127.0.0.1:9324")),
            }),
            starter(StarterBroker::Http(String::from("https://hooks.example.com/orders"))),
        ]
    }

    fn settings(text: &str) -> Vec<(String, serde_json::Value)> {
        let (_, effective) = Config::read(Path::new("relay.toml"), text, &Overrides::default()).unwrap();
        effective.settings().into_iter().map(|setting| (setting.setting, setting.value)).collect()
    }

    /// One of the shipped alert rules fires when no relay is scraped.
    #[test]
    fn the_relay_can_be_watched_from_the_start() {
        for starter in starters() {
            let settings = settings(&starter.to_toml());
            let listen = settings.iter().find(|(setting, _)| setting == "http.listen");
            let expected = cfg!(feature = "metrics-endpoint").then(|| serde_json::json!("127.0.0.1:9464"));
            assert_eq!(listen.map(|(_, value)| value.clone()), expected);
        }
    }

    #[test]
    fn the_text_is_a_configuration_and_its_comments_show_defaults() {
        for starter in starters() {
            let text = starter.to_toml();
            let is_default =
                |line: &str| line.starts_with("# ") && line.contains(" = ") && !line.contains('<');
            let uncommented: Vec<&str> = text
                .lines()
                .map(|line| if is_default(line) { line.trim_start_matches("# ") } else { line })
                .collect();
            let (as_written, uncommented) = (settings(&text), settings(&uncommented.join("\n")));
            // A broker's defaults appear among the settings in force only when they are written.
            let of_relay = |(path, _): &&(String, serde_json::Value)| {
                !["kafka", "rabbitmq", "sqs", "pipeline[0].http"].iter().any(|broker| path.contains(broker))
            };
            let (left, right): (Vec<_>, Vec<_>) =
                (as_written.iter().filter(of_relay).collect(), uncommented.iter().filter(of_relay).collect());
            assert_eq!(left, right, "{text}");
            assert!(text.lines().filter(|line| is_default(line)).count() > 5, "{text}");
        }
    }
}
