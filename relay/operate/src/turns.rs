//! Queries many databases, a few at a time.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, BoxStream, FuturesUnordered};
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::sync::Semaphore;

/// Maximum number of concurrent queries, so that a query of thousands of pipelines does not open
/// too many sessions.
const LOOKS_MAX: usize = 4;
/// Maximum number of slow queries in addition to these. Others do not wait for a database that does
/// not answer: a slow query has no session, or a useless one.
const SLOW_LOOKS_MAX: usize = 12;
/// The time after which a look counts as slow.
const SLOW_AFTER: Duration = Duration::from_secs(1);

/// Runs queries of databases and brokers: four at a time, and up to twelve others that have taken
/// longer than a second. Returns their results in the order of the queries. Cancel-safe if the
/// queries are.
pub async fn in_turns<F: Future>(looks: Vec<F>) -> Vec<F::Output> {
    let quick = Arc::new(Semaphore::new(LOOKS_MAX));
    let mut looks = looks.into_iter().enumerate();
    let mut running = FuturesUnordered::new();
    let mut results = Vec::new();
    loop {
        while running.len() < LOOKS_MAX + SLOW_LOOKS_MAX
            && let Some((place, look)) = looks.next()
        {
            let quick = Arc::clone(&quick);
            running.push(async move { (place, in_turn(look, &quick).await) });
        }
        match running.next().await {
            Some(result) => results.push(result),
            None => break,
        }
    }
    results.sort_unstable_by_key(|(place, _)| *place);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Runs queries as [`in_turns`] does, and returns their results one by one, in the order of the
/// queries: at most sixteen run or wait to be read, however many queries there are. Read it to its
/// end, which drops none half-way.
pub(crate) fn ahead<'a, F>(looks: Vec<F>) -> BoxStream<'a, F::Output>
where
    F: Future + Send + 'a,
    F::Output: Send,
{
    let quick = Arc::new(Semaphore::new(LOOKS_MAX));
    let looks = looks.into_iter().map(move |look| {
        let quick = Arc::clone(&quick);
        async move { in_turn(look, &quick).await }.boxed()
    });
    let looks: Vec<_> = looks.collect();
    stream::iter(looks).buffered(LOOKS_MAX + SLOW_LOOKS_MAX).boxed()
}

/// Runs a query, and lets others begin once it counts as slow.
async fn in_turn<F: Future>(look: F, quick: &Semaphore) -> F::Output {
    // The semaphore is never closed.
    let turn = quick.acquire().await;
    let mut look = pin!(look);
    if let Ok(result) = tokio::time::timeout(SLOW_AFTER, look.as_mut()).await {
        return result;
    }
    drop(turn);
    look.await
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Counts the looks that are under way, and their maximum number.
    #[derive(Default)]
    struct Count {
        now: Cell<usize>,
        most: Cell<usize>,
        ended: Cell<usize>,
    }

    impl Count {
        async fn look(&self, place: usize, lasts: Duration) -> usize {
            self.now.set(self.now.get() + 1);
            self.most.set(self.most.get().max(self.now.get()));
            tokio::time::sleep(lasts).await;
            self.now.set(self.now.get() - 1);
            self.ended.set(self.ended.get() + 1);
            place
        }
    }

    #[tokio::test(start_paused = true)]
    async fn few_looks_run_at_a_time_and_their_results_keep_their_order() {
        let count = Count::default();
        // Later ones are quicker.
        let lasts = |place: usize| Duration::from_millis(900 - 8 * place as u64);
        let found = in_turns((0..100).map(|place| count.look(place, lasts(place))).collect()).await;
        assert_eq!(found, (0..100).collect::<Vec<_>>());
        assert_eq!(count.most.get(), LOOKS_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn no_look_waits_for_a_database_that_does_not_answer() {
        let (away, others) = (Count::default(), Count::default());
        let mut looks: Vec<_> =
            (0..LOOKS_MAX).map(|place| away.look(place, Duration::from_secs(10))).collect();
        looks.extend((LOOKS_MAX..30).map(|place| others.look(place, Duration::from_millis(10))));
        let mut all = pin!(in_turns(looks));
        assert!(tokio::time::timeout(Duration::from_secs(9), all.as_mut()).await.is_err());
        assert_eq!((away.ended.get(), others.ended.get()), (0, 30 - LOOKS_MAX));
        assert_eq!(all.await, (0..30).collect::<Vec<_>>());

        let away = Count::default();
        in_turns((0..100).map(|place| away.look(place, Duration::from_secs(10))).collect()).await;
        assert_eq!(away.most.get(), LOOKS_MAX + SLOW_LOOKS_MAX);
    }
}
