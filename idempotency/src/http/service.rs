//! The service that the layer makes.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use http_body::Body;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use message::shield;
use tower_layer::Layer;
use tower_service::Service;
use tracing::Instrument as _;

use super::fingerprint::fingerprint;
use super::layer::{IdempotencyLayer, LayerOptions};
use super::problem::Problem;
use super::run::{BoxError, Call, keyed, unkeyed};
use super::{answer, header};
use crate::{KeyId, KeyStore};

/// A service that runs a request once for each key. Made by
/// [`IdempotencyLayer`](super::IdempotencyLayer).
///
/// A request that has begun runs to its end, even when the client's connection is lost. So its
/// outcome is stored when the client sends the request again.
pub struct Idempotent<S, DB: KeyStore> {
    inner: S,
    settings: Arc<LayerOptions<DB>>,
}

impl<S, DB: KeyStore> Idempotent<S, DB> {
    pub(super) fn new(inner: S, settings: Arc<LayerOptions<DB>>) -> Self {
        Self { inner, settings }
    }
}

impl<S, DB: KeyStore> Layer<S> for IdempotencyLayer<DB> {
    type Service = Idempotent<S, DB>;

    fn layer(&self, inner: S) -> Self::Service {
        Idempotent::new(inner, Arc::clone(&self.0))
    }
}

impl<S: Clone, DB: KeyStore> Clone for Idempotent<S, DB> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), settings: Arc::clone(&self.settings) }
    }
}

impl<S: std::fmt::Debug, DB: KeyStore> std::fmt::Debug for Idempotent<S, DB> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Idempotent").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<S, DB, B, R> Service<Request<B>> for Idempotent<S, DB>
where
    DB: KeyStore,
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    B: Body + From<Bytes> + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
    R: Body + From<Bytes> + Send + 'static,
    R::Data: Send,
    R::Error: Into<BoxError>,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<R>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // Call the service that is ready, not its clone.
        let clone = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, clone);
        let settings = Arc::clone(&self.settings);
        Box::pin(async move {
            let mut inner = inner;
            if settings.operation(request.method()).is_none() {
                return inner.call(request).await;
            }
            let (call, id) = match read(&settings, request, inner).await {
                Ok(read) => read,
                Err(problem) => return Ok(problem.response()),
            };
            // A request that has begun continues even when the client disconnects.
            match id {
                Some(id) => keyed(settings, id, call).await,
                None => {
                    let running = async move { unkeyed(&settings, settings.mode, call).await };
                    shield(running.in_current_span()).await
                }
            }
        })
    }
}

/// Reads everything that the key of a request depends on. Nothing is held until then.
async fn read<S, DB, B>(
    settings: &LayerOptions<DB>,
    request: Request<B>,
    service: S,
) -> Result<(Call<S>, Option<KeyId>), Problem>
where
    DB: KeyStore,
    B: Body + Send,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    let (mut parts, body) = request.into_parts();
    let key = header::read(&parts.headers, settings.is_lenient).map_err(|error| answer::malformed(&error))?;
    let tenant = (settings.tenant)(&parts);
    if let Some(tenant) = &tenant {
        parts.extensions.insert(tenant.clone());
    }
    let id = match (key, settings.operation(&parts.method)) {
        (Some(key), Some(operation)) => {
            let tenant = tenant.ok_or_else(answer::of_nobody)?;
            Some(KeyId::new(tenant, operation, key).map_err(|_| answer::of_nobody())?)
        }
        _ if settings.is_required => return Err(answer::missing()),
        _ => None,
    };
    let limit = settings.request_bytes_max;
    let whole = tokio::time::timeout(settings.body_timeout, Limited::new(body, limit).collect());
    let body = match whole.await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => return Err(answer::too_large(limit)),
        Ok(Err(error)) => return Err(answer::unreadable(error.as_ref())),
        Err(_) => return Err(answer::too_slow(settings.body_timeout)),
    };
    let fingerprint = fingerprint(&parts.method, &parts.uri, &parts.headers, &body);
    Ok((Call { service, parts, body, fingerprint, place: None }, id))
}
