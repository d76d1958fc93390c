//! The answer of a web service when something goes wrong in a handler.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use crate::setting::Failure;

/// Any failure: reported with its causes on stderr, and to the client as a 500 without them.
pub struct Broken(Failure);

impl<E: Into<Failure>> From<E> for Broken {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for Broken {
    fn into_response(self) -> Response {
        eprintln!("error: {:#}", self.0);
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}
