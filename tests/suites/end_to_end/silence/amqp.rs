//! A proxy before RabbitMQ that keeps the confirms for one routing key back.
//!
//! It reads the frames that pass: a publish says which routing key its channel is busy with, and a confirm belongs to the
//! channel it comes on. So it needs channels that publish for one routing key at a time.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tests::Failure;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// AMQP 0-9-1: a method frame; its class and method for publishing and for both kinds of confirm.
const METHOD: u8 = 1;
const PUBLISH: (u16, u16) = (60, 40);
const ACK: (u16, u16) = (60, 80);
const NACK: (u16, u16) = (60, 120);

/// The proxy; it stops when this is dropped.
pub(crate) struct AmqpProxy {
    address: SocketAddr,
    silent: watch::Sender<bool>,
    _accepting: JoinSet<()>,
}

impl AmqpProxy {
    pub(crate) async fn start(server: &str, routing_key: &str) -> Result<Self, Failure> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let (silent, is_silent) = watch::channel(false);
        let (server, routing_key) = (server.to_owned(), routing_key.to_owned());
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(&server).await else { continue };
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                let channels = Channels::default();
                let silenced = Silenced { routing_key: routing_key.clone(), is_silent: is_silent.clone() };
                connections.spawn(requests(from_client, to_server, Arc::clone(&channels)));
                connections.spawn(answers(from_server, to_client, channels, silenced));
            }
        });
        Ok(Self { address, silent, _accepting: accepting })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Keeps confirms back from now on, or lets those that were kept back go.
    pub(crate) fn silence(&self, is_silent: bool) {
        self.silent.send_replace(is_silent);
    }
}

/// The routing key that each channel last published with.
type Channels = Arc<Mutex<HashMap<u16, String>>>;

struct Silenced {
    routing_key: String,
    is_silent: watch::Receiver<bool>,
}

/// A frame as it came.
struct Frame(Vec<u8>);

impl Frame {
    async fn read(from: &mut OwnedReadHalf) -> Option<Self> {
        let mut bytes = vec![0; 7];
        from.read_exact(&mut bytes).await.ok()?;
        let payload = u32::from_be_bytes(bytes[3..7].try_into().ok()?);
        // The payload, and the byte that ends every frame.
        bytes.resize(7 + payload as usize + 1, 0);
        from.read_exact(&mut bytes[7..]).await.ok()?;
        Some(Self(bytes))
    }

    fn channel(&self) -> u16 {
        u16::from_be_bytes([self.0[1], self.0[2]])
    }

    fn method(&self) -> Option<(u16, u16)> {
        let payload = self.0.get(7..11).filter(|_| self.0[0] == METHOD)?;
        Some((u16::from_be_bytes([payload[0], payload[1]]), u16::from_be_bytes([payload[2], payload[3]])))
    }

    /// Of a publish: behind class, method and a reserved number stand the exchange and the routing key.
    fn routing_key(&self) -> Option<String> {
        let exchange_len = usize::from(*self.0.get(13)?);
        let at = 14 + exchange_len;
        let key_len = usize::from(*self.0.get(at)?);
        String::from_utf8(self.0.get(at + 1..at + 1 + key_len)?.to_vec()).ok()
    }
}

async fn requests(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, channels: Channels) {
    let mut protocol = [0; 8];
    if from.read_exact(&mut protocol).await.is_err() || to.write_all(&protocol).await.is_err() {
        return;
    }
    while let Some(frame) = Frame::read(&mut from).await {
        if frame.method() == Some(PUBLISH)
            && let Some(key) = frame.routing_key()
        {
            channels.lock().unwrap_or_else(PoisonError::into_inner).insert(frame.channel(), key);
        }
        if to.write_all(&frame.0).await.is_err() {
            return;
        }
    }
}

async fn answers(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    channels: Channels,
    mut silenced: Silenced,
) {
    let mut kept = Vec::new();
    // A frame is read by a task of its own: half of one must not get lost when the silence ends.
    let (frames, mut frames_out) = tokio::sync::mpsc::channel(64);
    let _reading = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(async move {
        while let Some(frame) = Frame::read(&mut from).await {
            if frames.send(frame).await.is_err() {
                return;
            }
        }
    }));
    loop {
        tokio::select! {
            biased;
            frame = frames_out.recv() => {
                let Some(frame) = frame else { return };
                let is_confirm = matches!(frame.method(), Some(ACK | NACK));
                let key = channels.lock().unwrap_or_else(PoisonError::into_inner).get(&frame.channel()).cloned();
                if is_confirm && *silenced.is_silent.borrow() && key.as_ref() == Some(&silenced.routing_key) {
                    kept.push(frame);
                } else if to.write_all(&frame.0).await.is_err() {
                    return;
                }
            }
            changed = silenced.is_silent.changed() => {
                if changed.is_err() {
                    return;
                }
                if !*silenced.is_silent.borrow() {
                    for frame in kept.drain(..) {
                        if to.write_all(&frame.0).await.is_err() {
                            return;
                        }
                    }
                }
            }
        }
    }
}
