//! The statements that a client sends to PostgreSQL, recorded by a listener in between.
//!
//! A round trip ends when the server is ready again. So only messages count that make it ready: a
//! query, or a `Sync` after prepared statements.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

use crate::stage::Stage;
use crate::trial::{Failure, Outcome};

/// A round trip without a statement: the pool asks whether the connection still works.
pub const PING: &str = "(ping)";
/// A round trip in which a statement is prepared but not executed.
pub const PREPARE: &str = "(prepare)";

/// The round trips of all connections, in the order in which they began.
#[derive(Debug, Clone, Default)]
pub struct LogCapture {
    told: Arc<Mutex<Vec<String>>>,
    sessions: Arc<AtomicUsize>,
}

impl LogCapture {
    /// Listens before a server (`host:port`) until the test ends. Returns its own port. The client
    /// must not ask for TLS.
    ///
    /// # Errors
    /// The port could not be opened.
    pub async fn before(stage: &Stage, server: &str) -> Result<(Self, u16), Failure> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let (log_capture, server) = (Self::default(), server.to_owned());
        let reading = log_capture.clone();
        let listening = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                reading.sessions.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(reading.clone().connect(client, server.clone()));
            }
        });
        stage.afterwards("the listener before PostgreSQL", async move {
            listening.abort();
            Ok(())
        });
        Ok((log_capture, port))
    }

    /// Returns the round trips since the last call.
    #[must_use]
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.told())
    }

    /// Returns the number of connections since the beginning.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.sessions.load(Ordering::Relaxed)
    }

    fn told(&self) -> MutexGuard<'_, Vec<String>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn connect(self, client: TcpStream, server: String) -> Outcome {
        let (from_server, to_server) = TcpStream::connect(server).await?.into_split();
        let (from_client, to_client) = client.into_split();
        tokio::try_join!(pass_on(from_server, to_client), self.read_along(from_client, to_server))?;
        Ok(())
    }

    /// Records a message before the server gets it, so that it is recorded once the client has the
    /// answer.
    async fn read_along(self, mut client: OwnedReadHalf, mut server: OwnedWriteHalf) -> Outcome {
        let mut statements = Statements::default();
        // The first message of a connection has no kind.
        let mut kind = None;
        loop {
            let length = client.read_u32().await?;
            let mut body = vec![0; (length as usize).saturating_sub(4)];
            client.read_exact(&mut body).await?;
            if let Some(round_trip) = kind.and_then(|kind| statements.read(kind, &body)) {
                self.told().push(round_trip);
            }
            let mut message: Vec<u8> = kind.into_iter().collect();
            message.extend(length.to_be_bytes());
            message.extend(body);
            server.write_all(&message).await?;
            kind = Some(client.read_u8().await?);
        }
    }
}

async fn pass_on(mut from: OwnedReadHalf, mut to: OwnedWriteHalf) -> Outcome {
    copy(&mut from, &mut to).await?;
    Ok(())
}

/// The statements that a session has prepared, and the one that it executes.
#[derive(Debug, Default)]
struct Statements {
    prepared: HashMap<Vec<u8>, String>,
    executed: Option<String>,
    was_prepared: bool,
}

impl Statements {
    /// Returns the round trip that a client's message completes, if it completes one.
    fn read(&mut self, kind: u8, body: &[u8]) -> Option<String> {
        let mut texts = body.split(|byte| *byte == 0);
        let mut text = || texts.next().unwrap_or_default();
        let shown = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
        match kind {
            b'Q' => return Some(shown(text())),
            b'P' => {
                self.prepared.insert(text().to_vec(), shown(text()));
                self.was_prepared = true;
            }
            // The name of the portal comes first, then that of the statement.
            b'B' => {
                text();
                self.executed = self.prepared.get(text()).cloned();
            }
            b'S' => {
                let otherwise = if self.was_prepared { PREPARE } else { PING };
                self.was_prepared = false;
                return Some(self.executed.take().unwrap_or_else(|| otherwise.to_owned()));
            }
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_are_told_by_what_they_execute() {
        let mut statements = Statements::default();
        let said: [(u8, &[u8], Option<&str>); 8] = [
            (b'Q', b"BEGIN\0", Some("BEGIN")),
            (b'P', b"s1\0SELECT $1\0\0\0", None),
            (b'D', b"Ss1\0", None),
            (b'S', b"", Some(PREPARE)),
            (b'B', b"\0s1\0\0\0", None),
            (b'E', b"\0\0\0\0\0", None),
            (b'S', b"", Some("SELECT $1")),
            (b'S', b"", Some(PING)),
        ];
        for (kind, body, expected) in said {
            assert_eq!(statements.read(kind, body).as_deref(), expected, "{kind}");
        }
    }
}
