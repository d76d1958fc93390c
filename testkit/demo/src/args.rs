//! The arguments of the demo.

use std::time::Duration;

/// Maximum number of orders in a run. The checker holds the whole history in memory.
const MESSAGES_MAX: u64 = 1_000_000;

/// Shows that effects happen exactly once, through crashes: places orders, kills relays and
/// consumers while they work, and then checks every promise with plain SQL and a plain broker
/// client.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Orders to commit, each with one message; 1 to 1,000,000
    #[arg(long, value_name = "N", default_value_t = 10_000,
        value_parser = clap::value_parser!(u64).range(1..=MESSAGES_MAX))]
    pub messages: u64,
    /// The seed of orders, rollbacks, crashes and outages [default: a random one, which is printed]
    #[arg(long, value_name = "S")]
    pub seed: Option<u64>,
    /// A PostgreSQL server instead of SQLite files: postgres://user@host/database. The demo creates
    /// two schemas there and removes them at the end. Put a password in the environment variable
    #[arg(long, value_name = "URL", env = "RELAY_DEMO_DATABASE", hide_env_values = true)]
    pub database: Option<String>,
    #[allow(
        rustdoc::broken_intra_doc_links,
        reason = "the text is also the command's help: brackets mean options"
    )]
    /// A broker instead of the Kafka inside the process: kafka://host:port[,host:port], amqp://user@host/vhost
    /// (RabbitMQ, also amqps), sqs+http://host:port or sqs+https://host[?fifo=true][&region=NAME] (SQS). The demo
    /// creates topics and queues there and removes them at the end
    #[arg(long, value_name = "URL", env = "RELAY_DEMO_BROKER", hide_env_values = true)]
    pub broker: Option<String>,
    /// Keep databases, topics, queues and logs
    #[arg(long)]
    pub keep: bool,
    /// Give up after this many seconds; 10 to 86,400
    #[arg(long, value_name = "SECONDS", default_value_t = 300,
        value_parser = clap::value_parser!(u64).range(10..=86_400))]
    pub time_limit: u64,
    /// Switch the inbox's guard off, to see that the checker notices
    #[arg(long, hide = true)]
    pub without_inbox_guard: bool,
}

impl Args {
    pub(crate) fn time_limit(&self) -> Duration {
        Duration::from_secs(self.time_limit)
    }
}

const EXAMPLES: &str = "\
Examples:
  relay demo
  relay demo --messages 2000 --seed 7 --output json
  relay demo --database postgres://me@localhost/shop --broker kafka://localhost:9092
  relay demo --database postgres://me@localhost/shop --broker amqp://localhost
  relay demo --broker 'sqs+http://localhost:9324?fifo=true'

SQS credentials: user and password of the URL, in RELAY_DEMO_BROKER; without them the AWS environment for sqs+https, and for sqs+http
any, because servers for tests accept any.

Exit codes: 0 every promise held, 1 a promise was broken, 2 a wrong option or setting, 3 database or broker
unavailable or the time limit reached, 130 interrupted.";

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        demo: Args,
    }

    #[test]
    fn the_options_are_consistent_and_bounded() {
        Cli::command().debug_assert();
        assert_eq!(Cli::try_parse_from(["demo"]).unwrap().demo.messages, 10_000);
        assert!(Cli::try_parse_from(["demo", "--messages", "0"]).is_err());
        assert!(Cli::try_parse_from(["demo", "--messages", "1000001"]).is_err());
    }
}
