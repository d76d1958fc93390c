//! `relay tail`: messages that are being published now.

use std::pin::pin;
use std::time::Duration;

use clap::Args;
use message::{OrderingKey, Topic};
use operate::tail::{Tail as Following, TailFilter, TailLine};
use operate::{Operator, Places, Role, Signed, seconds};

use super::config::OnePipeline;
use super::dead::viewer;
use super::exit::Exit;
use super::failure::Failure;
use super::output::{self, Format, one_line, or_dash};

/// Interval of the queries to the outbox.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// The messages to print.
#[derive(Debug, Args)]
pub struct Tail {
    #[command(flatten)]
    pipeline: OnePipeline,

    /// Only messages of this topic.
    #[arg(long, value_name = "TOPIC")]
    topic: Option<Topic>,

    /// Only messages with this ordering key.
    #[arg(long, value_name = "KEY")]
    key: Option<OrderingKey>,

    /// Stop after this number of messages.
    #[arg(long, value_name = "COUNT")]
    limit: Option<usize>,

    /// Also show payloads. The audit records who looked, and why.
    #[arg(long, requires = "note")]
    payloads: bool,

    /// Your name, for the audit. Only with --payloads.
    #[arg(long, value_name = "NAME", env = "USER")]
    actor: Option<String>,

    /// The reason, for the audit. Only with --payloads.
    #[arg(long, value_name = "TEXT", requires = "payloads")]
    note: Option<String>,
}

impl Tail {
    pub(crate) async fn execute(self, format: Format) -> Result<Exit, Failure> {
        let pipeline = self.pipeline.read()?;
        let places = Places::new().outbox(&pipeline);
        let filter = TailFilter {
            topic: self.topic.map(|topic| topic.as_str().to_owned()),
            key: self.key.map(|key| key.as_str().to_owned()),
        };
        let signed = self.payloads.then(|| Signed {
            operator: Operator::new(self.actor.unwrap_or_default(), Role::Operator),
            reason: self.note.unwrap_or_default(),
        });
        let mut tail = Following::begin(&places, &viewer(), filter, signed.as_ref()).await?;
        eprintln!("{}: messages that the relay publishes or parks from now on", pipeline.name);
        let mut left = self.limit.unwrap_or(usize::MAX);
        let mut ended = pin!(tokio::signal::ctrl_c());
        let mut told = String::new();
        loop {
            match tail.next().await {
                Ok(lines) => {
                    told.clear();
                    for line in lines.iter().take(left) {
                        output::print(&text(line, format)?)?;
                    }
                    left = left.saturating_sub(lines.len());
                }
                // It answered before, so it may recover, and then nothing is missed.
                Err(error) => {
                    let now = error.to_string();
                    if told != now {
                        eprintln!("{now}");
                    }
                    told = now;
                }
            }
            if left == 0 {
                return Ok(Exit::Success);
            }
            tokio::select! {
                _ = &mut ended => return Ok(Exit::Success),
                () = tokio::time::sleep(LOOK_INTERVAL) => {}
            }
        }
    }
}

/// Formats a message as one line.
fn text(line: &TailLine, format: Format) -> Result<String, Failure> {
    if format == Format::Json {
        return Ok(serde_json::to_string(line).map_err(std::io::Error::from)?);
    }
    let at = seconds::text(line.enqueued_at);
    let (id, bytes, key) = (line.id, line.payload_bytes, or_dash(line.key.as_ref()));
    let told =
        format!("{at}  {id}  {}  {}  {key}  {}  {bytes} bytes", line.message_id, line.topic, line.state);
    Ok(match &line.payload {
        Some(payload) => format!("{told}  {}", one_line(payload)),
        None => told,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_cannot_steer_the_terminal() {
        assert_eq!(one_line("{\"a\": \"ä\"}\n\u{1b}[2J"), "{\"a\": \"ä\"}\\n\\u{1b}[2J");
    }
}
