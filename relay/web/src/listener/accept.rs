//! The accept loop.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tracing::warn;

use super::guests::{Admitted, Bounds, Guests};

/// Pause after `accept` failed because the system had no resources left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

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
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                warn!(target: crate::LOG, "could not accept a connection for {what}: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // Without a place, the connection is closed at once.
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
