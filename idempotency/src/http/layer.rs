//! The layer and its settings.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{Method, StatusCode};
use message::{InvalidText, TEXT_BYTES_MAX, Tenant};

use super::stored::is_stored_by_default;
use crate::{ClaimOptions, IdempotencyKeys, KeyStore, Operation};

/// Default maximum size of a request body, and of a stored response body, in bytes.
const BODY_BYTES_MAX_DEFAULT: usize = 1_048_576;
/// Default maximum time for the body of a request, and of a stored response, to arrive.
const BODY_TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

/// Length of the longest handled method, with the space after it.
const METHOD_BYTES_MAX: usize = "DELETE ".len();

/// A layer that makes a route idempotent. Each route needs its own layer.
///
/// It handles POST, PUT, PATCH and DELETE; other methods pass through without any extension.
pub struct IdempotencyLayer<DB: KeyStore>(pub(super) Arc<LayerOptions<DB>>);

/// The way a key is held while the handler runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// By the handler's own transaction.
    Transactional,
    /// On lease.
    Leased,
}

type StatusRule = dyn Fn(StatusCode) -> bool + Send + Sync;
type TenantOf = dyn Fn(&Parts) -> Option<Tenant> + Send + Sync;

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
    pub(super) tenant: Arc<TenantOf>,
    is_stored: Arc<StatusRule>,
    is_kept: Arc<StatusRule>,
    route: Arc<str>,
}

/// An invalid name for a route. The program's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid route name: {0}")]
pub struct InvalidRoute(#[from] InvalidText);

impl<DB: KeyStore> IdempotencyLayer<DB> {
    /// Makes a layer for handlers whose effects are in the database of the keys. They get a
    /// [`HeldTransaction`](super::HeldTransaction).
    ///
    /// `route` is the name of the route: the pattern, not the path of one request. With the method
    /// it is part of the key's identity. `tenant` returns the tenant of a request, from what
    /// authentication has added to the request. Every request needs a tenant.
    ///
    /// # Errors
    /// [`InvalidRoute`] when the name is empty, longer than 248 bytes or contains a control
    /// character.
    pub fn transactional(
        keys: IdempotencyKeys<DB>,
        route: &str,
        tenant: impl Fn(&Parts) -> Option<Tenant> + Send + Sync + 'static,
    ) -> Result<Self, InvalidRoute> {
        Self::new(keys, Mode::Transactional, route, Arc::new(tenant))
    }

    /// Makes a layer for handlers whose effects are elsewhere. They get a
    /// [`LeasedKey`](super::LeasedKey) to pass on. The lease is renewed while the handler runs. If
    /// keys are [optional](Self::optional), handlers use an `Option<LeasedKey>`, which every
    /// request has. Otherwise the same as [`transactional`](Self::transactional).
    ///
    /// # Errors
    /// [`InvalidRoute`].
    pub fn leased(
        keys: IdempotencyKeys<DB>,
        route: &str,
        tenant: impl Fn(&Parts) -> Option<Tenant> + Send + Sync + 'static,
    ) -> Result<Self, InvalidRoute> {
        Self::new(keys, Mode::Leased, route, Arc::new(tenant))
    }

    fn new(
        keys: IdempotencyKeys<DB>,
        mode: Mode,
        route: &str,
        tenant: Arc<TenantOf>,
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
            tenant,
            is_stored: Arc::new(is_stored_by_default),
            is_kept: Arc::new(|status| !status.is_client_error()),
            route: Arc::from(route),
        })))
    }

    /// Sets lease, retention, and the policy for a key whose lease has expired.
    #[must_use]
    pub fn claim(self, claim: ClaimOptions) -> Self {
        self.with(|settings| settings.claim = claim)
    }

    /// Accepts requests without a key; they run each time. In the leased mode their
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

    /// Sets the maximum size of a request body, in bytes. Default: 1 MiB.
    #[must_use]
    pub fn request_bytes_max(self, bytes: usize) -> Self {
        self.with(|settings| settings.request_bytes_max = bytes)
    }

    /// Sets the maximum size of a response body, in bytes. Default: 1 MiB. A larger body, or a
    /// stream of unknown length, is answered with 500. In the transactional mode nothing of the
    /// request is stored. In the leased mode this answer is stored, because the request may have
    /// taken effect, unless the response reports that it did not
    /// ([`Effect::None`](super::Effect::None)): then the key is released.
    #[must_use]
    pub fn response_bytes_max(self, bytes: usize) -> Self {
        self.with(|settings| settings.response_bytes_max = bytes)
    }

    /// Sets the maximum time for the body of a request to arrive, and for the body of a response
    /// that is stored to be complete. Default: 30 s. Nothing is held until the body of the request
    /// has arrived. A late response is answered as one that is [too
    /// large](Self::response_bytes_max): it may come from another service whose host is gone.
    #[must_use]
    pub fn body_timeout(self, timeout: Duration) -> Self {
        self.with(|settings| settings.body_timeout = timeout)
    }

    /// Sets how long a request waits while another one with its key runs, before it is answered
    /// with 409. It gets the response of the other one as soon as that ends in this process, or at
    /// most about a second later in another process; it runs if the other one has left the key
    /// free. It holds no connection while it waits, and one request for each key asks the database.
    /// A client that disconnects frees its place. Default: zero.
    ///
    /// How many may wait is limited for the process and for each key
    /// ([`KeyOptions::waiters_max`](crate::KeyOptions::waiters_max)); others get 409 at once.
    #[must_use]
    pub fn wait_max(self, wait: Duration) -> Self {
        self.with(|settings| settings.wait_max = wait)
    }

    /// Sets for which stored statuses the handler's writes in its transaction are kept. For all
    /// others they are rolled back, and only the response is stored. A response can override this
    /// with an [`Effect`](super::Effect). Default: all but 4xx.
    #[must_use]
    pub fn keep_when(self, is_kept: impl Fn(StatusCode) -> bool + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.is_kept = Arc::new(is_kept))
    }

    /// Sets which statuses are stored; 5xx never are. For a response that is not stored, the
    /// transactional mode rolls back. The leased mode releases the key under
    /// [`OnExpired::TakeOver`](crate::OnExpired). Under `Refuse` it releases the key only if
    /// the response reports that nothing happened ([`Effect::None`](super::Effect::None)). Default:
    /// [`is_stored_by_default`](super::is_stored_by_default).
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
    /// Returns the operation of a request; `None` for methods that are not handled.
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

impl<DB: KeyStore> Clone for IdempotencyLayer<DB> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<DB: KeyStore> Clone for LayerOptions<DB> {
    fn clone(&self) -> Self {
        Self {
            keys: self.keys.clone(),
            tenant: Arc::clone(&self.tenant),
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
