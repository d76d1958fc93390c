//! A client of a payment provider that honours idempotency keys: `POST /charges` with the amount
//! and the header `Idempotency-Key`; `POST /refunds` with the same key gives the money back.

use std::time::Duration;

use anyhow::Context as _;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::handshake;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::setting::Failure;

/// For an answer. Whoever waits without end keeps a key, or a saga, for as long.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where the provider is.
#[derive(Debug, Clone)]
pub struct Provider {
    /// Its host and port.
    pub address: String,
}

/// The provider's answer is no, now and always.
#[derive(Debug)]
pub struct Declined(String);

impl std::fmt::Display for Declined {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.trim_end())
    }
}

impl std::error::Error for Declined {}

impl Provider {
    /// Asks for a charge; what the provider says of it, now or when it was first asked with this
    /// key.
    ///
    /// # Errors
    /// [`Declined`], or it is not there. Whether the charge was made is then unknown: ask again
    /// with the same key.
    pub async fn charge(&self, key: &str, cents: i64) -> Result<Bytes, Failure> {
        self.ask("/charges", key, cents.to_string()).await
    }

    /// Takes back what was charged under this key, if it was; it is not charged afterwards.
    ///
    /// # Errors
    /// It is not there. Ask again.
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
