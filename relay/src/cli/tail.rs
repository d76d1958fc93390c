//! `relay tail`: messages that are being published now.

use std::pin::pin;
use std::time::Duration;

use clap::Args;
use message::{OrderingKey, Topic};
use operate::tail::{Tail as Following, TailBatch, TailFilter, TailLine};
use operate::{OperateErrorKind, Places, Signed, seconds};

use super::config::OnePipeline;
use super::exit::Exit;
use super::failure::Failure;
use super::operator::viewer;
use super::output::{self, Format, harmless_json, one_line, or_dash};
use super::signature::Signature;

/// Interval of the queries to the outbox.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// Pause after a database did not answer at the start.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

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
    #[arg(long)]
    payloads: bool,

    #[command(flatten)]
    signature: Signature,
}

impl Tail {
    pub(crate) async fn execute(self, format: Format) -> Result<Exit, Failure> {
        let signed = self.signed()?;
        let pipeline = self.pipeline.read()?;
        let places = Places::new().outbox(&pipeline);
        let filter = TailFilter {
            topic: self.topic.map(|topic| topic.as_str().to_owned()),
            key: self.key.map(|key| key.as_str().to_owned()),
        };
        let viewer = viewer();
        let mut outage = Outage::default();
        let mut ended = pin!(tokio::signal::ctrl_c());
        let mut tail = loop {
            let begun = tokio::select! {
                _ = &mut ended => return Ok(Exit::Success),
                begun = Following::begin(&places, &viewer, filter.clone(), signed.as_ref()) => begun,
            };
            match begun {
                Ok(tail) => break tail,
                Err(error) if error.kind() == OperateErrorKind::Unavailable => outage.met(&error.to_string()),
                Err(error) => return Err(error.into()),
            }
            tokio::select! {
                _ = &mut ended => return Ok(Exit::Success),
                () = tokio::time::sleep(RETRY_INTERVAL) => {}
            }
        };
        outage.over();
        note!("{}: messages that the relay publishes or parks from now on", pipeline.name);
        let mut left = self.limit.unwrap_or(usize::MAX);
        loop {
            let looked = tokio::select! {
                _ = &mut ended => return Ok(Exit::Success),
                looked = tail.next() => looked,
            };
            match looked {
                Ok(TailBatch { lines, more }) => {
                    outage.over();
                    for line in lines.iter().take(left) {
                        if !output::print_more(&text(line, format)?)? {
                            // The reader has enough (`| head`).
                            return Ok(Exit::Success);
                        }
                    }
                    left = left.saturating_sub(lines.len());
                    if more && left > 0 {
                        continue;
                    }
                }
                // It answered before, so it may recover, and then nothing is missed.
                Err(error) => outage.met(&error.to_string()),
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

    /// Returns who views payloads, and why.
    fn signed(&self) -> Result<Option<Signed>, Failure> {
        if self.payloads {
            return self.signature.signed().map(Some);
        }
        match self.signature.note {
            Some(_) => {
                Err(Failure::new(Exit::Usage, "--note is the reason for --payloads, which is missing"))
            }
            None => Ok(None),
        }
    }
}

/// An outage of the database, reported once.
#[derive(Debug, Default)]
struct Outage {
    /// The latest error.
    error: Option<String>,
}

impl Outage {
    fn met(&mut self, error: &str) {
        if self.error.as_deref() != Some(error) {
            note!("{}; waiting until it does", one_line(error));
        }
        self.error = Some(error.to_owned());
    }

    fn over(&mut self) {
        if self.error.take().is_some() {
            note!("the database answers again");
        }
    }
}

/// Formats a message as one line.
fn text(line: &TailLine, format: Format) -> Result<String, Failure> {
    if format == Format::Json {
        return Ok(harmless_json(&serde_json::to_string(line).map_err(std::io::Error::from)?));
    }
    let at = seconds::text(line.enqueued_at);
    let (id, bytes, key) = (line.id, line.payload_bytes, or_dash(line.key.as_ref()));
    let told =
        format!("{at}  {id}  {}  {}  {key}  {}  {bytes} bytes", line.message_id, line.topic, line.state);
    Ok(one_line(&match &line.payload {
        Some(payload) => format!("{told}  {payload}"),
        None => told,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(key: &str, payload: &str) -> TailLine {
        TailLine {
            enqueued_at: time::OffsetDateTime::UNIX_EPOCH,
            id: 7,
            message_id: String::from("019f0000-0000-7000-8000-00000000beef"),
            topic: String::from("orders"),
            key: Some(key.to_owned()),
            state: operate::MessageState::Published,
            payload_bytes: 12,
            payload: Some(payload.to_owned()),
        }
    }

    #[test]
    fn neither_key_nor_payload_can_steer_the_terminal_or_forge_a_line() {
        let line = line("a\n1970-01-01T00:00:00Z  8", "{\"a\": \"ä\"}\n\u{1b}[2J\u{202e}");
        let shown = text(&line, Format::Table).unwrap();
        assert_eq!(
            shown,
            "1970-01-01T00:00:00Z  7  019f0000-0000-7000-8000-00000000beef  orders  \
             a\\n1970-01-01T00:00:00Z  8  published  12 bytes  {\"a\": \"ä\"}\\n\\u{1b}[2J\\u{202e}"
        );
        let json = text(&line, Format::Json).unwrap();
        assert!(json.lines().count() == 1 && json.contains("\\u202e"), "{json}");
        let read: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(read["payload"].as_str(), line.payload.as_deref());
    }
}
