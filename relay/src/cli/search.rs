//! `relay search`: messages by topic, key or header, newest first.

use clap::Args;
use operate::Places;
use operate::replay::Moment;
use operate::search::{HeaderIs, Search as Asked, SearchResult, SearchedPart, search};
use operate::seconds;

use super::config::{ConfigFile, find};
use super::exit::Exit;
use super::failure::{Failure, first};
use super::hint;
use super::operator::viewer;
use super::output::{Format, Table, or_dash};
use super::progress::during;

/// The arguments of `relay search`.
#[derive(Debug, Args)]
pub struct Search {
    #[command(flatten)]
    config: ConfigFile,

    /// Only this pipeline.
    #[arg(long, value_name = "NAME")]
    pipeline: Option<String>,

    /// Only messages of this topic.
    #[arg(long, value_name = "TOPIC")]
    topic: Option<String>,

    /// Only messages with this ordering key.
    #[arg(long, value_name = "KEY")]
    key: Option<String>,

    /// Only messages with this header. Name and value are compared exactly.
    #[arg(long, value_name = "NAME=VALUE", value_parser = header)]
    header: Option<HeaderIs>,

    /// Only messages created before this time, by the time in their ids. An age (2h, 7d) or a time
    /// (2026-01-31T12:00:00Z).
    #[arg(long, value_name = "WHEN")]
    until: Option<Moment>,

    /// Only messages below this position in the log, to continue a search.
    #[arg(long, value_name = "ID")]
    below: Option<i64>,

    /// Maximum number of messages from each pipeline.
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    limit: u32,
}

impl Search {
    pub(crate) async fn execute(self, format: Format) -> Result<Exit, Failure> {
        let config = self.config.read()?;
        let pipelines = match &self.pipeline {
            Some(name) => vec![find(&config, name)?],
            None => config.pipelines.iter().collect(),
        };
        let places = pipelines.into_iter().fold(Places::new(), Places::outbox);
        let asked = Asked {
            topic: self.topic.clone(),
            key: self.key.clone(),
            header: self.header.clone(),
            until: self.until,
            below: self.below,
            limit: self.limit,
        };
        let found = during("searching", search(&places, &viewer(), &asked)).await?;
        format.print(&found, |found| self.text(found))?;
        // An unreachable database does not hide the findings of the others.
        let failure = found.away.into_iter().map(Failure::from).fold(None, first);
        failure.map_or(Ok(Exit::Success), Err)
    }

    fn text(&self, found: &SearchResult) -> String {
        let mut parts = Vec::new();
        if found.messages.is_empty() {
            parts.push(found.none_text().to_owned());
        } else {
            parts.push(rows(found));
        }
        let told = found.searched.iter().map(|part| match part.below {
            None => part.told(),
            Some(below) => format!("{}; continue: {}", part.told(), self.next(part, below)),
        });
        parts.push(told.collect::<Vec<_>>().join("\n"));
        parts.join("\n\n")
    }

    /// Returns the command that continues a search.
    fn next(&self, part: &SearchedPart, below: i64) -> String {
        let header = self.header.as_ref().map(|header| format!("{}={}", header.name, header.value));
        let below = below.to_string();
        let limit = self.limit.to_string();
        let options = [
            ("--topic", self.topic.as_deref()),
            ("--key", self.key.as_deref()),
            ("--header", header.as_deref()),
            ("--limit", Some(limit.as_str()).filter(|limit| *limit != "20")),
            ("--pipeline", Some(part.pipeline.as_str())),
            ("--below", Some(below.as_str())),
        ];
        let mut words = vec!["search"];
        let mut dashed = Vec::new();
        for (name, value) in options.into_iter().filter_map(|(name, value)| Some((name, value?))) {
            // A value that begins with a dash must be in one word with its option.
            if value.starts_with('-') {
                dashed.push(format!("{name}={value}"));
            } else {
                words.extend([name, value]);
            }
        }
        words.extend(dashed.iter().map(String::as_str));
        hint::command(&words)
    }
}

/// Parses a header of the command line.
fn header(text: &str) -> Result<HeaderIs, String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    Ok(HeaderIs { name: name.to_owned(), value: value.to_owned() })
}

fn rows(found: &SearchResult) -> String {
    let rows = found.messages.iter().map(|message| {
        [
            seconds::text(message.enqueued_at),
            message.pipeline.clone(),
            message.id.to_string(),
            message.message_id.clone(),
            message.topic.clone(),
            or_dash(message.key.as_ref()),
            message.kind.clone(),
            message.state.to_string(),
            message.payload_bytes.to_string(),
        ]
    });
    let headers = ["enqueued", "pipeline", "id", "message id", "topic", "key", "kind", "state", "bytes"];
    Table::new(headers, rows).optional(&["bytes", "kind", "pipeline"]).shown()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_a_name_and_the_rest_of_the_text() {
        let is = |name: &str, value: &str| HeaderIs { name: name.to_owned(), value: value.to_owned() };
        assert_eq!(header("tenant=acme"), Ok(is("tenant", "acme")));
        assert_eq!(header("query=a=b "), Ok(is("query", "a=b ")));
        assert_eq!(header("empty="), Ok(is("empty", "")));
        assert!(header("tenant").unwrap_err().contains("NAME=VALUE"));
    }

    #[test]
    fn the_command_that_continues_a_search_has_its_conditions() {
        let asked = Search {
            config: ConfigFile::default(),
            pipeline: None,
            topic: None,
            key: Some(String::from("order 7")),
            header: header("tenant=it's").ok(),
            until: None,
            below: None,
            limit: 20,
        };
        let part = SearchedPart {
            pipeline: String::from("orders"),
            searched: 20_000,
            of_about: 1_000_000,
            back_to: Some(time::OffsetDateTime::UNIX_EPOCH),
            below: Some(980_001),
        };
        let words = shlex::split(&asked.next(&part, 980_001)).unwrap();
        let expected = [
            "relay",
            "search",
            "--key",
            "order 7",
            "--header",
            "tenant=it's",
            "--pipeline",
            "orders",
            "--below",
        ];
        assert_eq!(words[..9], expected);
        let dashed = Search { key: Some(String::from("-x")), ..asked };
        let words = shlex::split(&dashed.next(&part, 980_001)).unwrap();
        assert_eq!(words[2..4], ["--header", "tenant=it's"]);
        assert!(words.contains(&String::from("--key=-x")), "clap takes no value with a dash: {words:?}");
        let asked = Search { key: None, ..dashed };
        let result = SearchResult { searched: vec![part], ..SearchResult::default() };
        let text = asked.text(&result);
        assert!(
            text.starts_with("nothing found so far: continue the search for older messages\n\norders: searched 20000 of about"),
            "{text}"
        );
        assert!(text.contains("; continue: relay search"), "{text}");
    }
}
