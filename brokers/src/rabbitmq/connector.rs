//! Opens publishing sessions.

use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use lapin::Error;
use lapin::options::ExchangeDeclareOptions;
use lapin::types::{FieldTable, ShortString};
use message::{CONNECT_MAX_DEFAULT, PublishError, Publisher, Receipts, Unrouted};

use super::alarms::BLOCKED;
use super::backlog::Backlog;
use super::config::{Config, invalid};
use super::connection::Connection;
use super::endpoint::Endpoint;
use super::lane::{Lane, Session};
use super::publisher::RabbitmqPublisher;
use super::unrouted::Unlistened;
use super::window::WindowLimit;
use super::wire::Bounds;
use crate::settings::InvalidSetting;

/// Initial lanes per connection; more are opened while topics wait.
const LANES_PER_CONNECTION: usize = 2;

/// Maximum windows of one topic in flight, per connection: while one waits for its last confirms,
/// others are published.
const WINDOWS_PER_TOPIC: usize = 4;

/// Maximum payload bytes of one window: bounds the bytes that the client library copies into
/// frames.
const WINDOW_BYTES_MAX: usize = 8 << 20;

/// Opens publishing sessions with one RabbitMQ broker or cluster.
pub struct Connector {
    endpoint: Endpoint,
    exchange: ShortString,
    unlistened: Arc<Unlistened>,
    app_id: Option<ShortString>,
    connections: usize,
    payload_bytes_max: usize,
    window_messages_max: usize,
    confirm_timeout: Duration,
    /// Those of the current session.
    opened: Mutex<Vec<Weak<Connection>>>,
}

impl Connector {
    /// Creates a connector with these settings. Does not connect yet.
    ///
    /// # Errors
    /// [`InvalidSetting`] with the setting, its value and the accepted values.
    pub fn new(config: &Config) -> Result<Self, InvalidSetting> {
        let short = |setting: &str, text: &String| {
            ShortString::try_new(text.as_str()).map_err(|error| invalid(setting, error.to_string()))
        };
        let endpoint = Endpoint::new(config)?;
        endpoint.warn();
        Ok(Self {
            endpoint,
            exchange: short("exchange", &config.exchange)?,
            unlistened: Arc::new(Unlistened::new(config)),
            app_id: config.app_id.as_ref().map(|app_id| short("app_id", app_id)).transpose()?,
            connections: config.connections,
            payload_bytes_max: config.payload_bytes_max,
            window_messages_max: config.window_messages_max,
            confirm_timeout: Duration::from_millis(config.confirm_timeout_ms),
            opened: Mutex::default(),
        })
    }

    /// Reports a missing exchange here, before it costs a window.
    async fn check_exchange(&self, connection: &Connection) -> Result<(), Error> {
        if self.exchange.as_str().is_empty() {
            return Ok(());
        }
        let channel = connection.channel().await?;
        let passive = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
        // The kind is ignored in a passive declaration.
        let kind = lapin::ExchangeKind::default();
        let declared = channel.exchange_declare(self.exchange.clone(), kind, passive, FieldTable::default());
        connection.ask(declared).await?;
        connection.finish(&channel).await;
        Ok(())
    }
}

#[async_trait]
impl message::Connector for Connector {
    fn destination(&self) -> &str {
        self.endpoint.destination()
    }

    async fn connect(&self, receipts: Receipts) -> Result<Box<dyn Publisher>, PublishError> {
        let mut connections = Vec::with_capacity(self.connections);
        for _ in 0..self.connections {
            connections.push(Arc::new(self.endpoint.open("publisher").await?));
        }
        *self.opened.lock().unwrap_or_else(PoisonError::into_inner) =
            connections.iter().map(Arc::downgrade).collect();
        let frame_bytes_max = connections.iter().filter_map(|connection| connection.frame_bytes_max()).min();
        if let Some(connection) = connections.first() {
            self.endpoint.in_time(self.check_exchange(connection)).await?;
        }
        let limit = WindowLimit { messages_max: self.window_messages_max, bytes_max: WINDOW_BYTES_MAX };
        let session = Arc::new(Session {
            backlog: Backlog::new(limit, WINDOWS_PER_TOPIC * connections.len()),
            confirmed_at: Mutex::default(),
            published: Mutex::default(),
            broken: OnceLock::new(),
            exchange: self.exchange.clone(),
            unlistened: Arc::clone(&self.unlistened),
            app_id: self.app_id.clone(),
            bounds: Bounds {
                payload_bytes_max: self.payload_bytes_max,
                frame_bytes_max: frame_bytes_max.unwrap_or(usize::MAX),
            },
            confirm_timeout: self.confirm_timeout,
        });
        let mut lanes = Vec::new();
        for connection in &connections {
            for _ in 0..LANES_PER_CONNECTION {
                let lane = Lane::open(session.clone(), connection.clone());
                lanes.push(self.endpoint.in_time(lane).await?);
            }
        }
        let batch_len = self.window_messages_max * WINDOWS_PER_TOPIC * connections.len();
        Ok(Box::new(RabbitmqPublisher::new(receipts, session, lanes, connections, batch_len)))
    }

    fn connect_max(&self) -> Duration {
        // Each connection is a login, each of its lanes a step, and the exchange is another one.
        let times = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let logins = self.endpoint.login_timeout().saturating_mul(times(self.connections));
        let lanes = self.connections.saturating_mul(LANES_PER_CONNECTION);
        let steps = self.endpoint.connect_timeout().saturating_mul(times(lanes.saturating_add(1)));
        logins.saturating_add(steps).max(CONNECT_MAX_DEFAULT)
    }

    fn take_unrouted(&self) -> Vec<Unrouted> {
        self.unlistened.take()
    }

    /// Reports an alarm, during which the broker confirms nothing.
    fn last_error(&self) -> Option<String> {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let is_blocked = opened.iter().filter_map(Weak::upgrade).any(|connection| connection.is_blocked());
        is_blocked.then(|| String::from(BLOCKED))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicU64, Ordering};

    use message::{Connector as _, EventType, Message, Submission, Ticket, Topic};
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;

    use super::*;
    use crate::rabbitmq::fake::{
        CHANNEL_OPEN_OK, CONFIRM_SELECT_OK, CONNECTION_OPEN_OK, START, TUNE, read, send,
    };

    /// How long a client is silent that waits for confirmations.
    const SILENCE: Duration = Duration::from_millis(100);
    /// The beginning of basic.ack, before the number and whether it covers those before it.
    const BASIC_ACK: &[u8] = b"\0\x3c\0\x50";

    /// Serves one client, and confirms what it has received once the client is silent. Counts the
    /// largest number of messages that waited for confirmation on one channel.
    async fn serve(listener: TcpListener, waiting_max: Arc<AtomicU64>) {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.read_exact(&mut [0; 8]).await.unwrap();
        send(&mut stream, 0, START).await.unwrap();
        // For each channel, how many messages were received and how many are confirmed.
        let mut channels: BTreeMap<u16, [u64; 2]> = BTreeMap::new();
        loop {
            if tokio::time::timeout(SILENCE, stream.peek(&mut [0])).await.is_err() {
                for (channel, [received, confirmed]) in &mut channels {
                    if *received > *confirmed {
                        waiting_max.fetch_max(*received - *confirmed, Ordering::Relaxed);
                        *confirmed = *received;
                        let ack = [BASIC_ACK, &received.to_be_bytes(), &[1]].concat();
                        send(&mut stream, *channel, &ack).await.unwrap();
                    }
                }
                continue;
            }
            let Ok((kind, channel, frame)) = read(&mut stream).await else { return };
            match frame.get(..4).filter(|_| kind == 1).unwrap_or_default() {
                [0, 10, 0, 11] => send(&mut stream, 0, TUNE).await.unwrap(),
                [0, 10, 0, 40] => send(&mut stream, 0, CONNECTION_OPEN_OK).await.unwrap(),
                [0, 20, 0, 10] => send(&mut stream, channel, CHANNEL_OPEN_OK).await.unwrap(),
                [0, 85, 0, 10] => send(&mut stream, channel, CONFIRM_SELECT_OK).await.unwrap(),
                // basic.publish
                [0, 60, 0, 40] => channels.entry(channel).or_default()[0] += 1,
                _ => {}
            }
        }
    }

    /// Goal: at most `window_messages_max` messages of a topic wait together for their confirms.
    /// Oracle: the messages that a broker counts on each channel before it confirms them.
    #[tokio::test]
    async fn a_window_has_as_many_messages_as_its_setting_allows() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("amqp://relay@{}", listener.local_addr().unwrap());
        let waiting_max = Arc::new(AtomicU64::new(0));
        tokio::spawn(serve(listener, Arc::clone(&waiting_max)));
        let config = Config::new(url).password("x".to_owned()).connections(1).window_messages_max(3);
        let (receipts, mut received) = Receipts::channel();
        let mut publisher = Connector::new(&config).unwrap().connect(receipts).await.unwrap();
        let submission = |ticket| {
            let message = Message::new(Topic::new("orders").unwrap(), EventType::new("e").unwrap(), "{}");
            Submission { ticket: Ticket(ticket), message: message.into() }
        };
        publisher.submit((0..20).map(submission).collect()).await;
        for _ in 0..20 {
            received.recv().await.unwrap().outcome.unwrap();
        }
        let waiting_max = waiting_max.load(Ordering::Relaxed);
        assert!((1..=3).contains(&waiting_max), "{waiting_max} messages waited together");
    }

    #[test]
    fn a_session_has_the_time_that_its_steps_may_take() {
        let within = |connections, millis| {
            let config = Config::new("amqp://127.0.0.1").connections(connections).connect_timeout_ms(millis);
            Connector::new(&config).unwrap().connect_max()
        };
        assert_eq!(within(1, 100), CONNECT_MAX_DEFAULT);
        assert_eq!(within(16, 10_000), Duration::from_secs(49 * 10));
        let config = Config::new("amqp://127.0.0.1,[::1],localhost").connections(16);
        let each_host = Connector::new(&config).unwrap().connect_max();
        assert_eq!(each_host, Duration::from_secs((3 * 16 + 33) * 10));
    }
}
