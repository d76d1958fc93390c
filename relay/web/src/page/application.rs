//! The login of an application that the page is part of: the application names the user of each
//! request.

use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use operate::Operator;

use super::answer::Problem;
use super::app::FORM_BYTES_MAX;
use super::forms::{FIELD, FormKey};
use super::gate::{Advice, from_the_page};
use super::guard::unkept;

/// Timeout for the body of a form.
const FORM_TIMEOUT: Duration = Duration::from_secs(30);

/// Returns the user of a request; `None` without a login.
pub(crate) type Ask = Box<dyn Fn(&Parts) -> Option<Operator> + Send + Sync>;

/// The login of the application.
pub(crate) struct Application {
    pub(crate) ask: Ask,
}

const ADVICE: Advice = Advice {
    credentials: "send no secret in an address to the page; treat the secret as compromised",
    origin: "use the page's own forms; a proxy in front must pass on the name of the host",
};

/// An admitted request.
pub(crate) struct Guest {
    pub(crate) operator: Operator,
    /// The key of the forms.
    pub(crate) key: FormKey,
    /// Whether the browser does not have the key yet.
    pub(crate) is_new: bool,
    /// The body that was read.
    pub(crate) body: Body,
}

impl Application {
    /// Lets in the requests of the application's users. Reads the body of requests that change
    /// something, which must be a form of this page for the same user.
    pub(crate) async fn admit(&self, request: &Parts, body: Body) -> Result<Guest, Problem> {
        from_the_page(request, false, &ADVICE)?;
        let operator = (self.ask)(request).ok_or_else(unknown)?;
        check(operator.name())?;
        let cookies = request.headers.get_all(header::COOKIE).iter();
        let keys = FormKey::all(cookies.filter_map(|value| value.to_str().ok()));
        let body = if request.method.is_safe() { body } else { form(body, &keys, &operator).await? };
        let is_new = keys.is_empty();
        let key = keys.into_iter().next().unwrap_or_else(FormKey::new);
        Ok(Guest { operator, key, is_new, body })
    }
}

/// Reads a form, and refuses one that this page did not make for this user.
async fn form(body: Body, keys: &[FormKey], operator: &Operator) -> Result<Body, Problem> {
    let read = tokio::time::timeout(FORM_TIMEOUT, to_bytes(body, FORM_BYTES_MAX)).await;
    let Ok(Ok(bytes)) = read else {
        let text = format!("the form is longer than {FORM_BYTES_MAX} bytes, or did not arrive");
        return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, text));
    };
    let token = form_urlencoded::parse(&bytes).find(|(name, _)| name == FIELD).map(|(_, value)| value);
    let is_own = token.is_some_and(|token| keys.iter().any(|key| key.accepts(&token, operator)));
    if is_own {
        return Ok(Body::from(bytes));
    }
    let text = "this form is not from this page, or was made for another user; nothing was changed";
    let help = "open the page again and repeat the decision; the browser must accept the page's cookie";
    Err(Problem::new(StatusCode::FORBIDDEN, text).with_help(help))
}

fn unknown() -> Problem {
    let text = "the application did not name the operator of this request";
    let help = "log in to the application; its function for the page must return an operator for every user \
                who may see the page";
    Problem::new(StatusCode::FORBIDDEN, text).with_help(help)
}

/// Refuses a name that the audit could not keep.
fn check(name: &str) -> Result<(), Problem> {
    let Some(problem) = unkept(name) else { return Ok(()) };
    let text = format!("the application named the operator of this request by {problem}");
    let help = "the audit stores the name: return one that people recognize, such as a login or an address";
    Err(Problem::new(StatusCode::FORBIDDEN, text).with_help(help))
}

/// Gives the browser the key, together with the forms that it signs.
pub(crate) fn with_key(mut response: Response, key: &FormKey, prefix: &str) -> Response {
    let kind = response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    if kind.is_some_and(|kind| kind.starts_with("text/html"))
        && let Ok(cookie) = HeaderValue::from_str(&key.cookie(prefix))
    {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
    response
}

#[cfg(test)]
mod tests {
    use message::TEXT_BYTES_MAX;

    use super::*;

    #[test]
    fn a_name_that_no_audit_can_keep_is_refused() {
        assert!(check("ann@example.com").is_ok() && check(&"a".repeat(TEXT_BYTES_MAX)).is_ok());
        let long = "a".repeat(TEXT_BYTES_MAX + 1);
        for (name, told) in [
            ("", "an empty name"),
            (" ", "an empty name"),
            ("a\0b", "a control character"),
            ("a\nb", "a control character"),
            (&long, "a name of 256 bytes; the maximum is 255"),
        ] {
            let problem = check(name).unwrap_err();
            assert_eq!(problem.status, StatusCode::FORBIDDEN);
            assert!(problem.message.contains(told), "{}", problem.message);
        }
    }
}
