//! The sources of tokens, as checked settings.

use std::path::PathBuf;
use std::sync::Arc;

use url::Url;

use super::token::TokenProvider;
use crate::secret::Secret;

/// One source of tokens, with what it needs.
#[derive(Debug, Clone)]
#[cfg_attr(
    not(any(feature = "kafka-tls", feature = "rabbitmq")),
    expect(dead_code, reason = "such a build asks for no token")
)]
pub(crate) enum Source {
    Endpoint(Client),
    File(PathBuf),
    Provider(Arc<dyn TokenProvider>),
}

/// A client of a token endpoint.
#[derive(Debug, Clone)]
#[cfg_attr(
    not(any(feature = "kafka-tls", feature = "rabbitmq")),
    expect(dead_code, reason = "such a build asks for no token")
)]
pub(crate) struct Client {
    pub(crate) url: Url,
    pub(crate) id: String,
    pub(crate) secret: Secret,
    pub(crate) scope: Option<String>,
    pub(crate) audience: Option<String>,
    pub(crate) ca_file: Option<PathBuf>,
}
