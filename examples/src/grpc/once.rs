//! Idempotency keys in gRPC: a unary call that is repeated under its key gets the outcome of the
//! first one.
//!
//! | status | `idempotency-code` | when | what the client does |
//! |---|---|---|---|
//! | the handler's | – | the call ran now; `idempotency-replayed: true`: it had run before | – |
//! | `INVALID_ARGUMENT` | `idempotency_key_missing`, `…_malformed` | there is no key, it is not 1 to 255 bytes, or it is no token where the operation takes only tokens | generates a key for each new call |
//! | `INVALID_ARGUMENT` | `idempotency_key_reused` | the key was used for another request | the same |
//! | `INVALID_ARGUMENT` | `idempotency_key_too_old` | the operation takes only tokens, and the service no longer remembers whether it has run under this one | finds out whether the call took effect, and generates a new key only if it did not |
//! | `INVALID_ARGUMENT` | `idempotency_key_too_far_ahead` | the token was generated in the future | corrects its clock |
//! | `UNAUTHENTICATED` | `idempotency_key_of_nobody` | no tenant is known | authenticates |
//! | `UNAVAILABLE` | `idempotency_key_in_flight` | a call with the key is running | calls again with the same key, after `grpc-retry-pushback-ms` |
//! | `FAILED_PRECONDITION` | `idempotency_key_stuck`, `…_discarded` | an operator must decide, or has decided that it never runs | asks the operator |
//! | `UNAVAILABLE` | `idempotency_unavailable` | the database is unavailable; the call may or may not have run | calls again with the same key |
//! | `INTERNAL` | `idempotency_failed` | the service or its set-up is wrong | – |
//!
//! The metadata are trailers of the answer. Clients of gRPC that have a retry policy with
//! `UNAVAILABLE` repeat such calls by themselves, and wait for as long as `grpc-retry-pushback-ms`
//! says.

use std::time::Duration;

use idempotency::{
    ClaimError, ClaimOptions, Claimed, CommitError, Ending, IdempotencyKey, IdempotencyKeys, KeyId,
    KeyTransaction, Operation, Tenant,
};
use message::Fault;
use message::token::Drift;
use prost::Message;
use sqlx::Postgres;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Request, Response, Status};

use super::received::Received;
use crate::setting::Failure;

/// The metadata with the caller's key.
const KEY: &str = "idempotency-key";

/// The metadata that marks a stored outcome.
const REPLAYED: &str = "idempotency-replayed";

/// The metadata with the machine-readable word of a problem.
const CODE: &str = "idempotency-code";

/// The metadata that tells a client when to retry (gRPC's proposal A6).
const PUSHBACK: &str = "grpc-retry-pushback-ms";

/// Runs calls once for each key, in a transaction that holds the key.
#[derive(Debug)]
pub struct Once {
    keys: IdempotencyKeys<Postgres>,
    options: ClaimOptions,
    tenant: fn(&MetadataMap) -> Option<Tenant>,
}

/// A call, new or repeated.
#[derive(Debug)]
#[must_use = "a new call must run and end, a repeated one be answered"]
pub enum Call<A> {
    /// The first one: run it in this transaction, then [`end`] it.
    New(Box<KeyTransaction<Postgres>>),
    /// It has run, with this outcome.
    Repeated(Result<Response<A>, Status>),
}

/// The outcome of a call, as it is stored. Metadata of the handler's answer are not kept.
#[derive(Clone, PartialEq, Eq, Message)]
struct Stored {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(bytes = "vec", tag = "3")]
    details: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    answer: Vec<u8>,
}

impl Once {
    /// Makes it from the keys, the policy of the calls, and the function that says whose call it
    /// is.
    pub fn new(
        keys: IdempotencyKeys<Postgres>,
        options: ClaimOptions,
        tenant: fn(&MetadataMap) -> Option<Tenant>,
    ) -> Self {
        Self { keys, options, tenant }
    }

    /// Claims the key of a call to this method, such as `shop.Orders/Place`. Two requests are equal
    /// if [their bytes](Received::fingerprint) are.
    ///
    /// # Errors
    /// The [`Status`] to answer with: nothing was run.
    pub async fn begin<Q, A: Message + Default>(
        &self,
        method: &str,
        request: &Request<Q>,
    ) -> Result<Call<A>, Status> {
        let id = self.identity(method, request.metadata())?;
        let Some(received) = request.extensions().get::<Received>() else {
            return Err(broken(Failure::msg("the server lacks the layer grpc::received::keep")));
        };
        let content = received.fingerprint(method);
        match self.keys.begin(&id, content, &self.options).await.map_err(not_claimed)? {
            Claimed::Acquired(tx) => Ok(Call::New(Box::new(tx))),
            Claimed::Replay(replay) => Ok(Call::Repeated(Stored::read(&replay.outcome))),
            Claimed::InFlight { retry_after } => Err(in_flight(retry_after)),
            Claimed::Stuck { .. } => Err(problem(
                Code::FailedPrecondition,
                "idempotency_key_stuck",
                "it is unknown whether the call took effect; an operator decides",
            )),
            Claimed::Discarded { .. } => Err(problem(
                Code::FailedPrecondition,
                "idempotency_key_discarded",
                "an operator has discarded the call: it never runs",
            )),
            Claimed::Conflict { .. } => Err(problem(
                Code::InvalidArgument,
                "idempotency_key_reused",
                "the key belongs to another request; generate a key for each new call",
            )),
        }
    }

    fn identity(&self, method: &str, metadata: &MetadataMap) -> Result<KeyId, Status> {
        let Some(tenant) = (self.tenant)(metadata) else {
            return Err(problem(Code::Unauthenticated, "idempotency_key_of_nobody", "authenticate"));
        };
        let Some(key) = metadata.get(KEY) else {
            return Err(problem(
                Code::InvalidArgument,
                "idempotency_key_missing",
                "send a key in the metadata idempotency-key, the same in every attempt of a call",
            ));
        };
        let malformed = |error: Failure| {
            problem(Code::InvalidArgument, "idempotency_key_malformed", &format!("idempotency-key: {error}"))
        };
        let key = key.to_str().map_err(|error| malformed(error.into()))?;
        let key = IdempotencyKey::new(key).map_err(|error| malformed(error.into()))?;
        let operation = Operation::new(method).map_err(|error| broken(error.into()))?;
        KeyId::new(tenant, operation, key).map_err(|error| broken(error.into()))
    }
}

/// Ends a new call: stores its outcome, and commits it with everything that was written. A refusal
/// that repetition does not change is stored as well, and what the call wrote is rolled back. After
/// any other error nothing is stored, and the next attempt runs the call again.
///
/// # Errors
/// The outcome of the call, or [`Code::Unavailable`] or [`Code::Internal`] if it could not be
/// committed. A call that is dropped before it ends is rolled back; a commit that has begun runs to
/// its end.
pub async fn end<A: Message>(
    mut tx: Box<KeyTransaction<Postgres>>,
    outcome: Result<A, Status>,
) -> Result<Response<A>, Status> {
    let ending = if outcome.is_ok() { Ending::Succeeded } else { Ending::Failed };
    let stored = match &outcome {
        Ok(answer) => Stored { answer: answer.encode_to_vec(), ..Stored::default() },
        Err(status) if is_final(status.code()) => {
            tx.undo().await.map_err(|error| unavailable(error.into()))?;
            Stored {
                code: status.code().into(),
                message: status.message().to_owned(),
                details: status.details().to_vec(),
                answer: Vec::new(),
            }
        }
        // The transaction is dropped, which rolls it back.
        Err(_) => return outcome.map(Response::new),
    };
    tx.commit(ending, &stored.encode_to_vec()).await.map_err(not_committed)?;
    outcome.map(Response::new)
}

/// Whether the same call gets the same status at any later time.
fn is_final(code: Code) -> bool {
    matches!(
        code,
        Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::FailedPrecondition
            | Code::OutOfRange
    )
}

impl Stored {
    /// Reads a stored outcome, and marks it as one.
    fn read<A: Message + Default>(outcome: &[u8]) -> Result<Response<A>, Status> {
        let stored = Self::decode(outcome).map_err(|error| broken(error.into()))?;
        let replayed = MetadataValue::from_static("true");
        if stored.code == i32::from(Code::Ok) {
            let answer = A::decode(&*stored.answer).map_err(|error| broken(error.into()))?;
            let mut response = Response::new(answer);
            response.metadata_mut().insert(REPLAYED, replayed);
            return Ok(response);
        }
        let code = Code::from_i32(stored.code);
        let mut status = Status::with_details(code, stored.message, stored.details.into());
        status.metadata_mut().insert(REPLAYED, replayed);
        Err(status)
    }
}

fn problem(code: Code, word: &'static str, detail: &str) -> Status {
    let mut status = Status::new(code, detail);
    status.metadata_mut().insert(CODE, MetadataValue::from_static(word));
    status
}

fn in_flight(retry_after: Duration) -> Status {
    let mut status =
        problem(Code::Unavailable, "idempotency_key_in_flight", "a call with this key is running");
    let pushback = u64::try_from(retry_after.as_millis()).unwrap_or(u64::MAX);
    status.metadata_mut().insert(PUSHBACK, MetadataValue::from(pushback));
    status
}

/// Returns the status to answer with when a key was not claimed. A key that is too old has a word
/// of its own: the call may have run, so a client that simply made a new key could run it twice.
#[must_use]
pub fn not_claimed(error: ClaimError) -> Status {
    let word = match &error {
        ClaimError::NotAToken(_) => "idempotency_key_malformed",
        ClaimError::Drift(Drift::TooOld { .. }) => "idempotency_key_too_old",
        ClaimError::Drift(Drift::TooFarAhead { .. }) => "idempotency_key_too_far_ahead",
        _ if error.fault() == Fault::Broker => return unavailable(error.into()),
        _ => return broken(error.into()),
    };
    problem(Code::InvalidArgument, word, &format!("idempotency-key: {error}. Nothing was done now."))
}

fn not_committed(error: CommitError) -> Status {
    if error.fault() == Fault::Broker { unavailable(error.into()) } else { broken(error.into()) }
}

fn unavailable(error: Failure) -> Status {
    eprintln!("error: {error:#}");
    let detail = "the database is unavailable: repeat the call with the same key";
    problem(Code::Unavailable, "idempotency_unavailable", detail)
}

fn broken(error: Failure) -> Status {
    eprintln!("error: {error:#}");
    problem(Code::Internal, "idempotency_failed", "the service failed")
}
