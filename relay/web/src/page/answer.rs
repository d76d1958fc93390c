//! Responses: pages, and errors.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use operate::{OperateError, OperateErrorKind};

use super::address::to;
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
        Self { help: error.help().map(str::to_owned), ..Self::new(status, error.to_string()) }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = html! {
            div class="problem" role="alert" {
                p class="problem-text" { (plain(&self.message)) }
                @if let Some(help) = &self.help { p { (plain(help)) } }
                p { a class="button" href=(to("/")) { "Overview" } }
            }
            @if let Some(form) = &self.form { (form) }
        };
        let title = match self.status {
            StatusCode::FORBIDDEN => "Not allowed",
            StatusCode::CONFLICT => "Changed meanwhile",
            StatusCode::SERVICE_UNAVAILABLE => "Unavailable",
            StatusCode::NOT_FOUND => "Not found",
            _ => "Refused",
        };
        let page = Frame::new(Tab::None, title).page(&body);
        let mut response = Html(page).into_response();
        *response.status_mut() = self.status;
        response
    }
}
