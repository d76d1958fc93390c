//! Access tokens of OAuth 2 for logins to brokers: from a token endpoint (client credentials), from
//! a file, or from a provider of the service.
//!
//! Nothing here knows a broker. [`OAuth`] has the settings; [`TokenProvider`] is the seam. The
//! adapter asks for a token when it connects, and again before the token expires.

mod config;
mod source;
mod token;

#[cfg(feature = "kafka-tls")]
mod answer;
#[cfg(feature = "kafka-tls")]
mod endpoint;
#[cfg(feature = "kafka-tls")]
mod file;
#[cfg(feature = "kafka-tls")]
mod jwt;

pub use config::OAuth;
pub use token::{Token, TokenError, TokenProvider};
