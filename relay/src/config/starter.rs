//! The initial configuration: the answers of `relay init`, with comments about the rest. Pure.

use std::fmt::Write as _;

/// The answers for a pipeline.
#[derive(Debug, Clone)]
pub struct Starter {
    /// The pipeline's name.
    pub name: String,
    /// The database's URL.
    pub url: String,
    /// The PostgreSQL schema of the tables.
    pub schema: Option<String>,
    /// The broker of its messages.
    pub broker: StarterBroker,
}

/// The broker of a pipeline.
#[derive(Debug, Clone)]
pub enum StarterBroker {
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
}

const HEAD: &str = "\
# Configuration of the relay. All keys: docs/configuration.md; what is in force: relay config show.
# A variable wins over this file: RELAY__<PIPELINE>__DATABASE__URL, RELAY__LOG__LEVEL.
# Lines that begin with `# key =` show defaults.

[[pipeline]]
# The name of cursor, lease and metrics. Another name is another cursor: everything leaves again.
";

const DATABASE: &str = "
[pipeline.database]
# A password is better kept in a file: url_file = <path> in place of url, read at every connect.
";

const RETENTION: &str = "\
# How long a message stays after it was enqueued, once every relay has passed it; or off.
# retention = \"3d\"
";

const KAFKA: &str = "
[pipeline.kafka]
# The rest of the cluster is learned from these.
";

const KAFKA_MORE: &str = "\
# At or below max.message.bytes of every topic.
# message_bytes_max = 1000000
# compression = \"none\"
# Other machines need a section [pipeline.kafka.tls], users with a password [pipeline.kafka.sasl].
";

const RABBITMQ: &str = "
[pipeline.rabbitmq]
# A password is better kept in a file: password_file = <path>.
";

const RABBITMQ_MORE: &str = "\
# The exchange to publish on; the topic is the routing key. Without one, it is the queue's name.
# exchange = \"\"
# relay doctor asks the management API for settings: management_url = <http[s]://host:port>
";

const SQS: &str = "
[pipeline.sqs]
# Credentials come from the AWS environment: variables, profile, instance role.
";

const SQS_MORE: &str = "\
# The queue of a topic, by name or URL; a topic that is not listed is the name of its queue.
# queues = {}
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
# Bytes of messages in memory, read but not confirmed.
# window = \"12MiB\"
# A standby takes over a killed relay after at most this.
# lease_ttl = \"15s\"
# How long a shutdown waits for confirmations.
# shutdown_grace = \"20s\"
# Attempts that fail by the message's own fault, before it is dead. Outages do not count.
# attempts_max = 10
# The key of a dead message waits for an operator (hold), or goes on without it (pass).
# on_dead = \"hold\"

[log]
# text for people, json for machines.
# format = \"text\"
# level = \"info\"
";

impl Starter {
    /// Returns the file's text.
    #[must_use]
    pub fn to_toml(&self) -> String {
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
        let mut database = vec![("url", value(&self.url))];
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
        }
        text.push_str(HTTP);
        text.push_str(TAIL);
        text
    }
}

#[cfg(all(test, feature = "kafka", feature = "rabbitmq", feature = "sqs"))]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::{Config, Overrides};

    fn starters() -> Vec<Starter> {
        let starter = |broker| Starter {
            name: String::from("orders"),
            url: String::from("postgres://relay:s3c\"ret@127.0.0.1/orders"),
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
                !["kafka", "rabbitmq", "sqs"].iter().any(|broker| path.contains(broker))
            };
            let (left, right): (Vec<_>, Vec<_>) =
                (as_written.iter().filter(of_relay).collect(), uncommented.iter().filter(of_relay).collect());
            assert_eq!(left, right, "{text}");
            assert!(text.lines().filter(|line| is_default(line)).count() > 5, "{text}");
        }
    }
}
