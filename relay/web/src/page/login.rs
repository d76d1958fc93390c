//! The login form.

use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use maud::{DOCTYPE, Markup, html};

use super::address::with_query;
use super::again::Again;
use super::answer::{Html, Problem};
use super::app::{self, Access, App};
use super::context::{self, Context};
use super::fields::{Fields, Unproven};
use super::gate::{Asker, ByProxy};
use super::guard::Hosts;
use super::proxied::Proxied;
use super::session::{Cookie, LIFETIME, Session};
use super::sessions::Sessions;
use super::text::plain;
use super::users::{Proof, TooMany, Users};
use crate::listener::Admitted;

/// The page's own login: who may use it, and from where.
pub(crate) struct OwnLogin {
    pub(crate) hosts: Hosts,
    pub(crate) users: Users,
    pub(crate) cookie: Cookie,
    /// The proxy that logs people in, if there is one.
    pub(crate) proxy: Option<Proxied>,
    pub(crate) sessions: Sessions,
}

impl App {
    /// Returns the page's own login. Behind that of an application, no route leads here.
    fn login(&self) -> Result<&OwnLogin, Problem> {
        match &self.access {
            Access::Own(login) => Ok(login.as_ref()),
            Access::Application(_) => Err(Problem::new(StatusCode::NOT_FOUND, "page not found")),
        }
    }
}

/// Returns the routes of the login.
pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route(STYLE, get(app::style))
        .route(PATH, get(form).post(enter).layer(DefaultBodyLimit::max(LOGIN_BYTES_MAX)))
        .route("/logout", post(leave))
}

/// The path of the form.
pub(crate) const PATH: &str = "/login";
/// Maximum size of the login form in bytes: it may keep a whole form, whose fields have longer
/// names there.
const LOGIN_BYTES_MAX: usize = 2 * app::FORM_BYTES_MAX;
/// The path of its stylesheet.
pub(crate) const STYLE: &str = "/login.css";

/// Returns whether a path is served without credentials.
pub(crate) fn is_open(path: &str) -> bool {
    matches!(path, PATH | STYLE)
}

/// `GET /login`.
pub(crate) async fn form(Query(query): Query<Fields>) -> Response {
    Html(page(local(query.text("next")), None, None)).into_response()
}

/// `POST /login`.
pub(crate) async fn enter(
    State(app): State<Arc<App>>,
    connection: Option<Extension<Arc<Admitted>>>,
    Unproven(form): Unproven,
) -> Result<Response, Problem> {
    let login = app.login()?;
    let peer = connection.and_then(|Extension(connection)| connection.peer());
    let next = local(form.text("next")).to_owned();
    let proof = Proof::Named(form.text("name").to_owned(), form.text("secret").to_owned());
    if login.users.is_open() {
        return Ok(Redirect::to("/").into_response());
    }
    let kept = Again::kept(&form).filter(Again::names_its_user);
    let operator = match login.users.prove(&proof, peer).await {
        Ok(Some(operator)) => operator,
        Ok(None) => return Ok(asked_for(&next, Some("Wrong name, password or token."), kept.as_ref())),
        Err(TooMany) => return Ok(too_many()),
    };
    let failed = || Problem::new(StatusCode::SERVICE_UNAVAILABLE, "cannot create the login session");
    let session = Session::begin(operator.name(), SystemTime::now()).ok_or_else(failed)?;
    let cookie = login.users.cookie(&session).ok_or_else(failed)?;
    login.sessions.check_begin(&session).await?;
    login.sessions.note_begin(&session, &operator);
    tracing::info!(target: crate::LOG, user = operator.name(), role = operator.role().as_str(), "login to the page");
    let answer = match kept {
        Some(again) => {
            let context = Context::own(operator.clone(), app.observer.nav());
            Html(context::within(context, async { again.page(&operator) }).await).into_response()
        }
        None => Redirect::to(&next).into_response(),
    };
    Ok(with_cookie(answer, &cookie, LIFETIME.as_secs(), &login.cookie))
}

/// `POST /logout`: ends the session, so that a copy of its cookie is worth nothing. A person whom
/// the proxy has logged in goes on to where the proxy ends that.
pub(crate) async fn leave(
    State(app): State<Arc<App>>,
    Asker(operator): Asker,
    by_proxy: Option<Extension<ByProxy>>,
    session: Option<Extension<Session>>,
) -> Result<Response, Problem> {
    let login = app.login()?;
    if let Some(Extension(session)) = session {
        login.sessions.end(&session, &operator).await;
    }
    let elsewhere = login.proxy.as_ref().and_then(|proxy| proxy.logout_url.as_deref());
    let to = elsewhere.filter(|_| by_proxy.is_some()).unwrap_or(PATH);
    Ok(with_cookie(Redirect::to(to).into_response(), "", 0, &login.cookie))
}

/// Returns the form, as the response to a request without valid credentials.
/// It keeps a form that was sent, until the login.
pub(crate) fn asked_for(next: &str, problem: Option<&str>, kept: Option<&Again>) -> Response {
    let mut response = Html(page(local(next), problem, kept)).into_response();
    *response.status_mut() = StatusCode::UNAUTHORIZED;
    // The browser shows the form; `Basic` would make it open its own dialog.
    response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

/// Returns the response to any login while too many wrong ones arrive.
pub(crate) fn too_many() -> Response {
    let text = "too many failed logins: try again in a second";
    let mut response = Problem::new(StatusCode::TOO_MANY_REQUESTS, text).into_response();
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

fn with_cookie(mut response: Response, value: &str, seconds: u64, cookie: &Cookie) -> Response {
    let (name, secure) = (&cookie.name, if cookie.is_secure { "; Secure" } else { "" });
    let cookie = format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}");
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}

/// Returns an address of this page; any other becomes `/`.
fn local(next: &str) -> &str {
    let is_local = next.starts_with('/')
        && !next.starts_with("//")
        && !next.contains(|c: char| c == '\\' || c.is_control() || !c.is_ascii());
    if is_local && !is_open(next.split('?').next().unwrap_or_default()) { next } else { "/" }
}

fn page(next: &str, problem: Option<&str>, kept: Option<&Again>) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "Log in · relay" }
                link rel="stylesheet" href=(STYLE);
            }
            body class="login" {
                main {
                    h1 { "relay" }
                    form method="post" action=(with_query(PATH, &[])) class="card" {
                        @if let Some(problem) = problem { p class="problem-text" role="alert" { (plain(problem)) } }
                        input type="hidden" name="next" value=(next);
                        @if let Some(kept) = kept { (kept.hidden()) }
                        label { "Name" input name="name" autocomplete="username" required maxlength="64" autofocus; }
                        label { "Password or token"
                            input type="password" name="secret" autocomplete="current-password" required maxlength="1024"; }
                        button class="primary" { "Log in" }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use brokers::Secret;

    use super::super::Own;
    use super::super::links::Links;
    use super::*;
    use crate::settings::{PageCredential, PageUser};

    #[test]
    fn a_login_leads_nowhere_else() {
        for (given, led) in [
            ("/dead?topic=a", "/dead?topic=a"),
            ("//evil.example", "/"),
            ("https://evil.example", "/"),
            ("/\\evil.example", "/"),
            ("/a\r\nSet-Cookie: x", "/"),
            ("", "/"),
            ("/login?next=/login", "/"),
        ] {
            assert_eq!(local(given), led, "{given:?}");
        }
    }

    /// Sends a form from the page itself.
    async fn sent(page: &Router, path: &str, form: &str) -> (StatusCode, String) {
        let request = http::Request::builder()
            .method("POST")
            .uri(path)
            .header(header::HOST, "127.0.0.1:9465")
            .header(header::ORIGIN, "http://127.0.0.1:9465")
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(axum::body::Body::from(form.to_owned()));
        let mut page = page.clone();
        let answer = tower_service::Service::call(&mut page, request.unwrap()).await.unwrap();
        let status = answer.status();
        let body = axum::body::to_bytes(answer.into_body(), 1 << 20).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    /// Goal: what was typed outlives the login, for the user who typed it, and is not carried out
    /// by the login. Oracle: the answers of the page to a form without a login, to a wrong and a
    /// right password, and to the login of another user.
    #[tokio::test]
    async fn a_form_comes_back_after_the_login_that_had_ended() {
        let user = |name: &str| PageUser {
            name: name.to_owned(),
            role: operate::Role::Operator,
            credential: PageCredential::Password(Secret::Text(format!("password-of-{name}").into())),
        };
        let access = Access::Own(Box::new(OwnLogin {
            hosts: Hosts::new("127.0.0.1:9465".parse().unwrap(), &[]),
            users: Users::load(&[user("ann"), user("bob")]).unwrap(),
            cookie: Cookie::new(false, 9465),
            proxy: None,
            sessions: Sessions::new(Vec::new()),
        }));
        let app = App::new(Vec::new(), Vec::new(), Own::default(), Links::sample(), access);
        let page = app::routes(Arc::new(app));
        let typed = "form_user=ann&decision=01a21987-9bca-7af8-8184-ba681445d351&payload=%7B%22n%22%3A1%7D&reason=why%3C";
        let ended = sent(&page, "/message/edit/decide", typed).await;
        assert_eq!(ended.0, StatusCode::UNAUTHORIZED);
        assert!(ended.1.contains("Your login has ended: nothing was changed."), "{}", ended.1);
        assert!(ended.1.contains("name=\"kept.payload\" value=\"{&quot;n&quot;:1}\""), "{}", ended.1);
        let kept = "kept_path=/message/edit/decide&kept.form_user=ann&kept.payload=%7B%22n%22%3A1%7D&kept.reason=why%3C";
        let wrong = sent(&page, PATH, &format!("name=ann&secret=wrong&{kept}")).await;
        assert_eq!(wrong.0, StatusCode::UNAUTHORIZED);
        assert!(wrong.1.contains("name=\"kept.reason\" value=\"why&lt;\""), "{}", wrong.1);
        let back = sent(&page, PATH, &format!("name=ann&secret=password-of-ann&{kept}")).await;
        assert_eq!(back.0, StatusCode::OK);
        for part in [
            "action=\"/message/edit/decide\"",
            "{&quot;n&quot;:1}</textarea>",
            "value=\"why&lt;\"",
            "nothing was changed",
        ] {
            assert!(back.1.contains(part), "{part}: {}", back.1);
        }
        let other = sent(&page, PATH, &format!("name=bob&secret=password-of-bob&{kept}")).await;
        assert!(
            !other.1.contains("&quot;n&quot;") && other.1.contains("you are <span class=\"text\">bob</span>"),
            "{}",
            other.1
        );
        let empty = "&".repeat(super::super::fields::FIELDS_MAX + 100);
        let many = sent(&page, PATH, &format!("name=ann&secret=password-of-ann{empty}")).await;
        assert_eq!(many.0, StatusCode::PAYLOAD_TOO_LARGE, "it is not parsed: {}", many.1);
        let many = sent(&page, "/message/edit/decide", &format!("{typed}{empty}")).await;
        assert!(many.0 == StatusCode::UNAUTHORIZED && !many.1.contains("kept."), "{}", many.1);
        let forged = sent(&page, "/message/edit/decide", "payload=x&reason=y").await;
        assert!(!forged.1.contains("kept."), "a form that names no user: {}", forged.1);
    }

    #[test]
    fn the_form_escapes_where_it_leads() {
        let text = page("/dead?topic=\"><script>", Some("<b>"), None).into_string();
        assert!(!text.contains("<script>") && !text.contains("<b>"), "{text}");
    }
}
