//! Batches that arrive damaged, as from a broken disk or over a network without TLS.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use message::SubscriptionError;

use super::consume::{MANY, done, numbered, payloads, reached, reader, receive};
use super::*;

/// Places in a batch, after its first offset (KIP-98): length, format, codec.
const LENGTH: usize = 8;
const FORMAT: usize = 16;
const CODEC: usize = 22;
const HEADER: usize = 61;
const LZ4: u8 = 3;

/// Damage to a batch.
#[derive(Debug, Clone, Copy)]
pub(in crate::kafka) enum Harm {
    /// It names a format that does not exist.
    Format,
    /// It claims to be compressed.
    Codec,
}

/// A network between clients and a mock cluster of one broker. It damages one batch whenever a
/// client fetches it.
pub(in crate::kafka) struct Network {
    address: SocketAddr,
    damaged: Arc<Mutex<Option<(i64, Harm)>>>,
}

impl Network {
    /// Starts a proxy in front of this cluster. It ends with the process.
    pub(in crate::kafka) fn to(mock: &Mock) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let broker: SocketAddr = mock.bootstrap_servers()[0].parse().unwrap();
        let network = Self { address, damaged: Arc::default() };
        let damaged = Arc::clone(&network.damaged);
        let ports = [broker.port(), address.port()];
        thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.unwrap();
                let Ok(broker) = TcpStream::connect(broker) else { continue };
                let mut requests = client.try_clone().unwrap();
                let mut sink = broker.try_clone().unwrap();
                thread::spawn(move || io::copy(&mut requests, &mut sink));
                let damaged = Arc::clone(&damaged);
                // Either side may leave.
                thread::spawn(move || answers(broker, client, &damaged, ports));
            }
        });
        network
    }

    /// Returns the settings of a client that uses this network.
    pub(in crate::kafka) fn config(&self) -> Config {
        Config::new([self.address.to_string()])
    }

    /// Damages the batch that begins at this offset from now on.
    pub(in crate::kafka) fn damage(&self, offset: i64, harm: Harm) {
        *self.damaged.lock().unwrap() = Some((offset, harm));
    }

    /// Damages nothing from now on.
    fn heal(&self) {
        *self.damaged.lock().unwrap() = None;
    }
}

/// Passes a broker's answers on.
fn answers(
    mut broker: TcpStream,
    mut client: TcpStream,
    damaged: &Mutex<Option<(i64, Harm)>>,
    [from, to]: [u16; 2],
) -> io::Result<()> {
    loop {
        let mut size = [0; 4];
        broker.read_exact(&mut size)?;
        let mut answer = vec![0; u32::from_be_bytes(size) as usize];
        broker.read_exact(&mut answer)?;
        // The broker advertises its own address.
        let advertised = |port: u16| [b"127.0.0.1".as_slice(), &u32::from(port).to_be_bytes()].concat();
        let own = advertised(from);
        let other = advertised(to);
        for at in 0..=answer.len().saturating_sub(own.len()) {
            if answer[at..].starts_with(&own) {
                answer[at..at + own.len()].copy_from_slice(&other);
            }
        }
        if let Some((offset, harm)) = *damaged.lock().unwrap() {
            spoil(&mut answer, offset, harm);
        }
        client.write_all(&[size.as_slice(), &answer].concat())?;
    }
}

/// Damages the batch that begins at this offset, if the answer contains it.
fn spoil(answer: &mut [u8], offset: i64, harm: Harm) {
    for at in 0..(answer.len() + 1).saturating_sub(HEADER) {
        let batch = &mut answer[at..];
        let rest = batch.len();
        let length = u32::from_be_bytes(batch[LENGTH..LENGTH + 4].try_into().unwrap()) as usize;
        let is_whole = (HEADER..=rest).contains(&length.saturating_add(LENGTH + 4));
        if batch.starts_with(&offset.to_be_bytes()) && is_whole && batch[FORMAT] == 2 {
            match harm {
                Harm::Format => batch[FORMAT] = 3,
                Harm::Codec => batch[CODEC] |= LZ4,
            }
        }
    }
}

/// Receives until the subscription ends. Nothing more must arrive.
async fn end(subscription: &mut Box<dyn message::Subscription>) -> SubscriptionError {
    let ends = async {
        loop {
            match subscription.receive(MANY, LONG).await {
                Ok(more) => assert_eq!(payloads(&more), [""; 0], "it lies behind the damage"),
                Err(error) => return error,
            }
        }
    };
    tokio::time::timeout(LONG, ends).await.expect("it ends")
}

/// Goal: a damaged batch is not skipped, and the messages before it take effect. Oracle: the
/// arrivals, the committed offset, and the arrivals once the batch can be read.
async fn not_passed_over(harm: Harm) {
    let (mock, config) = cluster(1);
    for n in 0..3 {
        publish(&config, numbered(n..n + 1)).await;
    }
    let network = Network::to(&mock);
    network.damage(1, harm);
    for is_first in [true, false] {
        let mut subscription = reader(&network.config()).await;
        if is_first {
            let received = receive(&mut subscription, 1).await;
            assert_eq!(payloads(&received), ["0"]);
            subscription.settle(received.iter().map(done).collect()).await.unwrap();
        }
        let error = end(&mut subscription).await;
        assert!(error.to_string().contains("not skipped"), "{error}");
        drop(subscription);
        reached(&config, &[1]).await;
    }
    network.heal();
    let mut subscription = reader(&network.config()).await;
    assert_eq!(payloads(&receive(&mut subscription, 2).await), ["1", "2"]);
}

#[tokio::test]
async fn a_batch_of_an_unknown_format_is_not_passed_over() {
    not_passed_over(Harm::Format).await;
}

#[tokio::test]
async fn a_batch_that_cannot_be_decompressed_ends_the_subscription() {
    not_passed_over(Harm::Codec).await;
}
