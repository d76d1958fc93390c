//! HTTP endpoints: a server of the test that stores what is posted, with a path for each topic.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::routing::post;
use brokers::http::{Config, Connector as HttpConnector, Endpoint};
use conformance::{Foreign, Redelivery, eventually};
use message::{Connector, Subscription};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use crate::stage::Stage;
use crate::trial::{Failure, Outcome};

/// The payloads of each topic.
type Stored = Arc<Mutex<BTreeMap<String, Vec<Vec<u8>>>>>;

/// A server with the endpoints of some topics.
pub struct Http {
    stage: Stage,
    stored: Stored,
    address: String,
    _serving: AbortOnDropHandle<()>,
}

async fn store(State(stored): State<Stored>, uri: Uri, body: Bytes) -> StatusCode {
    let mut stored = stored.lock().unwrap_or_else(PoisonError::into_inner);
    match stored.get_mut(uri.path().trim_start_matches('/')) {
        Some(payloads) => {
            payloads.push(body.to_vec());
            StatusCode::NO_CONTENT
        }
        None => StatusCode::NOT_FOUND,
    }
}

impl Http {
    /// Starts a server without endpoints.
    ///
    /// # Errors
    /// There is no free port.
    pub async fn start(stage: &Stage) -> Result<Self, Failure> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = format!("http://{}", listener.local_addr()?);
        let stored = Stored::default();
        let router = Router::new().fallback(post(store)).with_state(Arc::clone(&stored));
        let serving = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::error!(%error, "the server of the test ended");
            }
        });
        Ok(Self { stage: stage.clone(), stored, address, _serving: AbortOnDropHandle::new(serving) })
    }

    fn config(&self) -> Config {
        let config = Config::default()
            .private_networks(vec![String::from("127.0.0.1")])
            .connect_timeout_ms(60_000)
            .request_timeout_ms(120_000);
        let stored = self.stored.lock().unwrap_or_else(PoisonError::into_inner);
        let topics = stored.keys();
        topics.fold(config, |config, topic| {
            config.endpoint(topic, Endpoint::new(format!("{}/{topic}", self.address)))
        })
    }
}

#[async_trait]
impl conformance::Broker for Http {
    fn topic_name(&self, prefix: &str) -> String {
        self.stage.unique(prefix)
    }

    async fn create_topic(&self, topic: &str) -> Outcome {
        let mut stored = self.stored.lock().unwrap_or_else(PoisonError::into_inner);
        stored.insert(topic.to_owned(), Vec::new());
        Ok(())
    }

    fn connector(&self) -> Result<Arc<dyn Connector>, Failure> {
        Ok(Arc::new(HttpConnector::new(&self.config())?))
    }

    fn unreachable(&self) -> Result<Arc<dyn Connector>, Failure> {
        let config = Config::new("http://127.0.0.1:1").private_networks(vec![String::from("127.0.0.1")]);
        Ok(Arc::new(HttpConnector::new(&config)?))
    }

    async fn subscribe(&self, _: &str, _: &str, _: Redelivery) -> Result<Box<dyn Subscription>, Failure> {
        Err("an HTTP endpoint has no subscriptions".into())
    }

    async fn payloads(&self, topic: &str, at_least: usize) -> Result<Vec<Vec<u8>>, Failure> {
        eventually(&format!("{at_least} messages of {topic}"), || async {
            let stored = self.stored.lock().unwrap_or_else(PoisonError::into_inner).get(topic).cloned();
            Ok(stored.filter(|payloads| payloads.len() >= at_least))
        })
        .await
    }

    async fn put(&self, _: &str, _: &Foreign) -> Outcome {
        Err("an HTTP endpoint has no producers besides the relay".into())
    }

    fn oversize_bytes(&self) -> Option<usize> {
        Some((1 << 20) + 1)
    }
}
