//! An application with its own login, the page below a prefix, and a browser that submits forms.

use std::convert::Infallible;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use http_body_util::BodyExt as _;
use outbox_toolkit::{Operator, OperatorRole, PageOptions, RelayPage};
use tests::Failure;
use tower_service::Service as _;

pub(super) const PREFIX: &str = "/ops/outbox";
pub(super) const HOST: &str = "shop.example:8443";
/// The header in which this application's login finds its user.
const LOGIN: &str = "x-login";

/// The user, set by the application's login in a request.
#[derive(Clone)]
struct User {
    name: String,
    is_admin: bool,
}

/// Returns the options of a page whose users come from the application's login.
pub(super) fn options(prefix: &str) -> PageOptions {
    PageOptions::new(prefix, |request| {
        let user = request.extensions.get::<User>()?;
        let role = if user.is_admin { OperatorRole::Operator } else { OperatorRole::Viewer };
        Some(Operator::new(&user.name, role))
    })
}

/// Reads the user `name` or `admin:name` from its header, as a login reads its session.
async fn login(mut request: Request, next: Next) -> Response {
    let name = request.headers().get(LOGIN).and_then(|value| value.to_str().ok()).map(str::to_owned);
    if let Some(name) = name {
        let admin = name.strip_prefix("admin:").map(str::to_owned);
        let user = User { is_admin: admin.is_some(), name: admin.unwrap_or(name) };
        request.extensions_mut().insert(user);
    }
    next.run(request).await
}

/// Returns the application with the page, behind its login.
pub(super) fn application(page: &RelayPage) -> Router {
    let router = match page.prefix() {
        "" => Router::new().fallback_service(page.clone()),
        prefix => Router::new().nest_service(prefix, page.clone()),
    };
    router.layer(from_fn(login))
}

/// A browser in which a user is logged in to the application.
pub(super) struct Browser {
    application: Router,
    user: Option<String>,
    cookies: Mutex<Vec<String>>,
    heads: Vec<(String, String)>,
}

pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: String,
}

impl Browser {
    pub(super) fn new(application: &Router, user: &str) -> Self {
        let user = Some(user.to_owned()).filter(|user| !user.is_empty());
        Self { application: application.clone(), user, cookies: Mutex::default(), heads: Vec::new() }
    }

    /// Sends one more header.
    pub(super) fn with(mut self, name: &str, value: &str) -> Self {
        self.heads.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Logs another user in, in the same browser.
    pub(super) fn becomes(&mut self, user: &str) {
        self.user = Some(user.to_owned());
    }

    pub(super) async fn get(&self, path: &str) -> Result<Answer, Failure> {
        Answer::of(self.open(path).await?).await
    }

    /// Returns a response without reading its body.
    pub(super) async fn open(&self, path: &str) -> Result<Response, Failure> {
        self.send(self.request("GET", path).body(Body::empty())?).await
    }

    /// Sends a form of the page.
    pub(super) async fn post(&self, path: &str, fields: &[(&str, &str)]) -> Result<Answer, Failure> {
        self.post_from(&format!("https://{HOST}"), path, fields).await
    }

    pub(super) async fn post_from(
        &self,
        origin: &str,
        path: &str,
        fields: &[(&str, &str)],
    ) -> Result<Answer, Failure> {
        let request = self
            .request("POST", path)
            .header(header::ORIGIN, origin)
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
        let pairs = fields.iter().map(|(name, value)| format!("{name}={}", encoded(value)));
        let body = pairs.collect::<Vec<_>>().join("&");
        Answer::of(self.send(request.body(Body::from(body))?).await?).await
    }

    fn request(&self, method: &str, path: &str) -> axum::http::request::Builder {
        let mut request = axum::http::Request::builder().method(method).uri(path).header(header::HOST, HOST);
        for cookie in &*self.cookies.lock().unwrap_or_else(PoisonError::into_inner) {
            request = request.header(header::COOKIE, cookie);
        }
        for (name, value) in &self.heads {
            request = request.header(name, value);
        }
        match &self.user {
            Some(user) => request.header(LOGIN, user),
            None => request,
        }
    }

    async fn send(&self, request: Request) -> Result<Response, Failure> {
        let answered = self.application.clone().call(request);
        let answered = tokio::time::timeout(Duration::from_secs(60), answered).await?;
        let response = answered.unwrap_or_else(|never: Infallible| match never {});
        for cookie in response.headers().get_all(header::SET_COOKIE) {
            let pair = cookie.to_str()?.split(';').next().unwrap_or_default().to_owned();
            self.cookies.lock().unwrap_or_else(PoisonError::into_inner).push(pair);
        }
        Ok(response)
    }
}

impl Answer {
    pub(super) async fn of(response: Response) -> Result<Self, Failure> {
        let (head, body) = response.into_parts();
        let body = String::from_utf8_lossy(&body.collect().await?.to_bytes()).into_owned();
        Ok(Self { status: head.status, headers: head.headers, body })
    }

    /// Returns the value of a header, or an empty text.
    pub(super) fn value(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// Returns the value of a hidden field of the page's forms.
    pub(super) fn field(&self, name: &str) -> Result<&str, Failure> {
        let field = format!("type=\"hidden\" name=\"{name}\" value=\"");
        let value = self.body.split(&*field).nth(1).and_then(|rest| rest.split('"').next());
        value.ok_or_else(|| format!("no field {name}: {} {}", self.status, self.body).into())
    }

    /// Returns the addresses to which the page leads, or which it loads.
    pub(super) fn addresses(&self) -> Vec<String> {
        ["href", "src", "action", "hx-get", "data-events"]
            .iter()
            .flat_map(|name| {
                let mark = format!(" {name}=\"");
                self.body.split(&*mark).skip(1).map(str::to_owned).collect::<Vec<_>>()
            })
            .filter_map(|rest| rest.split('"').next().map(|address| address.replace("&amp;", "&")))
            .collect()
    }

    /// Returns the number of forms that change something, and how many of them have a token.
    pub(super) fn forms(&self) -> [usize; 2] {
        let forms: Vec<&str> = self.body.split("<form method=\"post\"").skip(1).collect();
        let has_token = |form: &&&str| {
            form.split("</form>").next().is_some_and(|form| form.contains("name=\"form_token\""))
        };
        [forms.len(), forms.iter().filter(has_token).count()]
    }
}

fn encoded(value: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => char::from(byte).to_string(),
        byte => format!("%{byte:02x}"),
    };
    value.bytes().map(byte).collect()
}
