//! The layer and its settings.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{Method, StatusCode};
use message::InvalidText;
use message::text::TEXT_BYTES_MAX;
use tower_layer::Layer;

use super::service::Idempotent;
use super::stored::is_stored_by_default;
use crate::keys::KeyStore;
use crate::keys::{ClaimOptions, IdempotencyKeys, Operation};
use crate::name::Tenant;

/// The largest body of a request, and of a response that is stored, by default.
pub const BODY_BYTES_MAX_DEFAULT: usize = 1_048_576;
/// How long the body of a request may take to arrive by default.
pub const BODY_TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

/// The longest method that is handled, with the space after it.
const METHOD_BYTES_MAX: usize = "DELETE ".len();

/// Makes a route idempotent: one layer for each route.
///
/// POST, PUT, PATCH and DELETE are handled; other methods pass through, without any extension.
pub struct IdempotencyLayer<DB: KeyStore>(Arc<LayerOptions<DB>>);

/// How a key is held while the handler runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// By the handler's own transaction.
    Transactional,
    /// On lease.
    Leased,
}

type StatusRule = dyn Fn(StatusCode) -> bool + Send + Sync;
type ScopeOf = dyn Fn(&Parts) -> Option<Tenant> + Send + Sync;

pub(super) struct LayerOptions<DB: KeyStore> {
    pub(super) keys: IdempotencyKeys<DB>,
    pub(super) mode: Mode,
    pub(super) claim: ClaimOptions,
    pub(super) is_required: bool,
    pub(super) is_lenient: bool,
    pub(super) request_bytes_max: usize,
    pub(super) response_bytes_max: usize,
    pub(super) body_timeout: Duration,
    pub(super) wait_max: Duration,
    pub(super) scope: Arc<ScopeOf>,
    is_stored: Arc<StatusRule>,
    is_kept: Arc<StatusRule>,
    route: Arc<str>,
}

/// A text that cannot name a route. The program's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the route cannot be named so: {0}")]
pub struct InvalidRoute(#[from] InvalidText);

impl<DB: KeyStore> IdempotencyLayer<DB> {
    /// For handlers whose effects are in the database of the keys: they get a
    /// [`HeldTransaction`](super::HeldTransaction).
    ///
    /// `route` names the route, with its method a part of the key's identity: the pattern, not the
    /// path of one request. `scope` says whose request it is, from what authentication has left in
    /// the request; there is no scope for nobody in particular.
    ///
    /// # Errors
    /// [`InvalidRoute`] when the name is empty, longer than 248 bytes or holds a control character.
    pub fn transactional(
        keys: IdempotencyKeys<DB>,
        route: &str,
        scope: impl Fn(&Parts) -> Option<Tenant> + Send + Sync + 'static,
    ) -> Result<Self, InvalidRoute> {
        Self::new(keys, Mode::Transactional, route, Arc::new(scope))
    }

    /// For handlers whose effects are elsewhere: they get a [`LeasedKey`](super::LeasedKey) to pass
    /// on. The lease is renewed while the handler runs. Where keys are [optional](Self::optional),
    /// handlers ask for an `Option<LeasedKey>`, which is there with each request. Otherwise as
    /// [`transactional`](Self::transactional).
    ///
    /// # Errors
    /// [`InvalidRoute`].
    pub fn leased(
        keys: IdempotencyKeys<DB>,
        route: &str,
        scope: impl Fn(&Parts) -> Option<Tenant> + Send + Sync + 'static,
    ) -> Result<Self, InvalidRoute> {
        Self::new(keys, Mode::Leased, route, Arc::new(scope))
    }

    fn new(
        keys: IdempotencyKeys<DB>,
        mode: Mode,
        route: &str,
        scope: Arc<ScopeOf>,
    ) -> Result<Self, InvalidRoute> {
        let bytes = route.len() + METHOD_BYTES_MAX;
        if bytes > TEXT_BYTES_MAX {
            let value = route.chars().take(32).collect();
            let what = "route with its method";
            return Err(InvalidRoute(InvalidText::TooLong { what, value, bytes, bytes_max: TEXT_BYTES_MAX }));
        }
        Operation::new(route)?;
        Ok(Self(Arc::new(LayerOptions {
            keys,
            mode,
            claim: ClaimOptions::default(),
            is_required: true,
            is_lenient: true,
            request_bytes_max: BODY_BYTES_MAX_DEFAULT,
            response_bytes_max: BODY_BYTES_MAX_DEFAULT,
            body_timeout: BODY_TIMEOUT_DEFAULT,
            wait_max: Duration::ZERO,
            scope,
            is_stored: Arc::new(is_stored_by_default),
            is_kept: Arc::new(|status| !status.is_client_error()),
            route: Arc::from(route),
        })))
    }

    /// Lease, retention, and what becomes of a key whose lease has expired.
    #[must_use]
    pub fn claim(self, claim: ClaimOptions) -> Self {
        self.with(|settings| settings.claim = claim)
    }

    /// Lets requests without a key through; they run each time. In the leased mode their
    /// `Option<LeasedKey>` is `None`. Default: they are answered with 400.
    #[must_use]
    pub fn optional(self) -> Self {
        self.with(|settings| settings.is_required = false)
    }

    /// Refuses keys without quotes. Default: they are accepted.
    #[must_use]
    pub fn strict(self) -> Self {
        self.with(|settings| settings.is_lenient = false)
    }

    /// The largest body of a request in bytes. Default: [`BODY_BYTES_MAX_DEFAULT`].
    #[must_use]
    pub fn request_bytes_max(self, bytes: usize) -> Self {
        self.with(|settings| settings.request_bytes_max = bytes)
    }

    /// The largest body of a response in bytes. Default: [`BODY_BYTES_MAX_DEFAULT`]. A larger one,
    /// and a stream whose length is not known beforehand, is answered with 500; in the
    /// transactional mode nothing of it is stored.
    #[must_use]
    pub fn response_bytes_max(self, bytes: usize) -> Self {
        self.with(|settings| settings.response_bytes_max = bytes)
    }

    /// How long the body of a request may take to arrive; nothing is held until it has. Default:
    /// [`BODY_TIMEOUT_DEFAULT`].
    #[must_use]
    pub fn body_timeout(self, timeout: Duration) -> Self {
        self.with(|settings| settings.body_timeout = timeout)
    }

    /// Lets a request wait so long for another one with its key, instead of being answered with 409
    /// at once. It holds no connection while it waits. Default: zero.
    #[must_use]
    pub fn wait_max(self, wait: Duration) -> Self {
        self.with(|settings| settings.wait_max = wait)
    }

    /// With which stored statuses what the handler wrote in its transaction is kept; with all
    /// others it is rolled back, and only the answer stored. One answer says otherwise by its
    /// [`Effect`](super::Effect). Default: all but 4xx.
    #[must_use]
    pub fn keep_when(self, is_kept: impl Fn(StatusCode) -> bool + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.is_kept = Arc::new(is_kept))
    }

    /// Which statuses are stored. Whatever it says, 5xx never is. A response that is not stored is
    /// rolled back in the transactional mode. In the leased mode it gives the key back under
    /// [`OnExpired::TakeOver`](crate::keys::OnExpired); under `Refuse` only if the answer says that
    /// nothing happened ([`Effect::None`](super::Effect::None)). Default: [`is_stored_by_default`].
    #[must_use]
    pub fn store_when(self, is_stored: impl Fn(StatusCode) -> bool + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.is_stored = Arc::new(is_stored))
    }

    fn with(mut self, change: impl FnOnce(&mut LayerOptions<DB>)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }
}

impl<DB: KeyStore> LayerOptions<DB> {
    /// The operation of a request; nothing for methods that are not handled.
    pub(super) fn operation(&self, method: &Method) -> Option<Operation> {
        let is_handled = [Method::POST, Method::PUT, Method::PATCH, Method::DELETE].contains(method);
        is_handled.then(|| Operation::new(format!("{method} {}", self.route)).ok()).flatten()
    }

    pub(super) fn is_stored(&self, status: StatusCode) -> bool {
        !status.is_server_error() && (self.is_stored)(status)
    }

    pub(super) fn keeps_status(&self, status: StatusCode) -> bool {
        (self.is_kept)(status)
    }
}

impl<S, DB: KeyStore> Layer<S> for IdempotencyLayer<DB> {
    type Service = Idempotent<S, DB>;

    fn layer(&self, inner: S) -> Self::Service {
        Idempotent::new(inner, Arc::clone(&self.0))
    }
}

impl<DB: KeyStore> Clone for IdempotencyLayer<DB> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<DB: KeyStore> Clone for LayerOptions<DB> {
    fn clone(&self) -> Self {
        Self {
            keys: self.keys.clone(),
            scope: Arc::clone(&self.scope),
            is_stored: Arc::clone(&self.is_stored),
            is_kept: Arc::clone(&self.is_kept),
            route: Arc::clone(&self.route),
            ..*self
        }
    }
}

impl<DB: KeyStore> fmt::Debug for IdempotencyLayer<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer")
            .field("route", &self.0.route)
            .field("mode", &self.0.mode)
            .finish_non_exhaustive()
    }
}
