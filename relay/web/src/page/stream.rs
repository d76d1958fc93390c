//! Server-sent events: they notify a browser of changes, and the browser then loads them.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use tokio::sync::watch;
use tokio::time::Instant;

use super::answer::Problem;
use super::app::App;
use super::gate::Asker;

/// Maximum number of streams.
const STREAMS_MAX: usize = 32;
/// Maximum number of streams of one user, so that others have theirs.
const STREAMS_OF_ONE_MAX: usize = 8;
/// Lifetime of a stream. Then the browser opens another one, and authenticates again.
const LIFETIME: Duration = Duration::from_secs(600);
/// Minimum time between two events: a browser loads a page after each.
const PAUSE: Duration = Duration::from_secs(2);

/// The open streams, by user.
pub(crate) struct Streams(Mutex<Vec<String>>);

/// An open stream; dropping it releases its place.
struct Open {
    app: Arc<App>,
    user: String,
}

impl Streams {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// Counts one more stream, if there is room. Returns whether there is.
    fn open(&self, user: &str) -> bool {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_one = open.iter().filter(|other| *other == user).count();
        let has_room = open.len() < STREAMS_MAX && of_one < STREAMS_OF_ONE_MAX;
        if has_room {
            open.push(user.to_owned());
        }
        has_room
    }

    fn close(&self, user: &str) {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = open.iter().position(|other| other == user) {
            open.swap_remove(index);
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.app.streams.close(&self.user);
    }
}

/// `GET /events`.
pub(crate) async fn events(Asker(operator): Asker, State(app): State<Arc<App>>) -> Response {
    if app.ended.is_cancelled() {
        let text = "this process does not follow changes anymore, because its relay has stopped";
        return Problem::new(StatusCode::SERVICE_UNAVAILABLE, text).into_response();
    }
    if !app.streams.open(operator.name()) {
        let text = format!(
            "too many event streams: the maximum is {STREAMS_OF_ONE_MAX} per user and {STREAMS_MAX} in total"
        );
        let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, text);
        let mut response =
            problem.with_help("close other windows of the page, or reload manually").into_response();
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("30"));
        return response;
    }
    let changes = app.observer.follow();
    let open = Open { user: operator.name().to_owned(), app };
    let state = (changes, open, Instant::now() + LIFETIME);
    let stream = unfold(state, |(changes, open, ends_at)| async move {
        let next = open.app.ended.run_until_cancelled(next(changes, ends_at)).await;
        let (changes, number) = next.flatten()?;
        let event = Event::default().event("change").data(number.to_string());
        Some((Ok::<_, Infallible>(event), (changes, open, ends_at)))
    });
    Sse::new(stream).keep_alive(KeepAlive::new().interval(Duration::from_secs(15))).into_response()
}

/// Waits for the next change; `None` at the end of the stream's lifetime.
async fn next(mut changes: watch::Receiver<u64>, ends_at: Instant) -> Option<(watch::Receiver<u64>, u64)> {
    let changed = async {
        changes.changed().await.ok()?;
        tokio::time::sleep(PAUSE).await;
        Some(*changes.borrow_and_update())
    };
    let number = tokio::time::timeout_at(ends_at, changed).await.ok()??;
    Some((changes, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_cannot_take_all_streams_and_all_cannot_take_more() {
        let streams = Streams::new();
        assert!((0..STREAMS_OF_ONE_MAX).all(|_| streams.open("ann")));
        assert!(!streams.open("ann") && streams.open("eve"));
        streams.close("ann");
        assert!(streams.open("ann"));
        let others = (0..200).filter(|user| streams.open(&format!("user-{user}"))).count();
        assert_eq!(others + STREAMS_OF_ONE_MAX + 1, STREAMS_MAX);
        streams.close("nobody");
        assert!(!streams.open("late"));
    }
}
