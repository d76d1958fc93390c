//! All captured output, and the search for secrets in it.

use std::fmt::{Debug, Display};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Log filter: our own crates in full, and client libraries as verbosely as they allow.
pub(crate) const DIRECTIVES: &str = "info,relay=trace,outbox=trace,inbox=trace,idempotency=trace,brokers=trace,migrations=trace,\
     message=trace,sqlx=trace,lapin=debug,librdkafka=trace,rdkafka=trace,aws_sdk_sqs=debug,aws_config=debug,hyper=trace,hyper_util=trace,rustls=debug";

/// Starts to capture the log of this process.
pub(crate) fn start() {
    // Excluded here as in the relay: the client library would log the payloads of returned
    // messages.
    let filter = format!("{DIRECTIVES},{}=off", brokers::rabbitmq::PAYLOAD_LOG_TARGET);
    tests::log::keep(&filter);
}

/// Recorded text, each with the place it came from.
#[derive(Default)]
pub(crate) struct Told(Vec<(String, String)>);

impl Told {
    pub(crate) fn add(&mut self, place: impl Into<String>, text: impl Into<String>) {
        self.0.push((place.into(), text.into()));
    }

    /// Adds an error, both as shown to a person and as printed by `?` in `main`.
    pub(crate) fn error(&mut self, place: &str, error: &(impl Display + Debug)) {
        self.add(place, format!("{error}\n{error:?}\n{error:#?}"));
    }

    /// Returns the places where a canary leaks, in any of the forms in which bytes are printed.
    pub(crate) fn leaks(&self, canaries: &[&str]) -> Vec<String> {
        let mut leaks = Vec::new();
        for canary in canaries {
            let bytes: Vec<String> = canary.bytes().take(12).map(|byte| byte.to_string()).collect();
            let hex: String = canary.bytes().map(|byte| format!("{byte:02x}")).collect();
            // Base64 text depends on its neighbours only at its ends. Three shifts cover the three
            // possible alignments.
            let encoded = (0..3).map(|shift| STANDARD.encode(&canary.as_bytes()[shift..])[..12].to_owned());
            let forms: Vec<String> =
                [(*canary).to_owned(), bytes.join(", "), hex].into_iter().chain(encoded).collect();
            for (place, text) in &self.0 {
                if let Some((form, at)) =
                    forms.iter().find_map(|form| Some((form, text.find(form.as_str())?)))
                {
                    let from =
                        (0..=at.saturating_sub(160)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
                    let shown: String = text[from..].chars().take(400).collect();
                    leaks.push(format!("{place} holds {canary} as {form}: …{shown}…"));
                }
            }
        }
        leaks
    }
}
