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

/// Begins the queries for a reader of the page, unless they run. They would end at once if they saw
/// that nobody has read it yet.
pub(crate) fn begin(app: &Arc<App>) {
    app.observer.mark_read();
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

#[cfg(test)]
mod tests {
    use super::super::Own;
    use super::super::app::Access;
    use super::super::application::Application;
    use super::super::links::Links;
    use super::*;

    /// Goal: the queries of the first reader go on, on whatever thread they begin. Oracle: they run
    /// before the request does anything else.
    #[tokio::test(start_paused = true)]
    async fn the_queries_of_the_first_reader_go_on() {
        let access = Access::Application(Application { ask: Box::new(|_| None) });
        let app = Arc::new(App::new(Vec::new(), Vec::new(), Own::default(), Links::sample(), access));
        begin(&app);
        tokio::time::sleep(IDLE / 2).await;
        assert!(app.is_followed.load(Ordering::Acquire));
        tokio::time::sleep(IDLE).await;
        assert!(!app.is_followed.load(Ordering::Acquire), "nobody reads it");
    }
}
