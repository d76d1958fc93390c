//! One request, from its claim to its answer.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Request, Response};
use http_body::Body;
use http_body_util::BodyExt as _;
use message::crash_points::reached;
use message::{Fingerprint, finite, shield};
use migrations::own_transaction::roll_back;
use outbox::{Bounded, CommitError, OutboxTransaction, StoreError, UnknownCommit};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower_service::Service;
use tracing::Instrument as _;

use super::answer::{self, NotStorable};
use super::effect::{Effect, End, end_of_lease};
use super::header::IDEMPOTENCY_REPLAYED;
use super::held::{Held, HeldTransaction, LeasedKey};
use super::layer::{LayerOptions, Mode};
use super::problem::Problem;
use super::renewal::Renewal;
use super::stored::StoredResponse;
use super::waiting::{Place, Running};
use crate::{ClaimError, Claimed, Ending, KeyId, KeyStore, Replay, crash_points, telemetry};

/// An error of a body.
pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A request that was read, and the service that will handle it.
pub(super) struct Call<S> {
    pub(super) service: S,
    pub(super) parts: Parts,
    pub(super) body: Bytes,
    pub(super) fingerprint: Fingerprint,
    /// Its place, while it waits for the outcome of another request.
    pub(super) place: Option<Place>,
}

/// The end of a request with a key, or of one look at its key.
enum Looked<S, R> {
    Answered(Response<R>),
    /// Another request has its key: nothing was done.
    InFlight(Box<Call<S>>, Problem),
}

/// A handler's response.
struct Answered<R> {
    /// The response that the client gets.
    response: Response<R>,
    /// The effect that it reports, if any.
    effect: Option<Effect>,
    /// The stored part of the response; `None` when its status is not stored.
    storable: Option<Storable>,
}

/// The storable form of a response, or the problem with it.
type Storable = Result<(Ending, StoredResponse), Problem>;

impl<S> Call<S> {
    /// Calls the handler.
    async fn answer<DB, B, R>(mut self, settings: &LayerOptions<DB>) -> Result<Answered<R>, S::Error>
    where
        DB: KeyStore,
        S: Service<Request<B>, Response = Response<R>>,
        B: From<Bytes>,
        R: Body<Error: Into<BoxError>> + From<Bytes>,
    {
        let mut response = self.service.call(Request::from_parts(self.parts, B::from(self.body))).await?;
        reached(crash_points::AFTER_EFFECT);
        let effect = response.extensions_mut().remove::<Effect>();
        if !settings.is_stored(response.status()) {
            return Ok(Answered { response, effect, storable: None });
        }
        let (parts, body) = response.into_parts();
        let body = match whole(body, settings.response_bytes_max, settings.body_timeout).await {
            Ok(body) => body,
            Err(reason) => {
                let told = match settings.mode {
                    Mode::Transactional => answer::Told::Nothing,
                    Mode::Leased => answer::Told::of(effect, parts.status),
                };
                let problem = answer::not_storable(told, &reason);
                return Ok(Answered { response: problem.response(), effect, storable: Some(Err(problem)) });
            }
        };
        let ending = if parts.status.is_client_error() { Ending::Failed } else { Ending::Succeeded };
        let stored = StoredResponse::of(parts.status, &parts.headers, body.clone());
        let response = Response::from_parts(parts, R::from(body));
        Ok(Answered { response, effect, storable: Some(Ok((ending, stored))) })
    }
}

/// Reads the body of a response, or returns why it cannot be stored.
async fn whole<R>(body: R, bytes_max: usize, timeout: Duration) -> Result<Bytes, NotStorable>
where
    R: Body<Error: Into<BoxError>>,
{
    // A body of unknown length may never end.
    if body.size_hint().exact().is_none_or(|bytes| bytes > bytes_max as u64) {
        return Err(NotStorable::Large { bytes_max });
    }
    // Even one of known length may never end: the host that it comes from may be gone. The key, and
    // perhaps a connection, would be held for ever.
    match tokio::time::timeout(timeout, body.collect()).await {
        // Trailers would be missing from this answer, and from every later one.
        Ok(Ok(whole)) if whole.trailers().is_some() => Err(NotStorable::Trailers),
        Ok(Ok(whole)) => Ok(whole.to_bytes()),
        Ok(Err(error)) => Err(NotStorable::BrokenOff(error.into())),
        Err(_) => Err(NotStorable::Late { timeout }),
    }
}

/// Runs a request with a key, once the key is free, or returns the response that is stored under
/// it. While another request has the key, it waits up to the route's limit. If it is dropped while
/// it waits, it ends; if it is dropped later, it runs to its end.
pub(super) async fn keyed<S, DB, B, R>(
    settings: Arc<LayerOptions<DB>>,
    id: KeyId,
    mut call: Call<S>,
) -> Result<Response<R>, S::Error>
where
    DB: KeyStore,
    S: Service<Request<B>, Response = Response<R>, Future: Send> + Send + 'static,
    S::Error: Send + 'static,
    B: From<Bytes> + Send + 'static,
    R: Body<Data: Send, Error: Into<BoxError>> + From<Bytes> + Send + 'static,
{
    let until = Instant::now() + finite(settings.wait_max);
    loop {
        let has_waited = call.place.is_some();
        let look = {
            let settings = Arc::clone(&settings);
            let id = id.clone();
            async move {
                match settings.mode {
                    Mode::Transactional => transactional(&settings, &id, call).await,
                    Mode::Leased => leased(&settings, &id, call).await,
                }
            }
        };
        let problem = match shield(look.in_current_span()).await? {
            Looked::Answered(response) => {
                if has_waited {
                    telemetry::waited(id.operation(), "answered");
                }
                return Ok(response);
            }
            Looked::InFlight(back, problem) => {
                call = *back;
                problem
            }
        };
        if settings.wait_max.is_zero() {
            return Ok(problem.response());
        }
        let joined = match call.place.take() {
            Some(place) => Some(place),
            None => settings.keys.inner.waiters.join(&id),
        };
        let Some(mut place) = joined else {
            telemetry::waited(id.operation(), "full");
            return Ok(problem.response());
        };
        if !place.next(until).await {
            telemetry::waited(id.operation(), "timeout");
            return Ok(problem.response());
        }
        call.place = Some(place);
    }
}

/// Runs a request whose key, effects and response commit together or not at all. The service runs
/// each call to its end.
async fn transactional<S, DB, B, R>(
    settings: &LayerOptions<DB>,
    id: &KeyId,
    mut call: Call<S>,
) -> Result<Looked<S, R>, S::Error>
where
    DB: KeyStore,
    S: Service<Request<B>, Response = Response<R>>,
    B: From<Bytes>,
    R: Body<Error: Into<BoxError>> + From<Bytes>,
{
    let tx = match acquired(settings.keys.begin_here(id, call.fingerprint, &settings.claim).await) {
        Acquired::Key(tx) => tx,
        Acquired::Answer(response) => return Ok(Looked::Answered(*response)),
        Acquired::InFlight(problem) => return Ok(Looked::InFlight(Box::new(call), problem)),
    };
    call.place = None;
    let _running = Running::new(&settings.keys.inner.waiters, id);
    let held = HeldTransaction::new(Held::Keyed(Box::new(tx)));
    call.parts.extensions.insert(held.clone());
    let Answered { response, effect, storable } = call.answer(settings).await?;
    let Some(Held::Keyed(mut tx)) = held.take() else {
        return Ok(Looked::Answered(answer::still_in_use().response()));
    };
    let Some(Ok((ending, stored))) = storable else {
        if let Err(error) = tx.rollback().await {
            tracing::debug!(%error, "the database rolls back by itself");
        }
        return Ok(Looked::Answered(response));
    };
    let undone = if settings.keeps(effect, response.status()) { Ok(()) } else { tx.undo().await };
    if let Err(error) = undone {
        let error = CommitError::RolledBack {
            reason: "the writes of a refused request could not be undone: its own statement ended the \
                     transaction",
            source: Some(Box::new(error)),
        };
        return Ok(Looked::Answered(answer::not_committed(&error).response()));
    }
    match tx.commit_here(ending, &stored.encode()).await {
        Ok(()) => Ok(Looked::Answered(response)),
        Err(error) => Ok(Looked::Answered(answer::not_committed(&error).response())),
    }
}

/// Runs a request while its key is held on lease and the handler has its effects elsewhere.
async fn leased<S, DB, B, R>(
    settings: &LayerOptions<DB>,
    id: &KeyId,
    mut call: Call<S>,
) -> Result<Looked<S, R>, S::Error>
where
    DB: KeyStore,
    S: Service<Request<B>, Response = Response<R>>,
    B: From<Bytes>,
    R: Body<Error: Into<BoxError>> + From<Bytes>,
{
    let claim = match acquired(settings.keys.claim(id, call.fingerprint, &settings.claim).await) {
        Acquired::Key(claim) => claim,
        Acquired::Answer(response) => return Ok(Looked::Answered(*response)),
        Acquired::InFlight(problem) => return Ok(Looked::InFlight(Box::new(call), problem)),
    };
    call.place = None;
    let _running = Running::new(&settings.keys.inner.waiters, id);
    let lost = CancellationToken::new();
    let key = LeasedKey { id: id.clone(), attempt: claim.attempt(), lost: lost.clone() };
    call.parts.extensions.insert(key.clone());
    call.parts.extensions.insert(Some(key));
    let renewal = Renewal::start(claim.share(), lost);
    let Answered { response, effect, storable } = call.answer(settings).await?;
    let is_stored = match &storable {
        Some(Ok(_)) => true,
        // After an effect, every repeated request must get the same refusal.
        Some(Err(_)) => effect != Some(Effect::None),
        None => false,
    };
    let end = end_of_lease(effect, is_stored, claim.on_expired());
    if end == End::LeaveUnknown {
        // A renewal that the server carries out after the lapse would extend the lease again. It
        // changes nothing for a key that has ended or was released.
        renewal.finish().await;
    } else {
        drop(renewal);
    }
    let completed = match (end, storable) {
        (End::LeaveUnknown, _) => claim.leave_unknown().await,
        (End::Release, _) | (_, None) => claim.release().await,
        (_, Some(Ok((ending, stored)))) => claim.complete(ending, &stored.encode()).await.map(drop),
        (_, Some(Err(problem))) => {
            let refusal: Response<Bytes> = problem.response();
            let (parts, body) = refusal.into_parts();
            let stored = StoredResponse::of(parts.status, &parts.headers, body);
            claim.complete(Ending::Failed, &stored.encode()).await.map(drop)
        }
    };
    if let Err(error) = completed {
        // The handler's answer correctly describes what it did. Only a repeated request may make it
        // run again.
        tracing::warn!(%error, key = %id, "the outcome of a request was not stored");
    }
    Ok(Looked::Answered(response))
}

/// Runs a request without a key. Its handler gets the same extension, and it runs each time.
pub(super) async fn unkeyed<S, DB, B, R>(
    settings: &LayerOptions<DB>,
    mode: Mode,
    mut call: Call<S>,
) -> Result<Response<R>, S::Error>
where
    DB: KeyStore,
    S: Service<Request<B>, Response = Response<R>>,
    B: From<Bytes>,
    R: Body<Error: Into<BoxError>> + From<Bytes>,
{
    if mode == Mode::Leased {
        call.parts.extensions.insert(None::<LeasedKey>);
        return call.service.call(Request::from_parts(call.parts, B::from(call.body))).await;
    }
    let db = settings.keys.db();
    let tx = match db.begin(DB::begin_plain).await {
        Ok(tx) => tx,
        Err(error) => {
            let error = ClaimError::Store(StoreError::during("begin a transaction")(error));
            return Ok(answer::not_claimed(&error).response());
        }
    };
    let tx = OutboxTransaction::adopt_marked(tx, settings.keys.outbox().cloned());
    let held = HeldTransaction::new(Held::Plain(Box::new(tx)));
    call.parts.extensions.insert(held.clone());
    let mut response = call.service.call(Request::from_parts(call.parts, B::from(call.body))).await?;
    let Some(Held::Plain(tx)) = held.take() else { return Ok(answer::still_in_use().response()) };
    let effect = response.extensions_mut().remove::<Effect>();
    let is_kept = settings.is_stored(response.status()) && settings.keeps(effect, response.status());
    if !is_kept {
        if let Err(error) = db.call(roll_back(tx.into_sqlx())).await {
            tracing::debug!(%error, "the database rolls back by itself");
        }
        return Ok(response);
    }
    let committed = commit(db, *tx).await;
    Ok(committed.map_or_else(|error| answer::not_committed(&error).response(), |()| response))
}

/// Commits what a handler has written.
async fn commit<DB: KeyStore>(db: &Bounded<DB>, tx: OutboxTransaction<DB>) -> Result<(), CommitError> {
    let committed = db.any(tx.commit()).await;
    committed.unwrap_or_else(|error| Err(CommitError::at(UnknownCommit::default(), error)))
}

/// The result of a claim, in the form with which the layer continues.
enum Acquired<T, R> {
    Key(T),
    Answer(Box<Response<R>>),
    InFlight(Problem),
}

fn acquired<T, R: From<Bytes>>(claimed: Result<Claimed<T>, ClaimError>) -> Acquired<T, R> {
    let problem = match claimed {
        Ok(Claimed::Acquired(it)) => return Acquired::Key(it),
        Ok(Claimed::Replay(replay)) => match replayed(replay) {
            Ok(response) => return Acquired::Answer(Box::new(response)),
            Err(problem) => problem,
        },
        Ok(other) => {
            let is_in_flight = matches!(other, Claimed::InFlight { .. });
            let problem = answer::not_acquired(&other).unwrap_or_else(answer::not_a_response);
            if is_in_flight {
                return Acquired::InFlight(problem);
            }
            problem
        }
        Err(error) => answer::not_claimed(&error),
    };
    Acquired::Answer(Box::new(problem.response()))
}

fn replayed<R: From<Bytes>>(replay: Replay) -> Result<Response<R>, Problem> {
    let StoredResponse { status, headers, body } =
        StoredResponse::decode(replay.outcome).map_err(|_| answer::not_a_response())?;
    let mut response = Response::new(R::from(body));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response.headers_mut().insert(IDEMPOTENCY_REPLAYED, HeaderValue::from_static("true"));
    Ok(response)
}
