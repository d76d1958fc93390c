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
    use message::Connector as _;

    use super::*;

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
