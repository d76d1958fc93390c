//! The checks that every request passes before a handler sees it, and the headers of every
//! response.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use operate::Operator;

use super::again::Again;
use super::answer::Problem;
use super::app::{Access, App, FORM_BYTES_MAX};
use super::application::{Guest, with_key};
use super::context::{self, Context};
use super::fields::has_few_fields;
use super::following;
use super::guard::{Head, has_credentials, is_from_here};
use super::login::{self, OwnLogin};
use super::proxied::{self, Claim};
use super::session::Session;
use super::users::{Proof, TooMany, proof};
use crate::listener::Admitted;

/// Maximum size of an address in bytes: enough for a filter with long names.
const ADDRESS_BYTES_MAX: usize = 8_000;
/// Timeout of a request; decisions about many messages take longest.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(120);

/// Only the page's own resources are executed, shown or called, and no site may frame it.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
);

/// An authenticated user. Handlers pass the operator to `operate`, which knows its rights.
pub(crate) struct Asker(pub(crate) Operator);

impl<S: Send + Sync> FromRequestParts<S> for Asker {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        // Missing only for a route that bypasses the gate.
        let missing = || Problem::new(StatusCode::UNAUTHORIZED, "you are not logged in");
        parts.extensions.get::<Operator>().cloned().map(Self).ok_or_else(missing)
    }
}

/// Lets a request through, or answers it.
pub(crate) async fn gate(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let prefix = Arc::clone(&app.prefix);
    context::below(prefix, Box::pin(passed(&app, request, next))).await
}

async fn passed(app: &Arc<App>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    match &app.access {
        Access::Own(login) => {
            // Only the gate names the user, whatever layers surround the page. The login of an
            // application may leave its operator here; the one that it names replaces it.
            parts.extensions.remove::<Operator>();
            parts.extensions.remove::<ByProxy>();
            parts.extensions.remove::<Session>();
            let answer = match admit(login, &parts).await {
                Ok(Some(Visitor { operator, by_proxy, session })) => {
                    if let Some(session) = session {
                        parts.extensions.insert(session);
                    }
                    let mut context = Context::own(operator, app.observer.nav());
                    if by_proxy {
                        parts.extensions.insert(ByProxy);
                        context.has_logout =
                            login.proxy.as_ref().is_some_and(|proxy| proxy.logout_url.is_some());
                    }
                    of_user(app, next, Request::from_parts(parts, body), context).await
                }
                Ok(None) => answer(next, Request::from_parts(parts, body)).await,
                Err(Refused::Whole(response)) => *response,
                Err(Refused::Login(ended)) => ended.answer(&parts, body).await,
            };
            sealed(answer, login.cookie.is_secure)
        }
        Access::Application(application) => {
            let answer = match application.admit(&parts, body).await {
                Ok(Guest { operator, key, is_new, body }) => {
                    following::begin(app);
                    let token = key.token(&operator);
                    let request = Request::from_parts(parts, body);
                    let nav = app.observer.nav();
                    let context = Context {
                        operator,
                        nav,
                        form_token: Some(token),
                        has_logout: false,
                        path: String::new(),
                    };
                    let answer = of_user(app, next, request, context).await;
                    if is_new { with_key(answer, &key, &app.prefix) } else { answer }
                }
                Err(problem) => problem.into_response(),
            };
            // The application decides about transport.
            sealed(answer, false)
        }
    }
}

/// Answers the request of a user.
async fn of_user(app: &App, next: Next, mut request: Request, context: Context) -> Response {
    let context = Context { path: request.uri().path().to_owned(), ..context };
    request.extensions_mut().insert(context.operator.clone());
    app.observer.mark_read();
    context::within(context, answer(next, request)).await
}

async fn answer(next: Next, request: Request) -> Response {
    let is_safe = request.method().is_safe();
    match tokio::time::timeout(REQUEST_TIMEOUT, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            let problem = Problem::new(StatusCode::GATEWAY_TIMEOUT, "the request took too long");
            let help = if is_safe {
                "nothing was changed: try again, or request less"
            } else {
                "it may have been carried out, or still be running: check the result before you repeat it"
            };
            problem.with_help(help).into_response()
        }
    }
}

/// Advice about a request that is refused.
pub(crate) struct Advice {
    pub(crate) credentials: &'static str,
    pub(crate) origin: &'static str,
}

/// Refuses a request that does not come from this page, or whose address contains credentials.
/// `has_bearer`: whether it has a token in a header, which no browser adds on its own.
pub(crate) fn from_the_page(request: &Parts, has_bearer: bool, advice: &Advice) -> Result<(), Problem> {
    let text = |name: &str| request.headers.get(name).and_then(|value| value.to_str().ok());
    let (path, query) = (request.uri.path(), request.uri.query().unwrap_or_default());
    if path.len() + query.len() > ADDRESS_BYTES_MAX {
        let text = format!("the address is longer than {ADDRESS_BYTES_MAX} bytes");
        return Err(Problem::new(StatusCode::URI_TOO_LONG, text));
    }
    if has_credentials(query) {
        let text = "credentials in an address are refused: they would be stored in logs and histories";
        return Err(Problem::bad(text).with_help(advice.credentials));
    }
    let head = Head {
        is_safe: request.method.is_safe(),
        // HTTP/2 puts it in the address.
        host: text("host").or_else(|| request.uri.authority().map(|authority| authority.as_str())),
        origin: text_or_broken(&request.headers, "origin"),
        site: text_or_broken(&request.headers, "sec-fetch-site"),
        mode: text("sec-fetch-mode"),
        has_bearer,
    };
    if !is_from_here(head) {
        let text = "the request comes from another page or has no origin; nothing was changed";
        return Err(Problem::new(StatusCode::FORBIDDEN, text).with_help(advice.origin));
    }
    Ok(())
}

/// Advice of a page with its own login.
const ADVICE: Advice = Advice {
    credentials: "send `Authorization: Bearer …`, or log in; treat the secret as compromised",
    origin: "use the page's own forms; a program must send its token, or `Origin` with this address",
};

/// Marks the request of a person whom the proxy has logged in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ByProxy;

/// The user of a request.
struct Visitor {
    operator: Operator,
    /// Whether the proxy has named them.
    by_proxy: bool,
    /// The session, if the proof is a cookie.
    session: Option<Session>,
}

/// Returns the user of a request; `None` for the parts of the login form.
async fn admit(login: &OwnLogin, request: &Parts) -> Result<Option<Visitor>, Refused> {
    let refuse = |problem: Problem| Refused::Whole(Box::new(problem.into_response()));
    let text = |name: &str| request.headers.get(name).and_then(|value| value.to_str().ok());
    let hosts = request.headers.get_all(header::HOST).iter().count();
    let authority = request.uri.authority().map(|authority| authority.as_str());
    let is_known = hosts == 1
        && login.hosts.allow(text("host"))
        && authority.is_none_or(|it| login.hosts.allow(Some(it)));
    if !is_known {
        let problem =
            Problem::new(StatusCode::MISDIRECTED_REQUEST, "the page is not available under this host name");
        return Err(refuse(problem.with_help("add the name to page.hosts of the relay's configuration")));
    }
    let cookies: Vec<&str> =
        request.headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok()).collect();
    let proof = proof(text("authorization"), &cookies, &login.cookie.name);
    // There is none in a service with its own listener.
    let connection = request.extensions.get::<Arc<Admitted>>().cloned();
    if let Some(operator) = named_by_proxy(login, request, connection.as_deref()).await? {
        // A proxy adds its headers, and often a token, to whatever a browser sends: they do not
        // show that the request comes from the page.
        from_the_page(request, false, &ADVICE).map_err(refuse)?;
        connection.iter().for_each(|connection| connection.heard());
        if request.uri.path() == login::PATH {
            return Err(Refused::Whole(Box::new(Redirect::to("/").into_response())));
        }
        return Ok(Some(Visitor { operator, by_proxy: true, session: None }));
    }
    from_the_page(request, matches!(proof, Proof::Token(_)), &ADVICE).map_err(refuse)?;
    let path = request.uri.path();
    // Only the login form and its stylesheet are served without credentials.
    if login::is_open(path) {
        return Ok(None);
    }
    match login.users.prove(&proof, connection.as_deref().and_then(Admitted::peer)).await {
        Ok(Some(operator)) => {
            let session = match &proof {
                Proof::Cookie(value) if !login.users.is_open() => Session::claimed(value),
                _ => None,
            };
            if let Some(session) = &session
                && let Some(ended) = login.sessions.end_of(session).await
            {
                let by = Some(ended.actor).filter(|actor| *actor != session.user);
                return Err(Refused::Login(by.map_or(NoLogin::Ended, NoLogin::Revoked)));
            }
            // Only authenticated users keep a connection that others may need.
            connection.iter().for_each(|connection| connection.heard());
            return Ok(Some(Visitor { operator, by_proxy: false, session }));
        }
        Ok(None) if login.proxy.is_some() && !login.users.has_any() => {
            let problem = Problem::new(StatusCode::UNAUTHORIZED, "the proxy has named no user");
            let help = "open the page through the proxy, which logs people in; it must send the header of \
                        page.proxy_login.user_header";
            return Err(refuse(problem.with_help(help)));
        }
        Ok(None) => {}
        Err(TooMany) => return Err(Refused::Whole(Box::new(login::too_many()))),
    }
    Err(Refused::Login(match proof {
        Proof::Named(..) | Proof::Token(_) => NoLogin::Wrong,
        Proof::Cookie(_) => NoLogin::Ended,
        Proof::None => NoLogin::Missing,
    }))
}

/// Returns the person whom the proxy names; `None` without such a proxy, and for a request that
/// names nobody.
async fn named_by_proxy(
    login: &OwnLogin,
    request: &Parts,
    connection: Option<&Admitted>,
) -> Result<Option<Operator>, Refused> {
    let Some(proxy) = &login.proxy else { return Ok(None) };
    let from = connection.map(Admitted::address);
    let problem = match proxy.claim(&request.headers, from, &login.users) {
        Claim::Nothing => return Ok(None),
        Claim::Person(operator) => return Ok(Some(operator)),
        Claim::Refused(problem) => {
            tracing::warn!(target: crate::LOG, "login to the page by the proxy refused: {problem:?}");
            proxied::refused(&problem)
        }
        Claim::Forged(header) => {
            let peer = from.unwrap_or(UNKNOWN);
            let report = || {
                tracing::warn!(
                    target: crate::LOG, header, %peer,
                    "login to the page refused: a header that is believed only from the proxy"
                );
            };
            if let Err(TooMany) = login.users.punish(peer, report).await {
                return Err(Refused::Whole(Box::new(login::too_many())));
            }
            proxied::forged(&header, from)
        }
    };
    Err(Refused::Whole(Box::new(problem.into_response())))
}

/// Stands for an address that is not known.
const UNKNOWN: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// The refusal of a request.
enum Refused {
    /// With this response.
    Whole(Box<Response>),
    /// For want of a login: the response is the login form.
    Login(NoLogin),
}

/// The reason why a request has no user.
#[derive(Clone, PartialEq, Eq)]
enum NoLogin {
    /// It has no credentials, which is also so after a login has ended and its cookie is gone.
    Missing,
    /// Its credentials are not valid.
    Wrong,
    /// Its login has ended.
    Ended,
    /// This person has ended its session.
    Revoked(String),
}

/// Timeout for the body of a form that a login form keeps.
const KEEP_TIMEOUT: Duration = Duration::from_secs(10);

impl NoLogin {
    /// Returns the login form. A form that people filled in is kept in it, and comes back after the
    /// login.
    async fn answer(self, request: &Parts, body: Body) -> Response {
        let path = request.uri.path();
        if !request.method.is_safe() {
            let kept = if self == Self::Wrong { None } else { kept(request, body).await };
            let text = match (&self, &kept) {
                (Self::Wrong, _) => String::from("These credentials are not valid."),
                (Self::Revoked(by), _) => format!("{by} has ended your session: nothing was changed."),
                (_, Some(_)) => String::from(
                    "Your login has ended: nothing was changed. After the login the form comes back with what \
                     you typed.",
                ),
                (_, None) => String::from("You are not logged in: nothing was changed."),
            };
            return login::asked_for("/", Some(&text), kept.as_ref());
        }
        let uri = request.uri.path_and_query().map_or("/", |uri| uri.as_str());
        let next = if path.starts_with("/assets/") || path == "/events" { "/" } else { uri };
        let text = match self {
            Self::Wrong => Some(String::from("These credentials are not valid.")),
            Self::Revoked(by) => {
                Some(format!("{by} has ended your session. A new login begins another one."))
            }
            Self::Ended => Some(String::from("Your login has ended. A new one leads back to the same page.")),
            // Browsers remove the cookie of a login that has ended.
            Self::Missing if next != "/" => Some(String::from(
                "You are not logged in, or your login has ended. The login leads to the page that you asked for.",
            )),
            Self::Missing => None,
        };
        login::asked_for(next, text.as_deref(), None)
    }
}

/// Reads the form that a request without a login has sent; `None` for one that cannot come back.
async fn kept(request: &Parts, body: Body) -> Option<Again> {
    let kind = request.headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    if !kind.starts_with("application/x-www-form-urlencoded") {
        return None;
    }
    let read = tokio::time::timeout(KEEP_TIMEOUT, to_bytes(body, FORM_BYTES_MAX)).await;
    let read = read.ok()?.ok().filter(|body| has_few_fields(body))?;
    let fields = form_urlencoded::parse(&read).into_owned().collect();
    Again::of(request.uri.path(), fields).filter(Again::names_its_user)
}

/// Returns a header's value. One that is not text counts as foreign, not as missing.
fn text_or_broken<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).map(|value| value.to_str().unwrap_or("?"))
}

/// Adds the headers of every response.
fn sealed(mut response: Response, is_secure: bool) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, POLICY);
    for (name, value) in [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.insert("cross-origin-opener-policy", HeaderValue::from_static("same-origin"));
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    if !headers.contains_key(header::CACHE_CONTROL) {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    if is_secure {
        headers.insert(header::STRICT_TRANSPORT_SECURITY, HeaderValue::from_static("max-age=31536000"));
    }
    response
}
