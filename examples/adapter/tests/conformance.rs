//! The conformance suite of the toolkit on a directory.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use conformance::{Broker, Capabilities, Failure, Foreign, Outcome, Redelivery, eventually};
use directory_broker::{DirectoryConnector, DirectorySubscriber, MAX_PAYLOAD, create_topic};
use message::{Connector, Subscriber as _, Subscription};
use tempfile::TempDir;

/// One position for each group, and one member at a time: see the limits of the broker.
const CAPABILITIES: Capabilities =
    Capabilities { settles_singly: false, shares_work: false, ..Capabilities::ALL };

fn main() -> ExitCode {
    conformance::main("directory", CAPABILITIES, open)
}

async fn open() -> Result<Arc<dyn Broker>, Failure> {
    Ok(Arc::new(Directory(tempfile::tempdir()?)))
}

/// A directory for one case.
struct Directory(TempDir);

#[async_trait]
impl Broker for Directory {
    async fn create_topic(&self, topic: &str) -> Outcome {
        Ok(create_topic(self.0.path(), topic)?)
    }

    fn connector(&self) -> Result<Arc<dyn Connector>, Failure> {
        Ok(Arc::new(DirectoryConnector::new(self.0.path())))
    }

    fn unreachable(&self) -> Result<Arc<dyn Connector>, Failure> {
        Ok(Arc::new(DirectoryConnector::new(self.0.path().join("not-mounted"))))
    }

    async fn subscribe(
        &self,
        group: &str,
        topic: &str,
        _: Redelivery,
    ) -> Result<Box<dyn Subscription>, Failure> {
        Ok(DirectorySubscriber::new(self.0.path(), group, topic).subscribe().await?)
    }

    async fn payloads(&self, topic: &str, at_least: usize) -> Result<Vec<Vec<u8>>, Failure> {
        let path = self.0.path().join(format!("{topic}.log"));
        eventually("the payloads are there", || async {
            let mut payloads = Vec::new();
            for line in std::fs::read_to_string(&path)?.lines() {
                let record: serde_json::Value = serde_json::from_str(line)?;
                payloads.push(STANDARD.decode(record["payload"].as_str().ok_or("no payload")?)?);
            }
            Ok((payloads.len() >= at_least).then_some(payloads))
        })
        .await
    }

    async fn put(&self, topic: &str, foreign: &Foreign) -> Outcome {
        let mut attributes = vec![("specversion", "1.0"), ("type", "t"), ("datacontenttype", "text/plain")];
        attributes.extend(foreign.id.as_deref().map(|id| ("id", id)));
        let record = serde_json::json!({
            "attributes": attributes,
            "key": foreign.key,
            "headers": [foreign.header],
            "payload": STANDARD.encode(&foreign.payload),
        });
        let path = self.0.path().join(format!("{topic}.log"));
        Ok(writeln!(OpenOptions::new().append(true).open(path)?, "{record}")?)
    }

    fn oversize_bytes(&self) -> Option<usize> {
        Some(MAX_PAYLOAD + 1)
    }
}
