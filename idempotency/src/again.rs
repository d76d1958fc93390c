//! Repeats steps.

use std::future::Future;
use std::time::Duration;

use message::Backoff;
use migrations::SqlErrorKind;
use outbox::{Bounded, StoreError};

use crate::store::KeyStore;

/// Maximum tries of a step that lost to another one, or whose answer was lost. Every step may be
/// repeated: the holder's id shows whether an earlier try was carried out.
const TRIES: u32 = 5;
/// The pause between two tries.
pub(crate) const PAUSE: Backoff =
    Backoff { first: Duration::from_millis(10), max: Duration::from_millis(250) };

/// Repeats a step until it neither conflicts with another one nor loses its answer. All tries
/// together take at most as long as one call may.
pub(crate) async fn again<DB: KeyStore, T, F>(
    db: &Bounded<DB>,
    what: &'static str,
    mut step: impl FnMut() -> F,
) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, sqlx::Error>>,
{
    let tries = async {
        let mut attempt = 1;
        loop {
            match step().await {
                Err(error) if may_try_again(&error, attempt) => {
                    tracing::debug!(attempt, %error, what, "trying again");
                    tokio::time::sleep(PAUSE.delay(attempt, rand::random())).await;
                    attempt += 1;
                }
                done => return done,
            }
        }
    };
    db.call(tries).await.map_err(StoreError::during(what))
}

/// Returns whether a step that failed is tried again, after this many tries.
pub(crate) fn may_try_again(error: &sqlx::Error, attempt: u32) -> bool {
    SqlErrorKind::of(error) != SqlErrorKind::Refused && attempt < TRIES
}
