//! The accept loop.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::warn;

use super::guests::{Admitted, Bounds, Guests};

/// Pause after `accept` failed because the system had no resources left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Minimum time between two log lines about it.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// `ENFILE` and `EMFILE` of every Unix: the limit of the system, and that of this process.
const NO_FILES_LEFT: [i32; 2] = [23, 24];

/// Serves until dropped. Calls `answer` for each admitted connection; `answer` reports requests
/// with [`Admitted::heard`]. `what` names the listener in the log.
pub async fn serve<Fut>(
    listener: TcpListener,
    what: &'static str,
    bounds: Bounds,
    answer: impl Fn(TcpStream, Arc<Admitted>) -> Fut,
) where
    Fut: Future<Output = ()> + Send + 'static,
{
    let guests = Guests::new(bounds);
    let mut connections = JoinSet::new();
    let mut failures = Failures::default();
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                if let Some(count) = failures.note(Instant::now()) {
                    let remedy = remedy(&error);
                    warn!(target: crate::LOG, failures = count, "could not accept a connection for {what}: {error}{remedy}");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // If there is no room, the connection is closed at once.
        let Some(admitted) = guests.admit(peer.ip()).map(Arc::new) else { continue };
        let answering = answer(stream, Arc::clone(&admitted));
        connections.spawn(async move {
            tokio::select! {
                biased;
                () = admitted.evicted() => {}
                // Long enough for any response, but no connection lasts forever.
                _ = tokio::time::timeout(bounds.lifetime, answering) => {}
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

/// Failures to accept a connection: 10 per second while no file can be opened.
#[derive(Debug, Default)]
struct Failures {
    unreported: u64,
    reported_at: Option<Instant>,
}

impl Failures {
    /// Counts a failure. Returns how many are to be reported now, if it is time for that.
    fn note(&mut self, now: Instant) -> Option<u64> {
        self.unreported += 1;
        if self.reported_at.is_some_and(|at| now.duration_since(at) < REPORT_INTERVAL) {
            return None;
        }
        self.reported_at = Some(now);
        Some(std::mem::take(&mut self.unreported))
    }
}

fn remedy(error: &io::Error) -> &'static str {
    if error.raw_os_error().is_some_and(|code| NO_FILES_LEFT.contains(&code)) {
        "; raise the limit of open files (LimitNOFILE= of the unit, ulimit -n of the shell), or close connections to this port"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// Goal: silent connections keep out no client that sends a request. Oracle: it is answered,
    /// although none of them reaches its lifetime.
    #[tokio::test]
    async fn one_that_asks_is_answered_beside_silent_ones() {
        const BOUNDS: Bounds = Bounds {
            connections_max: 4,
            per_peer_max: Some(2),
            counts_loopback: true,
            may_cut_answers: true,
            lifetime: Duration::from_secs(3_600),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let answer = |mut stream: TcpStream, admitted: Arc<Admitted>| async move {
            if stream.read_u8().await.is_ok() {
                admitted.heard();
                stream.write_all(b"alive").await.unwrap();
            }
        };
        let serving = tokio::spawn(serve(listener, "a test", BOUNDS, answer));
        let mut silent = Vec::new();
        for _ in 0..20 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let mut probe = TcpStream::connect(address).await.unwrap();
        probe.write_u8(b'?').await.unwrap();
        let mut answer = String::new();
        let answered = tokio::time::timeout(Duration::from_secs(60), probe.read_to_string(&mut answer));
        answered.await.unwrap().unwrap();
        assert_eq!(answer, "alive");
        serving.abort();
    }

    #[test]
    fn failures_are_reported_at_an_interval_with_their_number() {
        let (mut failures, begin) = (Failures::default(), Instant::now());
        let after = |tenths: u32| begin + ACCEPT_PAUSE * tenths;
        let reported: Vec<u64> = (0..=200).filter_map(|tenths| failures.note(after(tenths))).collect();
        assert_eq!(reported, [1, 100, 100]);
    }

    #[test]
    fn the_limit_of_open_files_is_named() {
        for code in NO_FILES_LEFT {
            assert!(remedy(&io::Error::from_raw_os_error(code)).contains("limit of open files"), "{code}");
        }
        assert_eq!(remedy(&io::Error::from(io::ErrorKind::ConnectionAborted)), "");
    }
}
