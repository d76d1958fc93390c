//! The ends of sessions, as the outboxes of the page's pipelines record them.
//!
//! A request with the cookie of a session reads what is new there, at most every few seconds. While
//! a database does not answer, what was known of it stays: a page that nobody could use during an
//! outage would be of no help. A session that began meanwhile ends with its secret.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use operate::sessions::{self, Book, Ended, Follower, Unread, Which};
use operate::{OperateError, Operator, PipelineConfig, Places};
use outbox_log::RelayName;
use time::OffsetDateTime;
use tokio::time::Instant;

use super::session::Session;

/// Maximum age of what is known.
const KNOWN_FOR: Duration = Duration::from_secs(3);
/// Maximum time that a request waits for the databases.
const LOOK_MAX: Duration = Duration::from_secs(3);
/// How long a database that did not answer is left alone: requests do not wait for it each time.
const REST: Duration = Duration::from_secs(30);

/// The sessions of a page.
pub(crate) struct Sessions {
    pipelines: Vec<PipelineConfig>,
    looking: tokio::sync::Mutex<Looking>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Looking {
    follower: Follower,
    /// Until when pipelines are left alone.
    resting: BTreeMap<RelayName, Instant>,
}

#[derive(Default)]
struct Known {
    book: Book,
    at: Option<Instant>,
}

impl Sessions {
    pub(crate) fn new(pipelines: Vec<PipelineConfig>) -> Self {
        Self { pipelines, looking: tokio::sync::Mutex::default(), known: Mutex::default() }
    }

    /// Returns the end of a session; `None` for one that goes on. Cancel-safe.
    pub(crate) async fn end_of(&self, session: &Session) -> Option<Ended> {
        self.follow().await;
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.book.end_of(&session.id, &session.user, session.began_at).cloned()
    }

    /// Refuses a session that would end at once, because sessions of its user were ended a moment
    /// ago. Asks the databases, whatever was known before.
    ///
    /// # Errors
    /// [`OperateError`] with how long to wait.
    pub(crate) async fn check_begin(&self, session: &Session) -> Result<(), OperateError> {
        self.look(true).await;
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = known.book.end_of(&session.id, &session.user, session.began_at);
        sessions::check_begin(ended, OffsetDateTime::now_utc())
    }

    /// Records the beginning of a session in the background: a login does not wait for a database.
    pub(crate) fn note_begin(&self, session: &Session, operator: &Operator) {
        let (places, session, operator) = (self.places(), session.clone(), operator.clone());
        tokio::spawn(async move {
            if let Err(error) = sessions::note_login(&places, &session.id, &operator).await {
                tracing::warn!(
                    target: crate::LOG, %error, user = operator.name(),
                    "a login to the page is missing in the list of sessions of a database"
                );
            }
        });
    }

    /// Ends a session: at once in this process, and in the others as soon as they read it. Waits
    /// for the databases only for a short time; the line is written even if that is over.
    pub(crate) async fn end(&self, session: &Session, operator: &Operator) {
        let which = Which::Session(session.id.clone());
        let (actor, reason) = (operator.name().to_owned(), String::from("logged out"));
        let ended = Ended { at: OffsetDateTime::now_utc(), actor, reason };
        let end_here = |book: &mut Book| book.end(which.clone(), ended.clone());
        end_here(&mut self.known.lock().unwrap_or_else(PoisonError::into_inner).book);
        // A look that runs now publishes what it knew before.
        let mut looking = self.looking.lock().await;
        end_here(looking.follower.book_mut());
        end_here(&mut self.known.lock().unwrap_or_else(PoisonError::into_inner).book);
        drop(looking);
        let (places, session, operator) = (self.places(), session.clone(), operator.clone());
        let noting = tokio::spawn(async move {
            if let Err(error) = sessions::note_logout(&places, &session.id, &operator).await {
                tracing::warn!(
                    target: crate::LOG, %error, user = operator.name(),
                    "a logout of the page is not known to processes that read a database"
                );
            }
        });
        let _ = tokio::time::timeout(LOOK_MAX, noting).await;
    }

    fn places(&self) -> Places {
        self.pipelines.iter().fold(Places::new(), Places::outbox)
    }

    fn is_due(&self) -> bool {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.at.is_none_or(|at| at.elapsed() >= KNOWN_FOR)
    }

    /// Reads what is new, if it is time.
    async fn follow(&self) {
        if self.is_due() {
            self.look(false).await;
        }
    }

    /// Reads what is new, unless another request has done so meanwhile and that is enough.
    async fn look(&self, is_forced: bool) {
        let mut looking = self.looking.lock().await;
        if !is_forced && !self.is_due() {
            return;
        }
        let now = Instant::now();
        let Looking { follower, resting } = &mut *looking;
        resting.retain(|_, until| *until > now);
        let awake = self.pipelines.iter().filter(|it| !resting.contains_key(&it.name));
        let places = awake.fold(Places::new(), Places::outbox);
        for Unread { pipeline, error, is_cut, is_asked } in follower.look(&places, LOOK_MAX).await {
            tracing::warn!(
                target: crate::LOG, %error,
                "a database does not say which sessions of the page were ended; sessions that are not known to have \
                 ended go on"
            );
            if is_asked && !is_cut {
                resting.insert(pipeline, Instant::now() + REST);
            }
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        *known = Known { book: follower.book().clone(), at: Some(Instant::now()) };
    }
}

#[cfg(test)]
#[cfg(feature = "sqs")]
mod tests {
    use std::time::SystemTime;

    use brokers::Secret;
    use operate::{Broker, Database, Retention, Role};
    use outbox_log::LogOptions;
    use tokio::net::TcpListener;

    use super::*;

    fn pipeline(name: &str, url: &str) -> PipelineConfig {
        let sqs = brokers::sqs::Config::default().region("eu-central-1").endpoint_url("http://127.0.0.1:1");
        PipelineConfig {
            name: RelayName::new(name).unwrap(),
            source: message::Source::new("/orders").unwrap(),
            database: Database::new(Secret::Text(url.into()), LogOptions::default()),
            retention: Retention::default(),
            audit_retention: Retention::Off,
            broker: Broker::Sqs(Box::new(sqs)),
            settings: engine::EngineOptions::default(),
        }
    }

    /// Goal: a database that does not answer delays one request for a short time, and ends no
    /// session; a logout counts in this process nevertheless. Oracle: the time of each call, and
    /// its result.
    #[tokio::test(start_paused = true)]
    async fn a_silent_database_delays_one_request_and_ends_no_session() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let place = listener.local_addr().unwrap();
        let url = format!("postgres://nobody:secret@{place}/none?sslmode=disable");
        let sessions = Sessions::new(vec![pipeline("orders", &url)]);
        let session = Session::begin("ann", SystemTime::now()).unwrap();
        let begun = Instant::now();
        assert_eq!(sessions.end_of(&session).await, None);
        assert_eq!(begun.elapsed().as_secs(), LOOK_MAX.as_secs());
        tokio::time::advance(KNOWN_FOR).await;
        let begun = Instant::now();
        assert_eq!(sessions.end_of(&session).await, None);
        assert!(begun.elapsed() < Duration::from_secs(1), "it is left alone: {:?}", begun.elapsed());
        let begun = Instant::now();
        sessions.end(&session, &Operator::new("ann", Role::Viewer)).await;
        assert!(begun.elapsed() <= LOOK_MAX + Duration::from_secs(1), "{:?}", begun.elapsed());
        assert_eq!(sessions.end_of(&session).await.map(|ended| ended.actor).as_deref(), Some("ann"));
        tokio::time::advance(REST).await;
        assert!(sessions.end_of(&session).await.is_some(), "a look does not forget it");
    }

    /// Goal: however many databases do not answer, a request waits once, and those that were not
    /// asked in that time are asked next. Oracle: the time of the call; the pipelines that are left
    /// alone.
    #[tokio::test(start_paused = true)]
    async fn many_silent_databases_delay_one_request_as_one_does() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let place = listener.local_addr().unwrap();
        let url = format!("postgres://nobody:secret@{place}/none?sslmode=disable");
        let sessions = Sessions::new((0..64).map(|number| pipeline(&format!("p{number}"), &url)).collect());
        let session = Session::begin("ann", SystemTime::now()).unwrap();
        let mut resting = 0;
        for _ in 0..2 {
            let begun = Instant::now();
            assert_eq!(sessions.end_of(&session).await, None);
            assert_eq!(begun.elapsed().as_secs(), LOOK_MAX.as_secs());
            let now = sessions.looking.lock().await.resting.len();
            assert!(now > resting && now < 64, "{now} of 64 after {resting}");
            resting = now;
            tokio::time::advance(KNOWN_FOR).await;
        }
    }
}
