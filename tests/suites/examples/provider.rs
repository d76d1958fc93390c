//! A payment provider that honours idempotency keys: one charge for each, however often it is
//! asked.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use tests::{Failure, Stage};
use tokio::net::TcpListener;
use tokio::sync::watch;

/// The provider: its book, and whether it answers.
pub(crate) struct Provider {
    pub(crate) address: String,
    book: Mutex<Book>,
    answers: watch::Sender<bool>,
}

/// The requests to it, and its work.
#[derive(Debug, Default, Clone)]
pub(crate) struct Book {
    /// The charges, in their order.
    pub(crate) charges: Vec<Charge>,
    /// The key of every call, in their order.
    pub(crate) calls: Vec<String>,
}

/// Money that was taken.
#[derive(Debug, Clone)]
pub(crate) struct Charge {
    pub(crate) key: String,
    pub(crate) cents: String,
    /// The provider's answer, each time it is asked.
    pub(crate) answer: String,
}

impl Provider {
    /// A provider that listens until the test ends.
    pub(crate) async fn start(stage: &Stage) -> Result<Arc<Self>, Failure> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let provider = Arc::new(Self {
            address: listener.local_addr()?.to_string(),
            book: Mutex::default(),
            answers: watch::Sender::new(true),
        });
        let app = Router::new().route("/charges", post(charge)).with_state(Arc::clone(&provider));
        let serving = tokio::spawn(async move { axum::serve(listener, app).await });
        stage.afterwards("the provider", async move {
            serving.abort();
            Ok(())
        });
        Ok(provider)
    }

    /// Makes charges, but does not answer until it is told to.
    pub(crate) fn answer(&self, answers: bool) {
        self.answers.send_replace(answers);
    }

    /// The book as it stands.
    pub(crate) fn book(&self) -> Book {
        self.pages().clone()
    }

    fn pages(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    /// How often it was asked with a key.
    pub(crate) fn calls_with(&self, key: &str) -> usize {
        self.calls.iter().filter(|call| *call == key).count()
    }
}

async fn charge(
    State(provider): State<Arc<Provider>>,
    headers: HeaderMap,
    cents: String,
) -> (StatusCode, String) {
    let key = headers.get("idempotency-key").map_or("", |key| key.to_str().unwrap_or(""));
    let key = key.trim_matches('"').to_owned();
    let answer = {
        let mut book = provider.pages();
        book.calls.push(key.clone());
        match book.charges.iter().find(|charge| charge.key == key) {
            Some(charge) => charge.answer.clone(),
            None => {
                let answer = format!("charge {} over {cents} cents", book.charges.len() + 1);
                book.charges.push(Charge { key, cents, answer: answer.clone() });
                answer
            }
        }
    };
    let mut answers = provider.answers.subscribe();
    // The provider outlives every call, and with it the sender.
    let _ = answers.wait_for(|answers| *answers).await;
    (StatusCode::CREATED, answer)
}
