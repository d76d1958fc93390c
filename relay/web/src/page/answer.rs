//! Responses: pages, and errors.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use operate::{OperateError, OperateErrorKind};

use super::address::to;
use super::advice;
use super::layout::{Frame, Tab};
use super::text::plain;

/// A complete page.
pub(crate) struct Html(pub(crate) Markup);

impl IntoResponse for Html {
    fn into_response(self) -> Response {
        let kind = HeaderValue::from_static("text/html; charset=utf-8");
        ([(header::CONTENT_TYPE, kind)], self.0.into_string()).into_response()
    }
}

/// The reason why something was not done, and what to do next.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    pub(crate) help: Option<String>,
    /// The form that was sent, to be corrected and sent again.
    pub(crate) form: Option<Markup>,
}

impl Problem {
    /// Creates a problem with its status.
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), help: None, form: None }
    }

    /// Creates the problem of an invalid request.
    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// Creates the problem of a request that arrived too late.
    pub(crate) fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, message)
    }

    /// Adds advice.
    pub(crate) fn with_help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }

    /// Brings the form back, with what was typed.
    pub(crate) fn with_form(self, form: Option<Markup>) -> Self {
        Self { form, ..self }
    }

    /// Renders the problem with the ways on: back to a page of the navigation, unless there is a
    /// form, which has its own.
    fn body(&self, tab: Tab) -> Markup {
        html! {
            div class="problem" role="alert" {
                p class="problem-text" { (plain(&self.message)) }
                @if let Some(help) = &self.help { p { (plain(help)) } }
                p class="actions" {
                    @if self.form.is_none() { (tab.way_back()) }
                    a class="button" href=(to("/")) { "Overview" }
                }
            }
            @if let Some(form) = &self.form { (form) }
        }
    }
}

impl From<OperateError> for Problem {
    fn from(error: OperateError) -> Self {
        let status = match error.kind() {
            OperateErrorKind::Forbidden => StatusCode::FORBIDDEN,
            OperateErrorKind::Refused | OperateErrorKind::NotGranted | OperateErrorKind::NoTables => {
                StatusCode::UNPROCESSABLE_ENTITY
            }
            OperateErrorKind::Conflict => StatusCode::CONFLICT,
            OperateErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let message = advice::in_words(&error.to_string());
        Self { help: advice::of(&error), ..Self::new(status, message) }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let tab = Tab::current();
        let body = self.body(tab);
        let title = match self.status {
            StatusCode::FORBIDDEN => "Not allowed",
            StatusCode::CONFLICT => "Changed meanwhile",
            StatusCode::SERVICE_UNAVAILABLE => "Unavailable",
            StatusCode::NOT_FOUND => "Not found",
            _ => "Refused",
        };
        let page = Frame::new(tab, title).page(&body);
        let mut response = Html(page).into_response();
        *response.status_mut() = self.status;
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a refusal is no dead end, and does not speak of the command line. Oracle: the problem
    /// of a message that is not stuck any more, with and without a form.
    #[test]
    fn a_refusal_leads_back_in_the_words_of_the_page() {
        let error = OperateError::new(OperateErrorKind::Conflict, "not stuck: 8e03978e")
            .with_help("`relay keys list` shows stuck keys; its lease may not have expired");
        let problem = Problem::from(error);
        let text = problem.body(Tab::Keys).into_string();
        for part in [
            "Keys lists stuck keys; its lease may not have expired",
            "<a class=\"button\" href=\"/keys\">Keys</a>",
            "<a class=\"button\" href=\"/\">Overview</a>",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let with_form = problem.with_form(Some(html! { form {} })).body(Tab::Keys).into_string();
        assert!(with_form.contains("<form>") && !with_form.contains("/keys"), "{with_form}");
    }
}
