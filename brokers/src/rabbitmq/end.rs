//! Detects and causes the end of a connection.
//!
//! The client has its own thread for each connection. It forgets requests that were made while its
//! connection broke. Measured with lapin 4.12.3: when a broker disappears between greeting and
//! opening, a future never resolves (285 of 300 attempts). The same happened in 3 of about 5,500
//! sessions that were cut off while they opened channels. So every wait here ends with that thread.
//!
//! The thread does not end by itself either when it is no longer needed and the broker neither
//! reads nor answers. It waits for the answer to its goodbye, for hours if a memory alarm lasts
//! that long. So its socket is shut down shortly after the connection was dropped.
//!
//! Until the broker has ended a connection, it keeps the unsettled deliveries of its consumers, and
//! gives later messages of their keys to other consumers. So a subscriber waits for the end of the
//! connections that it dropped before it consumes again.

use std::io;
use std::net::Shutdown;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use lapin::Error;
use socket2::{SockRef, Socket};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::Instant;

/// How long to wait for an answer once the connection is over: the client reports the cause to most
/// waiting callers. It also limits the time for an orderly close.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The client's socket.
enum SocketState {
    Open(Socket),
    /// It was shut down here, because the client did not end in time.
    ShutDown,
    /// The client has closed it.
    Closed,
}

/// A handle of the client's socket, until the socket is closed.
#[derive(Clone)]
struct SocketHandle(Arc<Mutex<SocketState>>);

impl SocketHandle {
    fn lock(&self) -> MutexGuard<'_, SocketState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shut_down(&self) {
        let mut state = self.lock();
        if let SocketState::Open(socket) = &*state {
            // The other side may have closed it already.
            let _ = socket.shutdown(Shutdown::Both);
            *state = SocketState::ShutDown;
        }
    }

    fn close(&self) {
        let mut state = self.lock();
        if matches!(*state, SocketState::Open(_)) {
            *state = SocketState::Closed;
        }
    }

    fn was_shut_down(&self) -> bool {
        matches!(*self.lock(), SocketState::ShutDown)
    }
}

/// Owned by the client's thread: it is dropped when that thread ends.
pub(super) struct Running {
    ended_at: watch::Sender<Option<Instant>>,
    handle: SocketHandle,
}

impl Drop for Running {
    fn drop(&mut self) {
        // Otherwise the socket would stay open although the client has closed it.
        self.handle.close();
        self.ended_at.send_replace(Some(Instant::now()));
    }
}

/// Waits for the end of the client's thread; dropping it ends the thread.
pub(super) struct End {
    ended_at: watch::Receiver<Option<Instant>>,
    handle: SocketHandle,
    /// The runtime that drives the socket.
    runtime: Handle,
    /// Shows others that the connection is in use.
    in_use: Arc<()>,
}

impl End {
    /// Creates the two sides for a thread that will use this socket, on the current runtime.
    ///
    /// # Errors
    /// An error when the process has too many open files.
    pub(super) fn of(stream: &TcpStream) -> io::Result<(Running, Self)> {
        let socket = SocketState::Open(SockRef::from(stream).try_clone()?);
        let handle = SocketHandle(Arc::new(Mutex::new(socket)));
        let (running, ended_at) = watch::channel(None);
        let running = Running { ended_at: running, handle: handle.clone() };
        Ok((running, Self { ended_at, handle, runtime: Handle::current(), in_use: Arc::default() }))
    }

    /// Runs what is left to do before the thread ends, in the background and for at most
    /// [`LAST_WORDS`]. It need not be called from the runtime.
    pub(super) fn last(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(async { tokio::time::timeout(LAST_WORDS, work).await });
    }

    /// Returns what observes the connection without keeping it.
    fn observer(&self) -> Observer {
        Observer {
            ended_at: self.ended_at.clone(),
            handle: self.handle.clone(),
            in_use: Arc::downgrade(&self.in_use),
        }
    }

    /// Waits until the thread has ended, and slightly longer. Cancel-safe.
    pub(super) async fn passed(&self) {
        let mut end = self.ended_at.clone();
        let ended_at = end.wait_for(Option::is_some).await.ok().and_then(|ended_at| *ended_at);
        tokio::time::sleep_until(ended_at.unwrap_or_else(Instant::now) + LAST_WORDS).await;
    }

    /// Waits for an answer of the client, as long as one can come. As cancel-safe as the future it
    /// waits for.
    ///
    /// # Errors
    /// The client's error, or an error that the connection is over.
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

impl Drop for End {
    fn drop(&mut self) {
        let handle = self.handle.clone();
        self.runtime.spawn(async move {
            tokio::time::sleep(LAST_WORDS).await;
            handle.shut_down();
        });
    }
}

/// Observes a connection without keeping it.
#[derive(Clone)]
struct Observer {
    ended_at: watch::Receiver<Option<Instant>>,
    handle: SocketHandle,
    in_use: Weak<()>,
}

impl Observer {
    fn has_ended(&self) -> bool {
        self.ended_at.borrow().is_some()
    }

    fn is_dropped(&self) -> bool {
        self.in_use.strong_count() == 0
    }

    /// Waits for the end of a connection that was dropped, about as long as [`LAST_WORDS`]. Returns
    /// whether it ended in time. Cancel-safe.
    async fn ends(mut self) -> bool {
        let end = self.ended_at.wait_for(Option::is_some);
        if tokio::time::timeout(LAST_WORDS, end).await.is_err() {
            // The runtime that would have done so may be gone.
            self.handle.shut_down();
            let end = self.ended_at.wait_for(Option::is_some);
            let _ = tokio::time::timeout(LAST_WORDS, end).await;
        }
        !self.handle.was_shut_down()
    }
}

/// The connections that a subscriber has made and that have not ended.
#[derive(Default)]
pub(super) struct Earlier(Mutex<Vec<Observer>>);

impl Earlier {
    fn lock(&self) -> MutexGuard<'_, Vec<Observer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection.
    pub(super) fn add(&self, end: &End) {
        self.lock().push(end.observer());
    }

    /// Waits for the end of those that were dropped, at most twice as long as [`LAST_WORDS`]. Those
    /// in use are not waited for. Returns whether the broker has ended all of them, as far as this
    /// side can know. Cancel-safe.
    pub(super) async fn ended(&self) -> bool {
        let dropped: Vec<_> = {
            let mut earlier = self.lock();
            earlier.retain(|connection| !connection.has_ended());
            earlier.iter().filter(|connection| connection.is_dropped()).cloned().collect()
        };
        join_all(dropped.into_iter().map(Observer::ends)).await.into_iter().all(|is_in_time| is_in_time)
    }
}

fn over() -> Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "it ended before an answer came").into()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use message::{Connector as _, Receipts};
    use tokio::io::AsyncReadExt as _;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::mpsc;
    use tokio::task::JoinSet;

    use super::Earlier;
    use crate::rabbitmq::endpoint::Endpoint;
    use crate::rabbitmq::fake::{
        CHANNEL_OPEN_OK, CONNECTION_BLOCKED, CONNECTION_OPEN_OK, START, TUNE, read, send,
    };
    use crate::rabbitmq::{Config, Connector};

    /// How far a broker gets before it disappears or freezes.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Progress {
        Accepted,
        Greeted,
        LoggedIn,
        Connected,
        /// It accepts nothing more: a memory alarm.
        Blocked,
        ChannelOpened,
    }

    use Progress::{Accepted, Blocked, ChannelOpened, Connected, Greeted, LoggedIn};

    const ALL: [Progress; 6] = [Accepted, Greeted, LoggedIn, Connected, Blocked, ChannelOpened];

    /// Acts as a broker that stops at `progress`.
    async fn serve(stream: &mut TcpStream, progress: Progress) -> std::io::Result<()> {
        stream.read_exact(&mut [0; 8]).await?;
        if progress == Accepted {
            return Ok(());
        }
        send(stream, 0, START).await?;
        if progress == Greeted {
            return Ok(());
        }
        read(stream).await?;
        send(stream, 0, TUNE).await?;
        if progress == LoggedIn {
            return Ok(());
        }
        read(stream).await?;
        read(stream).await?;
        send(stream, 0, CONNECTION_OPEN_OK).await?;
        match progress {
            Connected => Ok(()),
            Blocked => send(stream, 0, CONNECTION_BLOCKED).await,
            _ => {
                let (_, channel, _) = read(stream).await?;
                send(stream, channel, CHANNEL_OPEN_OK).await
            }
        }
    }

    const ATTEMPTS: usize = 20;

    /// Starts a broker that stops at `progress` with each connection and then runs `then` on it. It
    /// listens until the set is dropped.
    async fn broker<F: Future<Output = ()> + Send + 'static>(
        progress: Progress,
        then: impl Fn(TcpStream) -> F + Clone + Send + 'static,
    ) -> (String, JoinSet<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("amqp://{}", listener.local_addr().unwrap());
        let mut listening = JoinSet::new();
        listening.spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let then = then.clone();
                tokio::spawn(async move {
                    // The client may have disconnected before.
                    _ = serve(&mut stream, progress).await;
                    then(stream).await;
                });
            }
        });
        (url, listening)
    }

    /// Makes all connection attempts at once. Returns why they failed.
    async fn attempts(url: &str, connect_timeout_ms: u64) -> Vec<String> {
        let config = Config { connect_timeout_ms, ..Config::new(url) };
        let mut attempts = JoinSet::new();
        for _ in 0..ATTEMPTS {
            let connector = Connector::new(&config).unwrap();
            attempts.spawn(async move {
                let connected = connector.connect(Receipts::channel().0).await;
                connected.err().expect("no broker answers").to_string()
            });
        }
        attempts.join_all().await
    }

    /// Counts the client's threads in this process.
    #[cfg(target_os = "linux")]
    fn client_threads() -> usize {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
        names.filter(|name| name.trim() == "lapin-io-loop").count()
    }

    /// Goal: a subscriber waits for connections that were dropped, not for those in use, and not
    /// longer than the client is given to end. Oracle: a broker that answers no goodbye; what the
    /// wait returns.
    #[tokio::test]
    async fn only_connections_that_were_dropped_are_waited_for() {
        let silent =
            |mut stream: TcpStream| async move { while let Ok(1..) = stream.read(&mut [0; 1_024]).await {} };
        let (url, _broker) = broker(Connected, silent).await;
        let endpoint = Endpoint::new(&Config::new(url)).ok().unwrap();
        let earlier = Earlier::default();
        let connection = endpoint.open("subscription").await.ok().unwrap();
        earlier.add(connection.end());
        assert!(earlier.ended().await);
        assert!(connection.is_open(), "it is in use");
        drop(connection);
        let in_time = tokio::time::timeout(Duration::from_secs(60), earlier.ended()).await;
        assert_eq!(in_time, Ok(false), "the broker has not confirmed the end");
        assert!(earlier.ended().await, "it has ended");
    }

    /// Goal: a broker that disappears while a client connects is noticed at once, at every stage.
    /// Oracle: no attempt ends by the connect timeout.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn a_broker_that_is_gone_while_connecting_is_noticed() {
        for progress in ALL {
            let (url, _broker) = broker(progress, |stream| async move { drop(stream) }).await;
            for error in attempts(&url, 20_000).await {
                assert!(!error.contains("did not answer within"), "{progress:?}: {error}");
            }
        }
    }

    /// Goal: a broker with a smaller `frame_max` than the client's smallest is not taken for one
    /// that expects TLS. Oracle: the error.
    #[tokio::test]
    async fn a_frame_max_that_is_too_small_is_named() {
        // The same with a `frame_max` of 4,096. RabbitMQ ends the connection at the answer to it.
        const SMALL: &[u8] = b"\0\x0a\0\x1e\x07\xff\0\0\x10\0\0\x14";
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let config = Config::new(format!("amqp://{}", listener.local_addr().unwrap()));
        let broker = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.read_exact(&mut [0; 8]).await.unwrap();
            send(&mut stream, 0, START).await.unwrap();
            read(&mut stream).await.unwrap();
            send(&mut stream, 0, SMALL).await.unwrap();
            read(&mut stream).await.unwrap();
        };
        let connector = Connector::new(&config).unwrap();
        let (connected, ()) = tokio::join!(connector.connect(Receipts::channel().0), broker);
        let error = connected.err().expect("the broker hangs up").to_string();
        assert!(error.contains("its frame_max is below 8,192 bytes"), "{error}");
    }

    /// Goal: a broker that freezes while a client connects costs no connection and no thread for
    /// each attempt, at every stage. Oracle: the broker sees the end of each connection; the names
    /// of the threads.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn a_connection_to_a_frozen_broker_is_given_up() {
        // Other tests use the client as well, and the machine may be busy.
        const PATIENCE: Duration = Duration::from_secs(240);
        for progress in ALL {
            let (ended, mut ends) = mpsc::unbounded_channel();
            let (began, mut begins) = mpsc::unbounded_channel();
            let until_end = move |mut stream: TcpStream| {
                let (began, ended) = (began.clone(), ended.clone());
                async move {
                    _ = began.send(());
                    while let Ok(1..) = stream.read(&mut [0; 1_024]).await {}
                    _ = ended.send(());
                }
            };
            let (url, _broker) = broker(progress, until_end).await;
            for error in attempts(&url, 1_000).await {
                assert!(error.contains("did not answer within 1000 ms"), "{progress:?}: {error}");
            }
            let begun = begins.recv_many(&mut Vec::new(), ATTEMPTS).await;
            for end in 0..begun {
                let seen = tokio::time::timeout(PATIENCE, ends.recv()).await;
                assert_eq!(seen, Ok(Some(())), "{progress:?}: {end} of {begun} were given up");
            }
        }
        #[cfg(target_os = "linux")]
        tokio::time::timeout(PATIENCE, async {
            // Threads of other tests also end.
            while client_threads() > 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await
        .expect("the client's threads end");
    }
}
