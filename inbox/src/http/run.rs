//! One request, from its claim to its answer.

use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Request, Response};
use http_body::Body;
use http_body_util::BodyExt as _;
use message::Fingerprint;
use message::crash_points::reached;
use tokio::time::Instant;
use tower_service::Service;

use super::answer;
use super::header::IDEMPOTENCY_REPLAYED;
use super::held::{Held, HeldTransaction, LeasedKey};
use super::layer::{Mode, Settings};
use super::problem::Problem;
use super::stored::StoredResponse;
use crate::backoff::Backoff;
use crate::dialect::Dialect;
use crate::error::CommitError;
use crate::keys::{Claim, ClaimError, Claimed, Ending, KeyId, Replay, crash_points};
use crate::transaction::judge_commit;

/// How often is asked for a key that somebody else holds.
const WAIT_PAUSE: Backoff = Backoff { first: Duration::from_millis(10), max: Duration::from_millis(250) };

/// A request that was read, and whom it is for.
pub(super) struct Call<S> {
    pub(super) service: S,
    pub(super) parts: Parts,
    pub(super) body: Bytes,
    pub(super) fingerprint: Fingerprint,
}

/// A response that can be stored, or why not.
type Storable = Result<(Ending, StoredResponse), Problem>;

impl<S> Call<S> {
    /// Lets the handler answer. Its response as it goes to the client, and what of it is stored; nothing where its status is
    /// not.
    async fn answer<DB, B, R>(
        mut self,
        settings: &Settings<DB>,
        extension: impl Clone + Send + Sync + 'static,
        took_effect: bool,
    ) -> Result<(Response<R>, Option<Storable>), S::Error>
    where
        DB: Dialect,
        S: Service<Request<B>, Response = Response<R>>,
        B: From<Bytes>,
        R: Body + From<Bytes>,
    {
        self.parts.extensions.insert(extension);
        let response = self.service.call(Request::from_parts(self.parts, B::from(self.body))).await?;
        reached(crash_points::AFTER_EFFECT);
        if !settings.is_stored(response.status()) {
            return Ok((response, None));
        }
        let (parts, body) = response.into_parts();
        let limit = settings.response_bytes_max;
        // A body whose end is not known may never end.
        let fits = body.size_hint().exact().is_some_and(|bytes| bytes <= limit as u64);
        let whole = if fits { body.collect().await.ok() } else { None };
        let Some(whole) = whole else {
            let problem = answer::not_storable(limit, took_effect);
            return Ok((problem.response(), Some(Err(problem))));
        };
        let body = whole.to_bytes();
        let ending = if parts.status.is_client_error() { Ending::Failed } else { Ending::Succeeded };
        let stored = StoredResponse::of(parts.status, &parts.headers, body.clone());
        Ok((Response::from_parts(parts, R::from(body)), Some(Ok((ending, stored)))))
    }
}

/// Key, effects and response commit together, or nothing does. The service runs each call to its end.
pub(super) async fn transactional<S, DB, B, R>(
    settings: &Settings<DB>,
    id: KeyId,
    call: Call<S>,
) -> Result<Response<R>, S::Error>
where
    DB: Dialect,
    S: Service<Request<B>, Response = Response<R>>,
    B: From<Bytes>,
    R: Body + From<Bytes>,
{
    let claimed =
        waiting(settings, || settings.keys.begin_here(&id, call.fingerprint, &settings.claim)).await;
    let tx = match acquired(claimed) {
        Ok(tx) => tx,
        Err(response) => return Ok(*response),
    };
    let held = HeldTransaction::new(Held::Keyed(tx));
    let (response, storable) = call.answer(settings, held.clone(), false).await?;
    let Some(Held::Keyed(tx)) = held.take() else { return Ok(answer::still_in_use().response()) };
    let Some(Ok((ending, stored))) = storable else {
        if let Err(error) = tx.rollback().await {
            tracing::debug!(%error, "the database rolls back by itself");
        }
        return Ok(response);
    };
    match tx.commit_here(ending, &stored.encode()).await {
        Ok(()) => Ok(response),
        Err(error) => Ok(answer::not_committed(&error).response()),
    }
}

/// The key is held on lease while the handler makes its effects elsewhere.
pub(super) async fn leased<S, DB, B, R>(
    settings: &Settings<DB>,
    id: KeyId,
    call: Call<S>,
) -> Result<Response<R>, S::Error>
where
    DB: Dialect,
    S: Service<Request<B>, Response = Response<R>>,
    B: From<Bytes>,
    R: Body + From<Bytes>,
{
    let claimed = waiting(settings, || settings.keys.claim(&id, call.fingerprint, &settings.claim)).await;
    let claim = match acquired(claimed) {
        Ok(claim) => claim,
        Err(response) => return Ok(*response),
    };
    let key = LeasedKey { id, attempt: claim.attempt() };
    let answered = tokio::select! {
        biased;
        answered = call.answer(settings, key, true) => answered,
        never = renewing(&claim) => match never {},
    };
    let (response, storable) = answered?;
    let completed = match storable {
        None => claim.release().await,
        Some(Ok((ending, stored))) => claim.complete(ending, &stored.encode()).await.map(drop),
        // The effect has happened: whoever asks again gets the same refusal.
        Some(Err(problem)) => {
            let refusal: Response<Bytes> = problem.response();
            let (parts, body) = refusal.into_parts();
            let stored = StoredResponse::of(parts.status, &parts.headers, body);
            claim.complete(Ending::Failed, &stored.encode()).await.map(drop)
        }
    };
    if let Err(error) = completed {
        // The handler's answer is the truth about what it has done; only whoever asks again may make it run once more.
        tracing::warn!(%error, "the outcome of a request was not stored");
    }
    Ok(response)
}

/// A request without a key: its handler gets the same, and it runs each time.
pub(super) async fn unkeyed<S, DB, B, R>(
    settings: &Settings<DB>,
    mode: Mode,
    mut call: Call<S>,
) -> Result<Response<R>, S::Error>
where
    DB: Dialect,
    S: Service<Request<B>, Response = Response<R>>,
    B: From<Bytes>,
    R: Body + From<Bytes>,
{
    if mode == Mode::Leased {
        return call.service.call(Request::from_parts(call.parts, B::from(call.body))).await;
    }
    let tx = match DB::begin_holding(settings.keys.pool()).await {
        Ok(tx) => tx,
        Err(error) => {
            let error =
                ClaimError::Store(crate::store_error::StoreError::during("begin a transaction")(error));
            return Ok(answer::not_claimed(&error).response());
        }
    };
    let held = HeldTransaction::new(Held::Plain(tx));
    call.parts.extensions.insert(held.clone());
    let response = call.service.call(Request::from_parts(call.parts, B::from(call.body))).await?;
    let Some(Held::Plain(tx)) = held.take() else { return Ok(answer::still_in_use().response()) };
    let committed = commit(tx, settings.is_stored(response.status())).await;
    Ok(committed.map_or_else(|error| answer::not_committed(&error).response(), |()| response))
}

/// Commits what a response that would be stored has written, and rolls anything else back.
async fn commit<DB: Dialect>(
    mut tx: sqlx::Transaction<'static, DB>,
    is_stored: bool,
) -> Result<(), CommitError> {
    if !is_stored {
        return tx.rollback().await.map_err(|error| CommitError::Unknown { source: Box::new(error) });
    }
    // An aborted transaction would be rolled back in silence.
    DB::probe(&mut tx).await.map_err(|error| CommitError::RolledBack {
        reason: "an earlier statement has aborted it",
        source: Some(Box::new(error)),
    })?;
    tx.commit().await.map_err(judge_commit)
}

/// Asks again while somebody else holds the key, for as long as the route allows.
async fn waiting<DB, T, F>(
    settings: &Settings<DB>,
    mut claim: impl FnMut() -> F,
) -> Result<Claimed<T>, ClaimError>
where
    DB: Dialect,
    F: Future<Output = Result<Claimed<T>, ClaimError>>,
{
    let until = Instant::now() + settings.wait_max;
    let mut attempt = 1;
    loop {
        let claimed = claim().await?;
        let pause = WAIT_PAUSE.bound(attempt);
        if !matches!(claimed, Claimed::InFlight { .. }) || Instant::now() + pause > until {
            return Ok(claimed);
        }
        tokio::time::sleep(pause).await;
        attempt += 1;
    }
}

/// The key, or what is answered instead.
fn acquired<T, R: From<Bytes>>(claimed: Result<Claimed<T>, ClaimError>) -> Result<T, Box<Response<R>>> {
    let problem = match claimed {
        Ok(Claimed::Acquired(it)) => return Ok(it),
        Ok(Claimed::Replay(replay)) => match replayed(replay) {
            Ok(response) => return Err(Box::new(response)),
            Err(problem) => problem,
        },
        Ok(other) => answer::not_acquired(&other).unwrap_or_else(answer::not_a_response),
        Err(error) => answer::not_claimed(&error),
    };
    Err(Box::new(problem.response()))
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

/// Keeps a lease alive for as long as the handler takes.
async fn renewing<DB: Dialect>(claim: &Claim<DB>) -> std::convert::Infallible {
    loop {
        tokio::time::sleep(claim.lease() / 3).await;
        if let Err(error) = claim.renew().await {
            tracing::warn!(%error, "the lease of an idempotency key could not be renewed");
        }
    }
}
