//! A payment provider that honours idempotency keys. It makes one charge for each key, however many
//! calls it gets. It declines large amounts.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use tests::{Failure, Stage};
use tokio::net::TcpListener;
use tokio::sync::watch;

/// Amounts from this one on are declined.
pub(crate) const DECLINED_CENTS: i64 = 1_000_000;

/// The provider: its book, and whether it answers.
pub(crate) struct Provider {
    pub(crate) address: String,
    book: Mutex<Book>,
    answers: watch::Sender<bool>,
}

/// Its charges, and the requests to it.
#[derive(Debug, Default, Clone)]
pub(crate) struct Book {
    /// Charges, in order.
    pub(crate) charges: Vec<Charge>,
    /// Keys of all calls, in order.
    pub(crate) calls: Vec<String>,
}

/// A charge.
#[derive(Debug, Clone)]
pub(crate) struct Charge {
    pub(crate) key: String,
    pub(crate) cents: String,
    /// The provider's answer to every call with this key.
    pub(crate) answer: String,
}

impl Provider {
    /// Starts a provider that listens until the test ends.
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

    /// Sets whether the provider answers. While it does not, it makes charges but withholds the
    /// answers.
    pub(crate) fn answer(&self, answers: bool) {
        self.answers.send_replace(answers);
    }

    /// Returns a copy of the book.
    pub(crate) fn book(&self) -> Book {
        self.pages().clone()
    }

    fn pages(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    /// Returns how often the provider was called with a key.
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
        if cents.parse().is_ok_and(|cents: i64| cents >= DECLINED_CENTS) {
            return (StatusCode::PAYMENT_REQUIRED, String::from("the card was declined"));
        }
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
    // The sender cannot have been dropped, because the provider outlives every call.
    let _ = answers.wait_for(|answers| *answers).await;
    (StatusCode::CREATED, answer)
}
