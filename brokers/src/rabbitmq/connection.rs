//! A connection whose end is noticed by whoever waits for an answer on it.
//!
//! The client forgets what was asked of it while its connection broke. Measured with lapin 4.12.3:
//! a broker that is gone between greeting and opening leaves a future that never resolves (285 of
//! 300 attempts), and so did 3 of 6,000 sessions that were cut off while they opened channels. Its
//! own thread ends with the connection, though, so here every wait ends with that thread.

use std::io;
use std::time::Duration;

use lapin::options::ConfirmSelectOptions;
use lapin::types::ShortString;
use lapin::{Channel, Error};
use tokio::sync::watch;
use tokio::time::Instant;

/// How long an answer is waited for once the connection is over: the client tells most of those who
/// wait why it is.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The reply code of a normal end (AMQP 0-9-1 specification, section 1.2).
const REPLY_SUCCESS: u16 = 200;

/// Tells the end of the client's thread, which owns it.
pub(super) struct Running(watch::Sender<Option<Instant>>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.send_replace(Some(Instant::now()));
    }
}

/// When the client's thread has ended.
#[derive(Clone)]
pub(super) struct End(watch::Receiver<Option<Instant>>);

impl End {
    /// An end that comes when the other half is dropped.
    pub(super) fn of_running() -> (Running, Self) {
        let (running, end) = watch::channel(None);
        (Running(running), Self(end))
    }

    /// Waits until the connection is over, and a moment longer. Cancel-safe.
    pub(super) async fn passed(&self) {
        let mut end = self.0.clone();
        let ended_at = end.wait_for(Option::is_some).await.ok().and_then(|ended_at| *ended_at);
        tokio::time::sleep_until(ended_at.unwrap_or_else(Instant::now) + LAST_WORDS).await;
    }

    /// Waits for an answer of the client, as long as one can come. As cancel-safe as what it waits
    /// for.
    ///
    /// # Errors
    /// The client's, or that the connection is over.
    pub(super) fn bounds<T>(
        &self,
        answer: impl Future<Output = Result<T, Error>>,
    ) -> impl Future<Output = Result<T, Error>> {
        // Boxed: futures of the client are large.
        let answer = Box::pin(answer);
        async {
            tokio::select! {
                biased;
                answer = answer => answer,
                () = self.passed() => Err(over()),
            }
        }
    }
}

fn over() -> Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "it ended before an answer came").into()
}

/// A connection to the broker. What is asked on its channels goes through [`ask`](Self::ask).
pub(super) struct Connection {
    client: lapin::Connection,
    end: End,
}

impl Connection {
    pub(super) fn new(client: lapin::Connection, end: End) -> Self {
        Self { client, end }
    }

    /// Waits for an answer on this connection or one of its channels. As cancel-safe as what it
    /// waits for.
    ///
    /// # Errors
    /// The client's, or that the connection is over.
    pub(super) fn ask<T>(
        &self,
        answer: impl Future<Output = Result<T, Error>>,
    ) -> impl Future<Output = Result<T, Error>> {
        self.end.bounds(answer)
    }

    /// Waits until nothing can be answered any more. Cancel-safe.
    pub(super) async fn passed(&self) {
        self.end.passed().await;
    }

    /// Opens a channel.
    pub(super) async fn channel(&self) -> Result<Channel, Error> {
        self.ask(self.client.create_channel()).await
    }

    /// Opens a channel in confirm mode.
    pub(super) async fn confirming_channel(&self) -> Result<Channel, Error> {
        let channel = self.channel().await?;
        self.ask(channel.confirm_select(ConfirmSelectOptions::default())).await?;
        Ok(channel)
    }

    /// Whether it is open, as far as the client knows.
    pub(super) fn is_open(&self) -> bool {
        self.client.status().connected()
    }

    /// Whether the broker takes no messages for now (memory or disk alarm).
    pub(super) fn is_blocked(&self) -> bool {
        self.client.status().blocked()
    }

    /// The largest frame in bytes; nothing for no limit.
    pub(super) fn frame_bytes_max(&self) -> Option<usize> {
        let frame_max = usize::try_from(self.client.configuration().frame_max()).unwrap_or(usize::MAX);
        // Zero means no limit.
        (frame_max > 0).then_some(frame_max)
    }

    /// How many channels it may have; nothing for no limit.
    pub(super) fn channels_max(&self) -> Option<usize> {
        let channel_max = usize::from(self.client.configuration().channel_max());
        // Zero means no limit.
        (channel_max > 0).then_some(channel_max)
    }

    /// Closes it in order; a failure is only noted, the broker finds out by itself.
    pub(super) async fn say_goodbye(&self, deadline: Instant) {
        let closing = self.ask(self.client.close(REPLY_SUCCESS, ShortString::default()));
        match tokio::time::timeout_at(deadline, closing).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "rabbitmq was gone before the goodbye"),
            Err(_) => tracing::debug!("rabbitmq did not answer the goodbye"),
        }
    }
}

#[cfg(test)]
mod tests {
    use message::{Connector as _, Receipts};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::task::JoinSet;

    use crate::rabbitmq::{Config, Connector};

    /// How far a broker comes before it is gone.
    #[derive(Debug, Clone, Copy)]
    enum Gone {
        AtOnce,
        Greeted,
        LoggedIn,
        Connected,
        ChannelOpened,
    }

    /// Methods of a broker (AMQP 0-9-1 specification, sections 1.4.2 and 1.5.2): class, method and
    /// arguments.
    const START: &[u8] = b"\0\x0a\0\x0a\0\x09\0\0\0\0\0\0\0\x05PLAIN\0\0\0\x05en_US";
    const TUNE: &[u8] = b"\0\x0a\0\x1e\x07\xff\0\x02\0\0\0\x14";
    const CONNECTION_OPEN_OK: &[u8] = b"\0\x0a\0\x29\0";
    const CHANNEL_OPEN_OK: &[u8] = b"\0\x14\0\x0b\0\0\0\0";

    async fn send(stream: &mut TcpStream, channel: u16, method: &[u8]) -> std::io::Result<()> {
        let mut frame = vec![1];
        frame.extend_from_slice(&channel.to_be_bytes());
        frame.extend_from_slice(&u32::try_from(method.len()).unwrap().to_be_bytes());
        frame.extend_from_slice(method);
        frame.push(0xce);
        stream.write_all(&frame).await
    }

    /// Reads a frame; answers its channel.
    async fn read(stream: &mut TcpStream) -> std::io::Result<u16> {
        let mut header = [0; 7];
        stream.read_exact(&mut header).await?;
        let [_, high, low, size @ ..] = header;
        let mut rest = vec![0; u32::from_be_bytes(size) as usize + 1];
        stream.read_exact(&mut rest).await?;
        Ok(u16::from_be_bytes([high, low]))
    }

    async fn serve(mut stream: TcpStream, gone: Gone) -> std::io::Result<()> {
        stream.read_exact(&mut [0; 8]).await?;
        if matches!(gone, Gone::AtOnce) {
            return Ok(());
        }
        send(&mut stream, 0, START).await?;
        if matches!(gone, Gone::Greeted) {
            return Ok(());
        }
        read(&mut stream).await?;
        send(&mut stream, 0, TUNE).await?;
        if matches!(gone, Gone::LoggedIn) {
            return Ok(());
        }
        read(&mut stream).await?;
        read(&mut stream).await?;
        send(&mut stream, 0, CONNECTION_OPEN_OK).await?;
        if matches!(gone, Gone::Connected) {
            return Ok(());
        }
        let channel = read(&mut stream).await?;
        send(&mut stream, channel, CHANNEL_OPEN_OK).await
    }

    /// Goal: a broker that is gone in the middle of connecting is noticed at once, wherever that
    /// is. Oracle: no attempt ends by the time that connecting may take.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn a_broker_that_is_gone_while_connecting_is_noticed() {
        const ATTEMPTS: usize = 20;
        for gone in [Gone::AtOnce, Gone::Greeted, Gone::LoggedIn, Gone::Connected, Gone::ChannelOpened] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let broker = tokio::spawn(async move {
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    tokio::spawn(serve(stream, gone));
                }
            });
            let config = Config { connect_timeout_ms: 20_000, ..Config::new(format!("amqp://{address}")) };
            let mut attempts = JoinSet::new();
            for _ in 0..ATTEMPTS {
                let connector = Connector::new(&config).unwrap();
                attempts.spawn(async move {
                    let error =
                        connector.connect(Receipts::channel().0).await.err().expect("no broker is left");
                    assert!(!error.to_string().contains("did not answer within"), "{gone:?}: {error}");
                });
            }
            while let Some(attempt) = attempts.join_next().await {
                attempt.unwrap();
            }
            broker.abort();
        }
    }
}
