//! State shared by the handlers, and the routes.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use inbox::ConsumerStatus;
use operate::doctor::PipelineReport;
use operate::replay::ReplayReport;
use operate::verify::Report;
use operate::{InboxConfig, PipelineConfig, Places};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;

use super::answer::Problem;
use super::application::Application;
use super::bulks::{self, Bulks};
use super::exports::Exports;
use super::gate::gate;
use super::jobs::{Jobs, all_ended};
use super::links::Links;
use super::login::OwnLogin;
use super::observe::Observer;
use super::stream::{self, Streams};
use super::surveys::Surveys;
use super::{Own, context, login, pages};

/// Maximum size of a form in bytes: enough for a page of chosen messages with a reason, and for an
/// edit whose every byte is a line break, which a browser encodes as six.
pub(crate) const FORM_BYTES_MAX: usize = 160 << 10;
/// Maximum number of concurrent requests that query databases; each opens its own connections.
const WORK_MAX: usize = 6;
/// Maximum time that a request waits for its turn: no longer than one call to a database.
const TURN_MAX: Duration = Duration::from_secs(30);

const STYLE: &str = include_str!("assets/page.css");
const SCRIPT: &str = include_str!("assets/page.js");
/// htmx 2.0.11, unmodified.
const HTMX: &[u8] = include_bytes!("assets/htmx.min.js");
const ICON: &str = include_str!("assets/icon.svg");

/// State shared by the handlers.
pub(crate) struct App {
    pub(crate) pipelines: Vec<PipelineConfig>,
    pub(crate) inboxes: Vec<InboxConfig>,
    /// The pipelines as this process runs them.
    pub(crate) own: Own,
    pub(crate) access: Access,
    /// The path at which an application has mounted the page; empty at the root.
    pub(crate) prefix: Arc<str>,
    pub(crate) observer: Observer,
    /// The addresses of other places that a page links to.
    pub(crate) links: Links,
    pub(crate) streams: Streams,
    pub(crate) bulks: Bulks,
    pub(crate) checkups: Jobs<PipelineReport>,
    pub(crate) comparisons: Jobs<Report>,
    pub(crate) replays: Jobs<ReplayReport>,
    pub(crate) surveys: Surveys,
    /// The relays of the application; each cancels its token when it stops.
    pub(crate) relays: Vec<CancellationToken>,
    /// Cancelled when browsers can follow no changes anymore.
    pub(crate) ended: CancellationToken,
    /// Cancelled when the application has dropped the page; `ended` is a part of it.
    pub(crate) dropped: CancellationToken,
    /// Whether the queries behind the page of an application run.
    pub(crate) is_followed: AtomicBool,
    pub(crate) exports: Exports,
    work: Semaphore,
}

/// The login in front of the page.
pub(crate) enum Access {
    Own(Box<OwnLogin>),
    Application(Application),
}

impl App {
    pub(crate) fn new(
        pipelines: Vec<PipelineConfig>,
        inboxes: Vec<InboxConfig>,
        own: Own,
        links: Links,
        access: Access,
    ) -> Self {
        let observer = Observer::new(pipelines.clone(), inboxes.clone());
        let work = Semaphore::new(WORK_MAX);
        let dropped = CancellationToken::new();
        Self {
            pipelines,
            inboxes,
            own,
            access,
            prefix: Arc::default(),
            observer,
            links,
            streams: Streams::new(),
            bulks: Bulks::default(),
            checkups: Jobs::new(),
            comparisons: Jobs::new(),
            replays: Jobs::new(),
            surveys: Surveys::default(),
            relays: Vec::new(),
            ended: dropped.child_token(),
            dropped,
            is_followed: AtomicBool::new(false),
            exports: Exports::new(),
            work,
        }
    }

    /// Mounts the page at a prefix, in an application that runs these relays and consumers.
    pub(crate) fn mounted(
        self,
        prefix: &str,
        relays: Vec<CancellationToken>,
        consumers: Vec<ConsumerStatus>,
    ) -> Self {
        let observer = self.observer.watching(consumers);
        Self { prefix: prefix.into(), relays, observer, ..self }
    }

    /// Returns whether the page is part of an application.
    pub(crate) fn is_embedded(&self) -> bool {
        matches!(self.access, Access::Application(_))
    }

    /// Waits for permission to query databases, for at most [`TURN_MAX`]. Cancel-safe.
    ///
    /// # Errors
    /// A [`Problem`] if others still query them then.
    pub(crate) async fn turn(&self) -> Result<SemaphorePermit<'_>, Problem> {
        let waited = tokio::time::timeout(TURN_MAX, self.work.acquire()).await;
        let Ok(turn) = waited else {
            let (max, seconds) = (WORK_MAX, TURN_MAX.as_secs());
            let text = format!("{max} requests have queried databases for {seconds} s, which is the maximum");
            let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, text);
            return Err(problem.with_help("nothing was changed: a database may not answer; try again later"));
        };
        turn.map_err(|_| Problem::new(StatusCode::SERVICE_UNAVAILABLE, "the relay is stopping"))
    }

    /// Returns the token that stops what begins now: a service that ends does not wait for it. A
    /// page that answers after the end of its relays is stopped by its drop.
    pub(crate) fn until_end(&self) -> CancellationToken {
        if self.ended.is_cancelled() { self.dropped.child_token() } else { self.ended.child_token() }
    }

    /// Stops the doctor, comparisons, replays and decisions about many messages, and waits until
    /// they have ended: a decision ends after a part.
    pub(crate) async fn end_jobs(&self) {
        let checkups = self.checkups.about_to_stop("the doctor");
        let comparisons = self.comparisons.about_to_stop("a comparison");
        let replays = self.replays.about_to_stop("a replay");
        let bulks = self.bulks.stop_all();
        self.dropped.cancel();
        bulks::all_ended(bulks).await;
        all_ended(checkups).await;
        all_ended(comparisons).await;
        all_ended(replays).await;
    }

    /// Returns the pipeline with this name.
    pub(crate) fn pipeline(&self, name: &str) -> Result<&PipelineConfig, Problem> {
        let found = self.pipelines.iter().find(|pipeline| pipeline.name.as_str() == name);
        found.ok_or_else(|| {
            let known: Vec<&str> = self.pipelines.iter().take(20).map(|it| it.name.as_str()).collect();
            let problem = Problem::new(StatusCode::NOT_FOUND, format!("no pipeline is called {name:?}"));
            problem.with_help(format!("configured pipelines: {}", known.join(", ")))
        })
    }

    /// Returns the pipeline with this name, for work that needs its URLs and settings: a service
    /// that lends its relay's database has none.
    pub(crate) fn configured(&self, name: &str, command: &str) -> Result<&PipelineConfig, Problem> {
        let pipeline = self.pipeline(name)?;
        if pipeline.database.lent_address().is_none() {
            return Ok(pipeline);
        }
        let problem =
            Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "this is not available inside a service");
        Err(problem.with_help(format!("use `{command}` with a configuration")))
    }

    /// Returns the outboxes of all pipelines, or of one. Does not connect yet.
    pub(crate) fn outboxes(&self, only: &str) -> Result<Places, Problem> {
        if only.is_empty() {
            return Ok(self.pipelines.iter().fold(Places::new(), Places::outbox));
        }
        Ok(Places::new().outbox(self.pipeline(only)?))
    }

    /// Adds all inboxes, or those of one consumer. Connects to them.
    pub(crate) async fn with_inboxes(&self, places: Places, only: &str) -> Places {
        let inboxes = self.inboxes.iter().filter(|it| only.is_empty() || it.consumer.as_str() == only);
        places.inboxes(inboxes.collect()).await
    }

    /// Adds the inboxes that apply messages of a pipeline, or all if none is named. Connects to
    /// them.
    pub(crate) async fn with_inboxes_of(&self, places: Places, pipeline: &str) -> Places {
        let inboxes = self.inboxes.iter().filter(|inbox| pipeline.is_empty() || inbox.is_of(pipeline));
        places.inboxes(inboxes.collect()).await
    }
}

/// Returns the routes, all of them behind the gate.
pub(crate) fn routes(app: Arc<App>) -> Router {
    use pages::{
        audit, consumers, dead, decide, decision, doctor, edit, held, keys, message, messages, overview,
        pause, pipeline, replay, sagas, topics, verify,
    };
    let login = match &app.access {
        Access::Own(_) => login::routes(),
        Access::Application(_) => Router::new(),
    };
    login
        .route("/", get(overview::show))
        .route("/pipeline", get(pipeline::show))
        .route("/messages", get(messages::show))
        .route("/topics", get(topics::show))
        .route("/held", get(held::show))
        .route("/dead", get(dead::show))
        .route("/dead/export", get(dead::export))
        .route("/dead/confirm", post(decide::confirm))
        .route("/dead/decide", post(decide::carry_out))
        .route("/decision", get(decision::show))
        .route("/decision/stop", post(decision::stop))
        .route("/message", get(message::show))
        .route("/message/payload", post(message::payload))
        .route("/message/edit", post(edit::ask))
        .route("/message/edit/decide", post(edit::decide))
        .route("/message/edit/content", post(edit::changed))
        .route("/verify", get(verify::show).post(verify::run))
        .route("/verify/stop", post(verify::stop))
        .route("/replay", get(replay::show).post(replay::run))
        .route("/replay/confirm", post(replay::confirm))
        .route("/replay/stop", post(replay::stop))
        .route("/doctor", get(doctor::show).post(doctor::run))
        .route("/pause", get(pause::ask).post(pause::pause))
        .route("/resume", post(pause::resume))
        .route("/consumers", get(consumers::show))
        .route("/keys", get(keys::show))
        .route("/keys/confirm", post(keys::confirm))
        .route("/keys/decide", post(keys::decide))
        .route("/sagas", get(sagas::show_all))
        .route("/saga", get(sagas::show))
        .route("/saga/decide", get(sagas::ask).post(sagas::decide))
        .route("/audit", get(audit::show))
        .route("/audit/export", get(audit::export))
        .route("/events", get(stream::events))
        .route("/assets/page.css", get(style))
        .route("/assets/page.js", get(script))
        .route("/assets/htmx.js", get(htmx))
        .route("/assets/icon.svg", get(icon))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(FORM_BYTES_MAX))
        .layer(from_fn_with_state(Arc::clone(&app), gate))
        .with_state(app)
}

async fn unknown(uri: Uri) -> Problem {
    let problem = Problem::new(StatusCode::NOT_FOUND, "page not found");
    let prefix = context::prefix();
    if !prefix.is_empty() && uri.path().starts_with(&*prefix) {
        return problem.with_help(format!("remove {prefix} from paths, as axum's nest_service does"));
    }
    problem
}

async fn wrong_method() -> Problem {
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "this address does not support this method")
}

pub(crate) async fn style() -> Response {
    asset("text/css; charset=utf-8", STYLE)
}

async fn script() -> Response {
    asset("text/javascript; charset=utf-8", SCRIPT)
}

async fn htmx() -> Response {
    asset("text/javascript; charset=utf-8", HTMX)
}

async fn icon() -> Response {
    asset("image/svg+xml", ICON)
}

fn asset(kind: &'static str, content: impl IntoResponse) -> Response {
    let keep = HeaderValue::from_static("private, max-age=300");
    let head = [(header::CONTENT_TYPE, HeaderValue::from_static(kind)), (header::CACHE_CONTROL, keep)];
    (head, content).into_response()
}

#[cfg(test)]
mod tests {
    use super::super::guard::Hosts;
    use super::super::session::Cookie;
    use super::super::sessions::Sessions;
    use super::super::users::Users;
    use super::*;

    /// Goal: while databases do not answer the first requests, later ones end with a reason.
    /// Oracle: the answer to one more than may query at once, and how long it waited.
    #[tokio::test(start_paused = true)]
    async fn a_request_does_not_wait_for_its_turn_without_a_limit() {
        let access = Access::Own(Box::new(OwnLogin {
            hosts: Hosts::new("127.0.0.1:9465".parse().unwrap(), &[]),
            users: Users::load(&[]).unwrap(),
            cookie: Cookie::new(false, 9465),
            proxy: None,
            sessions: Sessions::new(Vec::new()),
        }));
        let app = App::new(Vec::new(), Vec::new(), Own::default(), Links::sample(), access);
        let mut turns = Vec::new();
        for _ in 0..WORK_MAX {
            turns.push(app.turn().await.unwrap());
        }
        let begun = tokio::time::Instant::now();
        let refused = app.turn().await.map(drop).unwrap_err();
        assert_eq!((begun.elapsed(), refused.status), (TURN_MAX, StatusCode::SERVICE_UNAVAILABLE));
        assert!(refused.message.contains("6 requests"), "{refused:?}");
        turns.pop();
        assert!(app.turn().await.is_ok(), "a turn that ends is taken");
    }
}
