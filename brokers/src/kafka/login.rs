//! Logs clients in with tokens (SASL OAUTHBEARER): gets the first one before a client connects, and
//! replaces it before it expires.
//!
//! A client's thread asks [`Login::turn`] now and then. The request itself runs on the runtime, so
//! that thread never waits for it. librdkafka takes the new token for new connections, and for
//! those that have to authenticate again (KIP-368), which it does when 90 % of a session's lifetime
//! have passed (2.12.1, `rd_kafka_broker_start_reauth_timer`). A failed renewal ends nothing: the
//! client keeps its token, and the request is repeated. Just before the token expires, the session
//! ends with the reason: a broker would end its connections around then, and without that reason.
//! rdkafka's own callback is not used (`oauthbearer`).

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::time::{Duration, Instant, SystemTime};

use rdkafka::ClientContext;
use rdkafka::client::Client;
use secrecy::ExposeSecret as _;
use tokio::runtime::Handle;

use super::config::Config;
use crate::oauth::{MARGIN, Renewal, Token, TokenError, TokenSource};

/// Time for a runtime to begin and to deliver a request, beside the request's own limit.
const RUNTIME_MAX: Duration = Duration::from_secs(5);

/// The login of a client, or of several that are made at the same time.
#[derive(Debug, Default)]
pub(super) struct Login(Option<Tokens>);

#[derive(Debug)]
struct Tokens {
    asking: Asking,
    extensions: Arc<[(String, String)]>,
    token: Token,
    renewal: Renewal,
    /// The answer to the request for the next token.
    asked: Option<Receiver<Result<Token, TokenError>>>,
}

/// How to ask for a token.
#[derive(Debug, Clone)]
struct Asking {
    source: TokenSource,
    runtime: Handle,
}

impl Asking {
    /// Sends a request. The receiver gets one answer.
    fn ask(&self) -> Receiver<Result<Token, TokenError>> {
        let (answer, asked) = channel();
        let source = self.source.clone();
        // An error means that the client has ended.
        self.runtime.spawn(async move { answer.send(source.token().await).is_ok() });
        asked
    }
}

impl Clone for Login {
    /// The clone asks for its own next token.
    fn clone(&self) -> Self {
        Self(self.0.as_ref().map(|tokens| Tokens {
            asking: tokens.asking.clone(),
            extensions: Arc::clone(&tokens.extensions),
            token: tokens.token.clone(),
            renewal: tokens.renewal,
            asked: None,
        }))
    }
}

impl Login {
    /// Gets a token, if this configuration needs one. Blocks for at most [`Login::max`]. Must be
    /// called within a runtime, from a thread that may block, or with the handle of a runtime.
    ///
    /// # Errors
    /// [`TokenError`] without a token.
    pub(super) fn of(config: &Config, runtime: Option<Handle>) -> Result<Self, TokenError> {
        let Some(source) = config.tokens()? else { return Ok(Self::default()) };
        let runtime = runtime.or_else(|| Handle::try_current().ok()).ok_or_else(|| {
            TokenError::refused(
                "kafka.sasl: a login with tokens needs a Tokio runtime; call this within one (spawn_blocking)",
            )
        })?;
        let limit = source.limit;
        let asking = Asking { source, runtime };
        let token = match asking.ask().recv_timeout(limit + RUNTIME_MAX) {
            Ok(token) => token?,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                return Err(TokenError::unavailable(
                    "kafka.sasl: the Tokio runtime did not get a token; it ends, or its threads are blocked",
                ));
            }
        };
        let renewal = Renewal::of(token.left(SystemTime::now()), Instant::now());
        let extensions = config.sasl_extensions();
        Ok(Self(Some(Tokens { asking, extensions, token, renewal, asked: None })))
    }

    /// Returns how long getting the first token takes at most.
    pub(super) fn max(config: &Config) -> Duration {
        match config.tokens() {
            Ok(Some(source)) => source.limit + RUNTIME_MAX,
            Ok(None) | Err(_) => Duration::ZERO,
        }
    }

    /// Gives a client its token.
    ///
    /// # Errors
    /// [`TokenError`] when the token has expired meanwhile.
    pub(super) fn give<C: ClientContext>(&self, client: &Client<C>) -> Result<(), TokenError> {
        self.0.as_ref().map_or(Ok(()), |tokens| tokens.give(client))
    }

    /// Replaces a client's token when it is time. Never waits.
    ///
    /// # Errors
    /// [`TokenError`] once the token is about to expire and there is no other: the session is over.
    pub(super) fn turn<C: ClientContext>(&mut self, client: &Client<C>) -> Result<(), TokenError> {
        let Some(tokens) = &mut self.0 else { return Ok(()) };
        let now = Instant::now();
        let Some(asked) = &tokens.asked else {
            if now >= tokens.renewal.due_at {
                tokens.asked = Some(tokens.asking.ask());
            }
            return Ok(());
        };
        let answer = match asked.try_recv() {
            Err(TryRecvError::Empty) => return Ok(()),
            Ok(answer) => answer,
            Err(TryRecvError::Disconnected) => {
                Err(TokenError::unavailable("the runtime dropped the request for a token"))
            }
        };
        tokens.asked = None;
        tokens.take(answer, client, now)
    }
}

impl Tokens {
    fn give<C: ClientContext>(&self, client: &Client<C>) -> Result<(), TokenError> {
        let token = oauthbearer::Token {
            value: self.token.value().expose_secret(),
            expires_at: self.token.expires_at(),
            principal: self.token.owner_or("token"),
            extensions: &self.extensions,
        };
        oauthbearer::set_token(client, &token).map_err(|error| {
            TokenError::unavailable(format!(
                "kafka.sasl: librdkafka does not take the token: {error}; it may have expired since it was issued"
            ))
        })
    }

    /// Handles the answer to a request for the next token.
    fn take<C: ClientContext>(
        &mut self,
        answer: Result<Token, TokenError>,
        client: &Client<C>,
        now: Instant,
    ) -> Result<(), TokenError> {
        let given = answer.and_then(|token| {
            let previous = std::mem::replace(&mut self.token, token);
            self.give(client).inspect_err(|_| self.token = previous)
        });
        let left = self.token.left(SystemTime::now());
        match given {
            Ok(()) => {
                self.renewal = Renewal::of(left, now);
                tracing::debug!(target: "brokers::kafka", lives_secs = left.as_secs(), "the client has a new token");
            }
            Err(error) => {
                self.renewal = Renewal::after_failure(left, now);
                if left <= MARGIN {
                    return Err(error);
                }
                let left_secs = left.as_secs();
                tracing::warn!(target: "brokers::kafka", %error, left_secs, "kafka: the token was not renewed. The client uses the previous one until it expires, and asks again");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
