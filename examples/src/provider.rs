//! A client of a payment provider that honours idempotency keys: `POST /charges` with the amount
//! and the header `Idempotency-Key`; `POST /refunds` with the same key refunds the money.

use std::time::Duration;

use anyhow::Context as _;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::handshake;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::setting::Failure;

/// How long to wait for an answer. A caller that waits without limit holds a key, or a saga, just
/// as long.
const PATIENCE: Duration = Duration::from_secs(10);

/// A payment provider.
#[derive(Debug, Clone)]
pub struct Provider {
    /// Its host and port.
    pub address: String,
}

/// The refusal of the provider, which is final.
#[derive(Debug)]
pub struct Declined(String);

impl std::fmt::Display for Declined {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.trim_end())
    }
}

impl std::error::Error for Declined {}

impl Provider {
    /// Asks for a charge. Returns the answer that the provider gives to every request with this
    /// key.
    ///
    /// # Errors
    /// [`Declined`], or the provider is not available. If it is not available, it is unknown
    /// whether the charge was made: ask again with the same key.
    pub async fn charge(&self, key: &str, cents: i64) -> Result<Bytes, Failure> {
        self.ask("/charges", key, cents.to_string()).await
    }

    /// Refunds the charge under this key, if there is one. A later charge with this key is refused.
    ///
    /// # Errors
    /// The provider is not available. Ask again.
    pub async fn refund(&self, key: &str) -> Result<(), Failure> {
        self.ask("/refunds", key, String::new()).await.map(drop)
    }

    async fn ask(&self, path: &str, key: &str, body: String) -> Result<Bytes, Failure> {
        let asked = tokio::time::timeout(PATIENCE, self.send(path, key, body)).await;
        let (status, answer) = asked.with_context(|| format!("no answer within {PATIENCE:?}"))??;
        match status {
            StatusCode::CREATED => Ok(answer),
            StatusCode::PAYMENT_REQUIRED | StatusCode::GONE | StatusCode::UNPROCESSABLE_ENTITY => {
                Err(Declined(String::from_utf8_lossy(&answer).into_owned()).into())
            }
            _ => Err(anyhow::anyhow!("the provider answered {status}")),
        }
    }

    async fn send(&self, path: &str, key: &str, body: String) -> Result<(StatusCode, Bytes), Failure> {
        let stream = TcpStream::connect(&self.address).await?;
        let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
        let connection = tokio::spawn(connection);
        let request = Request::post(path)
            .header("host", &self.address)
            .header("idempotency-key", format!("\"{key}\""))
            .body(Full::new(Bytes::from(body)))?;
        let response = sender.send_request(request).await?;
        let status = response.status();
        let answer = response.into_body().collect().await?.to_bytes();
        drop(sender);
        connection.await??;
        Ok((status, answer))
    }
}
