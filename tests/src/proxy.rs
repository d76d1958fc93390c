//! A connection that loses its answers on demand.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::trial::{Failure, Outcome};

/// Forwards connections to a server; it ends when this is dropped.
pub struct Proxy {
    address: String,
    silent: watch::Sender<bool>,
    _accepting: JoinSet<()>,
}

impl Proxy {
    /// A proxy in front of `host:port`.
    ///
    /// # Errors
    /// No port could be opened.
    pub async fn start(server: &str) -> Result<Self, Failure> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let (silent, silenced) = watch::channel(false);
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, server.to_owned(), silenced));
        Ok(Self { address, silent, _accepting: accepting })
    }

    /// Where it listens: `host:port`.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// From now on requests still reach the server, and its answers reach nobody.
    pub fn lose_answers(&self) {
        self.silent.send_replace(true);
    }
}

async fn accept(listener: TcpListener, server: String, silenced: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let (server, silenced) = (server.clone(), silenced.clone());
        // A connection that breaks is what its two ends have to notice.
        connections.spawn(async move { drop(forward(client, &server, silenced).await) });
    }
}

async fn forward(client: TcpStream, server: &str, silenced: watch::Receiver<bool>) -> Outcome {
    let (mut requests, mut to_client) = client.into_split();
    let (mut answers, mut to_server) = TcpStream::connect(server).await?.into_split();
    let back = async {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let count = answers.read(&mut buffer).await?;
            if count == 0 {
                return Ok::<(), std::io::Error>(());
            }
            if !*silenced.borrow() {
                to_client.write_all(&buffer[..count]).await?;
            }
        }
    };
    tokio::select! {
        copied = copy(&mut requests, &mut to_server) => drop(copied?),
        ended = back => ended?,
    }
    Ok(())
}
