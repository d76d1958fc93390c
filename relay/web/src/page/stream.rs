//! Server-sent events: they notify a browser of changes, and the browser then loads them.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use tokio::sync::watch;
use tokio::time::Instant;

use super::answer::Problem;
use super::app::{Access, App};
use super::gate::Asker;
use super::session::Session;

/// Maximum number of streams.
const STREAMS_MAX: usize = 32;
/// Maximum number of streams of one user, so that others have theirs.
const STREAMS_OF_ONE_MAX: usize = 8;
/// Lifetime of a stream. Then the browser opens another one, and authenticates again.
const LIFETIME: Duration = Duration::from_secs(600);
/// Interval at which a stream checks whether its session goes on.
const LOOK_EVERY: Duration = Duration::from_secs(5);
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
pub(crate) async fn events(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    session: Option<Extension<Session>>,
) -> Response {
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
    let follower = Following { changes, open, ends_at: Instant::now() + LIFETIME };
    let session = session.map(|Extension(session)| session);
    let stream = unfold((follower, session), |(mut follower, session)| async move {
        let number = follower.next(session.as_ref()).await?;
        let event = Event::default().event("change").data(number.to_string());
        Some((Ok::<_, Infallible>(event), (follower, session)))
    });
    Sse::new(stream).keep_alive(KeepAlive::new().interval(Duration::from_secs(15))).into_response()
}

/// The changes that an open stream follows.
struct Following {
    changes: watch::Receiver<u64>,
    open: Open,
    ends_at: Instant,
}

impl Following {
    /// Waits for the next change; `None` at the end of the stream's lifetime, of the page, or of
    /// the session.
    async fn next(&mut self, session: Option<&Session>) -> Option<u64> {
        let Self { changes, open, ends_at } = self;
        let changed = async {
            changes.changed().await.ok()?;
            tokio::time::sleep(PAUSE).await;
            Some(*changes.borrow_and_update())
        };
        let app = &open.app;
        tokio::select! {
            biased;
            () = app.ended.cancelled() => None,
            () = ended(app, session) => None,
            number = tokio::time::timeout_at(*ends_at, changed) => number.ok().flatten(),
        }
    }
}

/// Waits until a session was ended; without one, for ever.
async fn ended(app: &App, session: Option<&Session>) {
    let (Access::Own(login), Some(session)) = (&app.access, session) else {
        return std::future::pending().await;
    };
    while login.sessions.end_of(session).await.is_none() {
        tokio::time::sleep(LOOK_EVERY).await;
    }
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
