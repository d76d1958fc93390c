//! A client of a payment provider that honours idempotency keys: `POST /charges` with the amount
//! and the header `Idempotency-Key`.

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::handshake;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::setting::Failure;

/// Where the provider is.
#[derive(Debug, Clone)]
pub struct Provider {
    /// Its host and port.
    pub address: String,
}

impl Provider {
    /// Asks for a charge; what the provider says of it, now or when it was first asked with this
    /// key.
    ///
    /// # Errors
    /// It is not there, or refused. Whether the charge was made is then unknown: ask again with the
    /// same key.
    pub async fn charge(&self, key: &str, cents: i64) -> Result<Bytes, Failure> {
        let stream = TcpStream::connect(&self.address).await?;
        let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
        let connection = tokio::spawn(connection);
        let request = Request::post("/charges")
            .header("host", &self.address)
            .header("idempotency-key", format!("\"{key}\""))
            .body(Full::new(Bytes::from(cents.to_string())))?;
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        drop(sender);
        connection.await??;
        if status == StatusCode::CREATED {
            Ok(body)
        } else {
            Err(anyhow::anyhow!("the provider answered {status}"))
        }
    }
}
