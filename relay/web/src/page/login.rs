//! The login form.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use axum::{Extension, Form, Router};
use maud::{DOCTYPE, Markup, html};

use super::address::with_query;
use super::answer::{Html, Problem};
use super::app::{self, Access, App};
use super::fields::Fields;
use super::guard::Hosts;
use super::session::{Cookie, LIFETIME};
use super::users::{Proof, TooMany, Users};
use crate::listener::Admitted;

/// The page's own login: who may use it, and from where.
pub(crate) struct OwnLogin {
    pub(crate) hosts: Hosts,
    pub(crate) users: Users,
    pub(crate) cookie: Cookie,
}

impl App {
    /// Returns the page's own login. Behind that of an application, no route leads here.
    fn login(&self) -> Result<&OwnLogin, Problem> {
        match &self.access {
            Access::Own(login) => Ok(login),
            Access::Application(_) => Err(Problem::new(StatusCode::NOT_FOUND, "page not found")),
        }
    }
}

/// Returns the routes of the login.
pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route(STYLE, get(app::style))
        .route(PATH, get(form).post(enter))
        .route("/logout", post(leave))
}

/// The path of the form.
pub(crate) const PATH: &str = "/login";
/// The path of its stylesheet.
pub(crate) const STYLE: &str = "/login.css";

/// Returns whether a path is served without credentials.
pub(crate) fn is_open(path: &str) -> bool {
    matches!(path, PATH | STYLE)
}

/// `GET /login`.
pub(crate) async fn form(Query(query): Query<Fields>) -> Response {
    Html(page(local(query.text("next")), None)).into_response()
}

/// `POST /login`.
pub(crate) async fn enter(
    State(app): State<Arc<App>>,
    connection: Option<Extension<Arc<Admitted>>>,
    Form(form): Form<Fields>,
) -> Result<Response, Problem> {
    let login = app.login()?;
    let peer = connection.and_then(|Extension(connection)| connection.peer());
    let next = local(form.text("next")).to_owned();
    let proof = Proof::Named(form.text("name").to_owned(), form.text("secret").to_owned());
    if login.users.is_open() {
        return Ok(Redirect::to("/").into_response());
    }
    let operator = match login.users.prove(&proof, peer).await {
        Ok(Some(operator)) => operator,
        Ok(None) => return Ok(asked_for(&next, Some("wrong name or secret"))),
        Err(TooMany) => return Ok(too_many()),
    };
    let Some(cookie) = login.users.cookie(&operator) else {
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "cannot create the login session"));
    };
    tracing::info!(target: crate::LOG, user = operator.name(), role = operator.role().as_str(), "login to the page");
    Ok(with_cookie(Redirect::to(&next).into_response(), &cookie, LIFETIME.as_secs(), &login.cookie))
}

/// `POST /logout`.
pub(crate) async fn leave(State(app): State<Arc<App>>) -> Result<Response, Problem> {
    Ok(with_cookie(Redirect::to(PATH).into_response(), "", 0, &app.login()?.cookie))
}

/// Returns the form, as the response to a request without valid credentials.
pub(crate) fn asked_for(next: &str, problem: Option<&str>) -> Response {
    let mut response = Html(page(local(next), problem)).into_response();
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

fn page(next: &str, problem: Option<&str>) -> Markup {
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
                        @if let Some(problem) = problem { p class="problem-text" role="alert" { (problem) } }
                        input type="hidden" name="next" value=(next);
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
    use super::*;

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

    #[test]
    fn the_form_escapes_where_it_leads() {
        let text = page("/dead?topic=\"><script>", Some("<b>")).into_string();
        assert!(!text.contains("<script>") && !text.contains("<b>"), "{text}");
    }
}
