//! The queries behind a page that is part of an application: they run while it is used.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::app::App;

/// After this time without a reader the queries end. The plots show no more than that.
const IDLE: Duration = Duration::from_secs(3_600);
/// The same once the relays have stopped: the application may be about to end.
const IDLE_AFTER_END: Duration = Duration::from_secs(60);

/// The running queries. Another request may begin them again, even after a panic.
struct Running(Arc<App>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.is_followed.store(false, Ordering::Release);
    }
}

/// Begins the queries unless they run.
pub(crate) fn begin(app: &Arc<App>) {
    if app.is_followed.swap(true, Ordering::AcqRel) {
        return;
    }
    let running = Running(Arc::clone(app));
    tokio::spawn(async move { Box::pin(follow(&running.0)).await });
}

async fn follow(app: &App) {
    let has_ended = app.ended.is_cancelled();
    let idle = if has_ended { IDLE_AFTER_END } else { IDLE };
    tokio::select! {
        biased;
        () = app.dropped.cancelled() => {}
        () = app.ended.cancelled(), if !has_ended => {}
        () = relays_end(app), if !has_ended => app.ended.cancel(),
        () = app.observer.unread(idle) => {}
        () = app.observer.keep() => {}
    }
}

/// Completes when all relays of the page have stopped; never without one.
async fn relays_end(app: &App) {
    for relay in &app.relays {
        relay.cancelled().await;
    }
    if app.relays.is_empty() {
        std::future::pending::<()>().await;
    }
}
