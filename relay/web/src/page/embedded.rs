//! The page as a part of an application: a service, behind the login of the application.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Bytes;
use http::request::Parts;
use http_body::{Body, Frame, SizeHint};
use inbox::{ConsumerName, ConsumerStatus};
use message::InvalidText;
use operate::{InboxConfig, Operator, PipelineConfig};
use outbox_log::{Address, LogOptions};
use tokio_util::sync::{CancellationToken, DropGuard};
use tower_service::Service;

use super::Own;
use super::app::{Access, App, routes};
use super::application::{Application, Ask};
use super::links::Links;

/// Maximum size of a prefix in bytes.
const PREFIX_BYTES_MAX: usize = 255;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The options of a page that is part of an application.
#[must_use = "give it to the relay"]
#[non_exhaustive]
pub struct PageOptions {
    prefix: String,
    ask: Ask,
    dashboard_url: Option<String>,
    runbook_url: Option<String>,
    inboxes: Vec<(String, Address, LogOptions)>,
    consumers: Vec<ConsumerStatus>,
}

impl fmt::Debug for PageOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageOptions").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl PageOptions {
    /// Mounts the page at `prefix`, the path by which browsers reach it: `/ops/outbox`, or an empty
    /// text for a page at the root.
    ///
    /// `operator` returns the user of a request: the name that the audit keeps, and the rights. It
    /// reads the result of the application's login from the request, such as an extension, and
    /// returns `None` for a request without a login, which is then refused. It must not block.
    /// **Whoever it names may use the page: there is no other login.**
    pub fn new(
        prefix: impl Into<String>,
        operator: impl Fn(&Parts) -> Option<Operator> + Send + Sync + 'static,
    ) -> Self {
        Self {
            prefix: prefix.into(),
            ask: Box::new(operator),
            dashboard_url: None,
            runbook_url: None,
            inboxes: Vec::new(),
            consumers: Vec::new(),
        }
    }

    /// Links each pipeline to a dashboard; its name replaces `{pipeline}` in the address.
    pub fn dashboard_url(mut self, url: impl Into<String>) -> Self {
        self.dashboard_url = Some(url.into());
        self
    }

    /// Links problems to the sections of this runbook; by default to that of this version's
    /// documentation.
    pub fn runbook_url(mut self, url: impl Into<String>) -> Self {
        self.runbook_url = Some(url.into());
        self
    }

    /// Shows the inbox of a consumer as well: a pool, whose options are used, or a URL. Of the
    /// options, the schema and `allow_plaintext` apply.
    pub fn inbox(
        mut self,
        consumer: impl Into<String>,
        database: impl Into<Address>,
        options: LogOptions,
    ) -> Self {
        self.inboxes.push((consumer.into(), database.into(), options));
        self
    }

    /// Shows what a consumer of this process reads and waits for, from memory: take its
    /// [`status`](inbox::Consumer::status) before its `run`. Beside it, [`inbox`](Self::inbox) shows
    /// what all its processes have applied.
    pub fn consumer(mut self, status: ConsumerStatus) -> Self {
        self.consumers.push(status);
        self
    }
}

/// The reason why a page cannot be built. The program is at fault.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildPageError {
    /// The prefix cannot be used.
    #[error("the page cannot be mounted at {prefix:?}: {problem}; use a path such as \"/ops/outbox\"")]
    Prefix {
        /// The prefix.
        prefix: String,
        /// The problem with it.
        problem: &'static str,
    },
    /// Several relays have one name, by which the page finds them.
    #[error("two relays of the page are called {name}; give each its own with .name(..)")]
    SameName {
        /// The name.
        name: String,
    },
    /// A link cannot be used.
    #[error("{url:?} is not the address of a page; write one that begins with https:// or http://")]
    Link {
        /// The address.
        url: String,
    },
    /// The name of a consumer cannot be used.
    #[error("the inbox of {consumer:?} cannot be shown: {error}")]
    Consumer {
        /// The name.
        consumer: String,
        /// The problem with it.
        error: InvalidText,
    },
}

/// The page as a service of an application: takes requests whose path no longer has the prefix, as
/// `axum::Router::nest_service` passes them on. Cheap to clone.
///
/// Runs in a runtime of tokio. It opens connections only for requests, and for queries that begin
/// with the first request of a user, every 2 seconds while a browser follows the page, and
/// otherwise every 15 seconds. They end when the page is dropped, when its relays stop, and after
/// an hour without a request; a later request begins them again.
///
/// A request that is dropped continues the decision that it has begun.
#[derive(Clone)]
pub struct RelayPage {
    routes: Router,
    app: Arc<App>,
    _drop: Arc<DropGuard>,
}

impl fmt::Debug for RelayPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RelayPage").field("prefix", &self.app.prefix).finish_non_exhaustive()
    }
}

impl RelayPage {
    /// Makes the page about these pipelines, whose relays cancel their tokens when they stop.
    /// Connects to nothing yet.
    ///
    /// # Errors
    /// [`BuildPageError`].
    pub fn new(
        pipelines: Vec<PipelineConfig>,
        own: Own,
        relays: Vec<CancellationToken>,
        options: PageOptions,
    ) -> Result<Self, BuildPageError> {
        let PageOptions { prefix, ask, dashboard_url, runbook_url, inboxes, consumers } = options;
        let prefix = check_prefix(prefix)?;
        let mut names = BTreeSet::new();
        if let Some(twice) = pipelines.iter().find(|it| !names.insert(it.name.as_str())) {
            return Err(BuildPageError::SameName { name: twice.name.as_str().to_owned() });
        }
        let is_link = |url: &str| url.starts_with("https://") || url.starts_with("http://");
        if let Some(url) = dashboard_url.iter().chain(&runbook_url).find(|url| !is_link(url)) {
            return Err(BuildPageError::Link { url: url.clone() });
        }
        let inboxes = inboxes.into_iter().map(|(consumer, address, options)| {
            let name = ConsumerName::new(consumer.as_str());
            let name = name.map_err(|error| BuildPageError::Consumer { consumer, error })?;
            Ok(InboxConfig::lent(name, address, options))
        });
        let inboxes = inboxes.collect::<Result<Vec<_>, BuildPageError>>()?;
        let links = Links::new(dashboard_url, runbook_url.as_deref());
        let access = Access::Application(Application { ask });
        let app = App::new(pipelines, inboxes, own, links, access);
        let app = Arc::new(app.mounted(&prefix, relays, consumers));
        let drop = Arc::new(app.dropped.clone().drop_guard());
        Ok(Self { routes: routes(Arc::clone(&app)), app, _drop: drop })
    }

    /// Returns the prefix, for `nest_service`; empty for a page at the root, which is a
    /// `fallback_service`.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.app.prefix
    }

    /// Ends the event streams and the exports of browsers, so that a server can shut down without
    /// waiting for them, the replays after their batch, and the queries behind the page. Requests
    /// are still answered. A relay that stops does the same.
    pub fn stop(&self) {
        self.app.ended.cancel();
    }
}

/// Checks the prefix. It becomes a part of addresses, of routes and of a cookie.
fn check_prefix(prefix: String) -> Result<String, BuildPageError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '_' | '.' | '~');
    let problem = match prefix.as_str() {
        "" | "/" => return Ok(String::new()),
        text if !text.starts_with('/') => "it does not begin with a slash",
        text if text.ends_with('/') => "it ends with a slash",
        text if text.len() > PREFIX_BYTES_MAX => "it has more than 255 bytes",
        text if !text.chars().all(is_plain) => "it has a character other than letters, digits and /-_.~",
        text if text.split('/').skip(1).any(|part| matches!(part, "" | "." | "..")) => {
            "it has a part that is empty, . or .."
        }
        _ => return Ok(prefix),
    };
    Err(BuildPageError::Prefix { prefix, problem })
}

/// The body of an answer.
#[derive(Debug)]
pub struct PageBody(axum::body::Body);

impl Body for PageBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.0).poll_frame(context).map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

impl<B> Service<http::Request<B>> for RelayPage
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = http::Response<PageBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let answer = self.routes.call(request.map(axum::body::Body::new));
        Box::pin(async move { answer.await.map(|response| response.map(PageBody)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "kafka")]
    mod lent {
        use std::time::Duration;

        use axum::response::Response;
        use brokers::kafka;
        use engine::{EngineOptions, Publishing};
        use http::{StatusCode, header};
        use operate::{Broker, Database, Retention, Role};

        use super::super::super::forms::{FIELD, FormKey};
        use super::*;

        /// Returns a page about a relay that publishes in transactions and whose database the page
        /// cannot open. The login leaves an [`Operator`] in each request.
        fn page() -> RelayPage {
            page_with(PageOptions::new("", |request| request.extensions.get::<Operator>().cloned()))
        }

        fn page_with(options: PageOptions) -> RelayPage {
            let config = kafka::Config::new(["127.0.0.1:1"]).allow_plaintext(true);
            let size_limit = config.size_limit();
            let transactions = Arc::new(kafka::TransactionalConnector::new(config).unwrap());
            let address = Address::from("sqlite:/nowhere/orders.db");
            let pipeline = PipelineConfig {
                name: outbox_log::RelayName::new("orders").unwrap(),
                source: message::Source::new("/orders").unwrap(),
                database: Database::lent(address, LogOptions::default()),
                retention: Retention::Off,
                audit_retention: Retention::Off,
                broker: Broker::Given { publishing: Publishing::InTransactions(transactions), size_limit },
                settings: EngineOptions::default(),
            };
            RelayPage::new(vec![pipeline], Own::new(), Vec::new(), options).unwrap()
        }

        /// Sends a form, or asks for a page without one.
        async fn asked(page: &RelayPage, path: &str, form: Option<&str>) -> Response {
            let ann = Operator::new("ann", Role::Operator);
            let key = FormKey::new();
            let cookie = key.cookie("");
            let builder = http::Request::builder().uri(path).header(header::HOST, "shop.example");
            let request = match form {
                None => builder.body(axum::body::Body::empty()),
                Some(form) => builder
                    .method("POST")
                    .header(header::ORIGIN, "http://shop.example")
                    .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
                    .header(header::COOKIE, cookie.split(';').next().unwrap_or_default())
                    .body(format!("{FIELD}={}&{form}", key.token(&ann)).into()),
            };
            let mut request = request.unwrap();
            request.extensions_mut().insert(ann);
            page.clone().call(request).await.unwrap().map(|PageBody(body)| body)
        }

        async fn text(response: Response) -> String {
            let bytes = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
            String::from_utf8(bytes.to_vec()).unwrap()
        }

        /// Goal: inboxes that do not answer cost the page of a message the time of one, because it
        /// keeps others waiting meanwhile. Oracle: all of them have a connection while none has
        /// been answered.
        #[tokio::test]
        async fn silent_inboxes_of_a_message_are_waited_for_together() {
            let mut accepting = tokio::task::JoinSet::new();
            let mut options = PageOptions::new("", |request| request.extensions.get::<Operator>().cloned());
            for number in 0..8 {
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
                let place = listener.local_addr().unwrap();
                let url = format!("postgres://nobody:secret@{place}/none?sslmode=disable");
                options =
                    options.inbox(format!("consumer-{number}"), Address::from(&url), LogOptions::default());
                accepting.spawn(async move { listener.accept().await.unwrap().0 });
            }
            let page = page_with(options);
            let path = "/message?id=0198a0de-0000-7000-8000-000000000000";
            let connected = async {
                // Without an answer, a connection is given up after 10 s.
                let connected = tokio::time::timeout(Duration::from_secs(9), accepting.join_all()).await;
                drop(connected.expect("one of them was waited for alone"));
            };
            let answered = tokio::join!(asked(&page, path, None), connected).0;
            let told = text(answered).await;
            assert!((0..8).all(|number| told.contains(&format!("consumer-{number}"))), "{told}");
        }

        /// Goal: the page offers nothing that cannot work with what a service lends. Oracle: the
        /// answers, which name the command instead, and the links of a pipeline.
        #[tokio::test]
        async fn what_cannot_work_is_not_offered_and_refused() {
            let page = page();
            let form = "pipeline=orders&topic=orders&chosen=1&reason=purged";
            for (path, form, command) in [
                ("/doctor?pipeline=orders", None, "relay doctor"),
                ("/doctor", Some(form), "relay doctor"),
                ("/verify?pipeline=orders", None, "relay verify"),
                ("/verify", Some(form), "relay verify"),
                ("/replay/confirm", Some(form), "relay replay"),
                ("/replay", Some(form), "relay replay"),
            ] {
                let refused = asked(&page, path, form).await;
                assert_eq!(refused.status(), StatusCode::UNPROCESSABLE_ENTITY, "{path}");
                let told = text(refused).await;
                assert!(told.contains(command), "{path}: {told}");
            }
            let form = text(asked(&page, "/replay?pipeline=orders", None).await).await;
            assert!(form.contains("relay replay") && !form.contains("Preview"), "{form}");
            let shown = asked(&page, "/pipeline?name=orders", None).await;
            assert_eq!(shown.status(), StatusCode::OK);
            let shown = text(shown).await;
            assert!(!shown.contains("/doctor") && !shown.contains("/verify"), "{shown}");
            assert!(!shown.contains("/replay"), "{shown}");
        }
    }

    #[test]
    fn a_prefix_that_is_no_plain_path_is_refused() {
        for (given, taken) in
            [("", ""), ("/", ""), ("/ops/outbox", "/ops/outbox"), ("/~a/b.c_d-1", "/~a/b.c_d-1")]
        {
            assert_eq!(check_prefix(given.into()).unwrap(), taken);
        }
        let long = format!("/{}", "a".repeat(255));
        for (hostile, told) in [
            ("ops", "does not begin with a slash"),
            ("https://evil.example", "does not begin with a slash"),
            ("/ops/", "ends with a slash"),
            ("//evil.example", "is empty, . or .."),
            ("/a//b", "is empty, . or .."),
            ("/a/../b", "is empty, . or .."),
            ("/a/.", "is empty, . or .."),
            ("/\\evil.example", "a character other than"),
            ("/a; Path=/b", "a character other than"),
            ("/a\r\nSet-Cookie: x", "a character other than"),
            ("/\"><script>", "a character other than"),
            ("/{tenant}", "a character other than"),
            ("/a%2fb", "a character other than"),
            ("/a?b", "a character other than"),
            ("/ä", "a character other than"),
            (&long, "more than 255 bytes"),
        ] {
            let error = check_prefix(hostile.into()).unwrap_err().to_string();
            assert!(error.contains(told) && error.contains("/ops/outbox"), "{hostile}: {error}");
        }
    }
}
