//! Clients that send one request at a time.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::handshake;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::Failure;

/// Sends this number of requests over this number of connections, each with a new key.
pub(super) async fn send(
    address: SocketAddr,
    path: &'static str,
    requests: usize,
    clients: usize,
) -> Result<(), Failure> {
    let left = Arc::new(AtomicUsize::new(requests));
    let mut running = JoinSet::new();
    for _ in 0..clients {
        running.spawn(one(address, path, Arc::clone(&left)));
    }
    while let Some(client) = running.join_next().await {
        client??;
    }
    Ok(())
}

/// Returns an order of three different articles, in ascending order.
fn order() -> Bytes {
    let [a, b, c] = [0, 3_333, 6_666].map(|from: u32| from + rand::random_range(0..3_333));
    format!(r#"{{"customer":{},"lines":[[{a},1],[{b},2],[{c},1]]}}"#, rand::random_range(0..10_000)).into()
}

async fn one(address: SocketAddr, path: &'static str, left: Arc<AtomicUsize>) -> Result<(), Failure> {
    let (mut sender, connection) = handshake(TokioIo::new(TcpStream::connect(address).await?)).await?;
    let connection = tokio::spawn(connection);
    while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
        let request = Request::post(path)
            .header("host", "127.0.0.1")
            .header("content-type", "application/json")
            .header("idempotency-key", format!("\"{}\"", uuid::Uuid::now_v7()))
            .body(Full::new(order()))?;
        sender.ready().await?;
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        if status != StatusCode::CREATED {
            return Err(format!("{path} answered {status}: {}", String::from_utf8_lossy(&body)).into());
        }
    }
    drop(sender);
    connection.await??;
    Ok(())
}
