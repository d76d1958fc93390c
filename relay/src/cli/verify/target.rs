//! The inboxes to compare, named by flags.

use inbox::ConsumerName;
use operate::InboxConfig;

use super::super::exit::Exit;
use super::super::failure::Failure;

/// Reads an inbox of the command line, `CONSUMER=URL`, with defaults for all other settings.
///
/// Not a parser of clap: its error would repeat a value that may hold a password.
pub(super) fn inbox_of(flag: &str) -> Result<InboxConfig, Failure> {
    let refused = |problem: String| Failure::new(Exit::Usage, format_args!("--inbox: {problem}"));
    let Some((consumer, url)) = flag.split_once('=') else {
        return Err(refused(String::from("write CONSUMER=URL, for example billing=sqlite:billing.db")));
    };
    let consumer = ConsumerName::new(consumer).map_err(|error| refused(error.to_string()))?;
    outbox::connect::dialect_of(url).map_err(|error| refused(error.to_string()))?;
    Ok(InboxConfig::new(consumer, brokers::Secret::Text(url.into())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inbox_is_a_consumer_and_a_url() {
        let inbox = inbox_of("billing=postgres://u@db/orders?a=b").unwrap();
        assert_eq!(inbox.consumer.as_str(), "billing");
        for wrong in ["billing", "=sqlite:a.db", "billing=mysql://u:secret@db/a"] {
            let error = inbox_of(wrong).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
