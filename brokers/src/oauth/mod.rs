//! Access tokens of OAuth 2 for logins to brokers: from a token endpoint (client credentials), from
//! a file, or from a provider of the service.
//!
//! Nothing here knows a broker. [`OAuth`] has the settings; [`TokenProvider`] is the seam. The
//! adapter asks for a token when it connects, and again before the token expires: `renewal` says
//! when.

mod config;
mod renewal;
mod source;
mod token;

#[cfg(any(feature = "kafka-tls", feature = "rabbitmq"))]
mod answer;
#[cfg(any(feature = "kafka-tls", feature = "rabbitmq"))]
mod endpoint;
#[cfg(any(feature = "kafka-tls", feature = "rabbitmq"))]
mod file;
#[cfg(any(feature = "kafka-tls", feature = "rabbitmq"))]
mod jwt;

pub use config::OAuth;
#[cfg(feature = "rabbitmq")]
pub(crate) use jwt::Claims;
#[cfg(any(feature = "rabbitmq", test))]
pub(crate) use renewal::AGAIN_MAX;
#[cfg(feature = "kafka")]
pub(crate) use renewal::MARGIN;
#[cfg(any(feature = "kafka", feature = "rabbitmq"))]
pub(crate) use renewal::{Renewal, TokenSource};
pub use token::{Token, TokenError, TokenProvider};
