//! A proxy in front of RabbitMQ that withholds the confirms for one routing key.
//!
//! It reads the frames that pass. A publish shows the routing key that its channel uses, and a
//! confirm belongs to its channel. So the proxy needs channels that publish for only one routing
//! key at a time. Confirms of a closed channel are never released, because another channel may have
//! its number by then.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

/// AMQP 0-9-1: a method frame; class and method of a publish, of both kinds of confirm, and of the
/// end of a channel, from the server and from the client.
const METHOD: u8 = 1;
const PUBLISH: (u16, u16) = (60, 40);
const ACK: (u16, u16) = (60, 80);
const NACK: (u16, u16) = (60, 120);
const CHANNEL_CLOSE: (u16, u16) = (20, 40);
const CHANNEL_CLOSED: (u16, u16) = (20, 41);
/// Maximum number of frames of one connection that wait to be passed on.
const FRAMES_MAX: usize = 64;

/// The proxy. Dropping it stops the proxy.
#[derive(Debug)]
pub struct AmqpProxy {
    address: SocketAddr,
    silent: watch::Sender<bool>,
    _accepting: JoinSet<()>,
}

impl AmqpProxy {
    /// Listens on a free port of this machine and connects every client to `server` (`host:port`).
    ///
    /// # Errors
    /// No port is free.
    pub async fn start(server: impl Into<String>, routing_key: impl Into<String>) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let (silent, is_silent) = watch::channel(false);
        let (server, routing_key) = (server.into(), routing_key.into());
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    // An error of `accept` concerns a single client, or is a temporary lack of file
                    // descriptors.
                    accepted = listener.accept() => if let Ok((client, _)) = accepted {
                        let silenced = Silenced { routing_key: routing_key.clone(), is_silent: is_silent.clone() };
                        connections.spawn(serve(client, server.clone(), silenced));
                    },
                    Some(_) = connections.join_next() => {}
                }
            }
        });
        Ok(Self { address, silent, _accepting: accepting })
    }

    /// Returns the address at which the proxy listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Withholds confirms from now on, or releases the withheld confirms.
    pub fn silence(&self, is_silent: bool) {
        self.silent.send_replace(is_silent);
    }
}

/// Forwards frames both ways until either end disconnects, and then closes both.
async fn serve(client: TcpStream, server: String, silenced: Silenced) {
    let Ok(server) = TcpStream::connect(&server).await else { return };
    // The proxy should add no latency. If the option is refused, everything else still works.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let channels = Channels::default();
    // A separate task reads frames, because the end of a silence must not interrupt a half-read
    // frame.
    let (frames, arrived) = mpsc::channel(FRAMES_MAX);
    tokio::select! {
        () = requests(from_client, to_server, Arc::clone(&channels)) => {}
        () = read(from_server, frames) => {}
        () = answers(arrived, to_client, channels, silenced) => {}
    }
}

/// The routing key with which each channel published last.
type Channels = Arc<Mutex<HashMap<u16, String>>>;

struct Silenced {
    routing_key: String,
    is_silent: watch::Receiver<bool>,
}

impl Silenced {
    /// Returns whether this is a confirm that must be withheld now.
    fn concerns(&self, frame: &Frame, channels: &Channels) -> bool {
        let key = || channels.lock().unwrap_or_else(PoisonError::into_inner).get(&frame.channel()).cloned();
        *self.is_silent.borrow()
            && matches!(frame.method(), Some(ACK | NACK))
            && key().as_ref() == Some(&self.routing_key)
    }
}

/// A frame in its original bytes.
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

    /// Returns the routing key of a publish. The exchange and the routing key follow class, method
    /// and a reserved number.
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

async fn read(mut from: OwnedReadHalf, frames: mpsc::Sender<Frame>) {
    while let Some(frame) = Frame::read(&mut from).await {
        if frames.send(frame).await.is_err() {
            return;
        }
    }
}

async fn answers(
    mut arrived: mpsc::Receiver<Frame>,
    mut to: OwnedWriteHalf,
    channels: Channels,
    mut silenced: Silenced,
) {
    let mut kept: Vec<Frame> = Vec::new();
    loop {
        tokio::select! {
            biased;
            frame = arrived.recv() => {
                let Some(frame) = frame else { return };
                if matches!(frame.method(), Some(CHANNEL_CLOSE | CHANNEL_CLOSED)) {
                    kept.retain(|confirm| confirm.channel() != frame.channel());
                }
                if silenced.concerns(&frame, &channels) {
                    kept.push(frame);
                } else if to.write_all(&frame.0).await.is_err() {
                    return;
                }
            }
            changed = silenced.is_silent.changed() => {
                if changed.is_err() {
                    return;
                }
                let let_go = if *silenced.is_silent.borrow() { Vec::new() } else { std::mem::take(&mut kept) };
                for frame in let_go {
                    if to.write_all(&frame.0).await.is_err() {
                        return;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHANNEL: u16 = 1;

    /// Returns a method frame with these arguments.
    fn frame((class, method): (u16, u16), arguments: &[u8]) -> Vec<u8> {
        let payload = [&class.to_be_bytes()[..], &method.to_be_bytes(), arguments].concat();
        let len = u32::try_from(payload.len()).unwrap_or_default();
        [&[METHOD][..], &CHANNEL.to_be_bytes(), &len.to_be_bytes(), &payload, &[0xce]].concat()
    }

    /// Returns a publish: a reserved number, an exchange, a routing key.
    fn publish(key: &str) -> Vec<u8> {
        let key_len = u8::try_from(key.len()).unwrap_or_default();
        frame(PUBLISH, &[&[0, 0, 2, b'e', b'x', key_len][..], key.as_bytes(), &[0]].concat())
    }

    /// Returns a proxy between a client and its server, after a publish with this key.
    async fn published(key: &str) -> io::Result<(AmqpProxy, TcpStream, TcpStream)> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let proxy = AmqpProxy::start(listener.local_addr()?.to_string(), "silent").await?;
        let mut client = TcpStream::connect(proxy.address()).await?;
        let (mut server, _) = listener.accept().await?;
        let sent = [&b"AMQP\0\0\x09\x01"[..], &publish(key)].concat();
        client.write_all(&sent).await?;
        let mut arrived = vec![0; sent.len()];
        server.read_exact(&mut arrived).await?;
        assert_eq!(arrived, sent);
        Ok((proxy, client, server))
    }

    async fn assert_arrives(client: &mut TcpStream, frame: &[u8]) -> io::Result<()> {
        let mut arrived = vec![0; frame.len()];
        client.read_exact(&mut arrived).await?;
        assert_eq!(arrived, frame);
        Ok(())
    }

    #[tokio::test]
    async fn confirms_of_one_key_are_kept_and_let_go() -> io::Result<()> {
        let (ack, nack) = (frame(ACK, &[1]), frame(NACK, &[2]));
        let other = frame((60, 50), &[]);
        let (proxy, mut client, mut server) = published("silent").await?;
        proxy.silence(true);
        server.write_all(&[&ack[..], &other, &nack].concat()).await?;
        assert_arrives(&mut client, &other).await?;
        proxy.silence(false);
        assert_arrives(&mut client, &[ack.clone(), nack].concat()).await?;
        let (proxy, mut client, mut server) = published("loud").await?;
        proxy.silence(true);
        server.write_all(&ack).await?;
        assert_arrives(&mut client, &ack).await
    }

    #[tokio::test]
    async fn confirms_of_a_closed_channel_are_never_let_go() -> io::Result<()> {
        let (ack, closed) = (frame(ACK, &[1]), frame(CHANNEL_CLOSED, &[]));
        let (proxy, mut client, mut server) = published("silent").await?;
        proxy.silence(true);
        server.write_all(&[&ack[..], &closed].concat()).await?;
        assert_arrives(&mut client, &closed).await?;
        proxy.silence(false);
        // A released frame would have arrived by then, before the next frame.
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        server.write_all(&closed).await?;
        assert_arrives(&mut client, &closed).await
    }
}
