//! A connection whose end is noticed by every caller that waits for an answer on it.

use std::sync::{Arc, Mutex, PoisonError};

use lapin::options::ConfirmSelectOptions;
use lapin::types::ShortString;
use lapin::{Channel, Error};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::end::End;

/// The reply code of a normal end (AMQP 0-9-1 specification, section 1.2).
const REPLY_SUCCESS: u16 = 200;

/// The task that renews the password of a connection, until it is dropped.
pub(super) struct Renewal(JoinHandle<()>);

impl Renewal {
    /// Spawns the task.
    pub(super) fn spawn(renewing: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(renewing))
    }
}

impl Drop for Renewal {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A connection to the broker. Requests on its channels go through [`ask`](Self::ask).
pub(super) struct Connection {
    client: Arc<lapin::Connection>,
    _renewal: Option<Renewal>,
    /// Channels that stay open until the goodbye.
    lasting: Mutex<Vec<Channel>>,
    /// Dropped after the client, which closes the connection in an orderly way.
    end: End,
}

impl Connection {
    pub(super) fn new(client: Arc<lapin::Connection>, end: End, renewal: Option<Renewal>) -> Self {
        Self { client, _renewal: renewal, lasting: Mutex::default(), end }
    }

    /// Waits for an answer on this connection or one of its channels. As cancel-safe as the future
    /// it waits for.
    ///
    /// # Errors
    /// The client's error, or an error that the connection is over.
    pub(super) fn ask<T>(
        &self,
        answer: impl Future<Output = Result<T, Error>>,
    ) -> impl Future<Output = Result<T, Error>> {
        self.end.bounds(answer)
    }

    /// Waits until no further answer can arrive. Cancel-safe.
    pub(super) async fn passed(&self) {
        self.end.passed().await;
    }

    /// Returns its end.
    pub(super) fn end(&self) -> &End {
        &self.end
    }

    /// Opens a channel.
    pub(super) async fn channel(&self) -> Result<Channel, Error> {
        self.ask(self.client.create_channel()).await
    }

    /// Opens a channel that stays open until the goodbye, also if all its handles are dropped
    /// earlier. Cancel-safe.
    pub(super) async fn lasting_channel(&self) -> Result<Channel, Error> {
        let channel = self.channel().await?;
        self.lasting.lock().unwrap_or_else(PoisonError::into_inner).push(channel.clone());
        Ok(channel)
    }

    /// Opens a channel in confirm mode.
    pub(super) async fn confirming_channel(&self) -> Result<Channel, Error> {
        let channel = self.channel().await?;
        self.ask(channel.confirm_select(ConfirmSelectOptions::default())).await?;
        Ok(channel)
    }

    /// Closes a channel in an orderly way. Dropping it also does so, but later: during the end of
    /// the connection the client takes that for an error, logs it, and skips its own goodbye.
    pub(super) async fn finish(&self, channel: &Channel) {
        if channel.status().connected()
            && let Err(error) = self.ask(channel.close(REPLY_SUCCESS, ShortString::default())).await
        {
            tracing::debug!(%error, "a rabbitmq channel was not closed cleanly");
        }
    }

    /// Returns whether it is open, as far as the client knows.
    pub(super) fn is_open(&self) -> bool {
        self.client.status().connected()
    }

    /// Returns whether the broker currently accepts no messages (memory or disk alarm).
    pub(super) fn is_blocked(&self) -> bool {
        self.client.status().blocked()
    }

    /// Returns the maximum frame size in bytes; `None` for no limit.
    pub(super) fn frame_bytes_max(&self) -> Option<usize> {
        let frame_max = usize::try_from(self.client.configuration().frame_max()).unwrap_or(usize::MAX);
        // Zero means no limit.
        (frame_max > 0).then_some(frame_max)
    }

    /// Returns the maximum number of channels; `None` for no limit.
    pub(super) fn channels_max(&self) -> Option<usize> {
        let channel_max = usize::from(self.client.configuration().channel_max());
        // Zero means no limit.
        (channel_max > 0).then_some(channel_max)
    }

    /// Closes it in an orderly way. A failure is only logged: the broker notices the end anyway.
    pub(super) async fn say_goodbye(&self, deadline: Instant) {
        let closing = self.ask(self.client.close(REPLY_SUCCESS, ShortString::default()));
        match tokio::time::timeout_at(deadline, closing).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "rabbitmq disappeared before the connection was \
                                                       closed"),
            Err(_) => tracing::debug!("rabbitmq did not confirm that the connection is closed"),
        }
    }
}

impl Drop for Connection {
    /// Says goodbye in the background, before lasting channels are dropped. If they are dropped
    /// during the client's own goodbye, the connection ends without the broker's answer, when its
    /// socket is shut down (lapin 4.12.3).
    fn drop(&mut self) {
        let lasting = std::mem::take(self.lasting.get_mut().unwrap_or_else(PoisonError::into_inner));
        if lasting.is_empty() || !self.is_open() {
            return;
        }
        let client = Arc::clone(&self.client);
        self.end.last(async move {
            if let Err(error) = client.close(REPLY_SUCCESS, ShortString::default()).await {
                tracing::debug!(%error, "rabbitmq disappeared before a dropped connection was closed");
            }
            drop(lasting);
        });
    }
}
