//! A TCP proxy whose connections can be cut: how a broker that somebody else runs goes away for a moment.

use std::io;
use std::net::SocketAddr;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A running proxy; it stops when this is dropped.
#[derive(Debug)]
pub(crate) struct Proxy {
    address: SocketAddr,
    up: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Listens on a free port of this machine and connects every client to `upstream` (`host:port`).
    pub(crate) async fn start(upstream: String) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let (up, state) = watch::channel(true);
        let task = tokio::spawn(serve(listener, upstream, state));
        Ok(Self { address, up, task })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts every connection, and drops new ones at once.
    pub(crate) fn down(&self) {
        self.up.send_replace(false);
    }

    /// Connects again.
    pub(crate) fn up(&self) {
        self.up.send_replace(true);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Connections end with the sender of their state.
        self.task.abort();
    }
}

async fn serve(listener: TcpListener, upstream: String, state: watch::Receiver<bool>) {
    // An error of `accept` concerns one client (or a lack of file descriptors, which passes).
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        if *state.borrow() {
            tokio::spawn(forward(client, upstream.clone(), state.clone()));
        }
    }
}

async fn forward(mut client: TcpStream, upstream: String, mut state: watch::Receiver<bool>) {
    let Ok(mut server) = TcpStream::connect(&upstream).await else { return };
    // Latency as without a proxy; a refusal changes nothing else.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    tokio::select! {
        // How it ended is the business of client and server.
        _ = copy_bidirectional(&mut client, &mut server) => {}
        _ = state.wait_for(|up| !up) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn a_cut_ends_connections_and_refuses_new_ones_until_it_is_over() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstream = server.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = server.accept().await {
                tokio::spawn(async move { client.write_all(b"hello").await });
            }
        });
        let proxy = Proxy::start(upstream).await.unwrap();
        let mut hello = [0; 5];
        TcpStream::connect(proxy.address()).await.unwrap().read_exact(&mut hello).await.unwrap();
        assert_eq!(&hello, b"hello");
        proxy.down();
        let refused = async {
            let mut client = TcpStream::connect(proxy.address()).await?;
            client.read_exact(&mut hello).await
        };
        assert!(refused.await.is_err());
        proxy.up();
        TcpStream::connect(proxy.address()).await.unwrap().read_exact(&mut hello).await.unwrap();
    }
}
