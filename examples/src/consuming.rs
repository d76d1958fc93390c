//! A consuming service that stops by itself when its work is done.

use std::num::NonZeroUsize;
use std::time::Duration;

use inbox::{Consumer, ConsumerName, Handler, Inbox, InboxOptions, Shutdown};
use message::{Subscription, SubscriptionError};
use sqlx::{PgPool, Postgres};

use crate::setting::Failure;

/// When a service has done its work.
#[derive(Debug, Clone, Copy)]
pub struct Until {
    /// Counts what the handler has made.
    pub count: &'static str,
    /// How many there are in the end.
    pub expected: i64,
}

/// Runs a consumer until the rows are there.
///
/// # Errors
/// Whatever the database refuses.
pub async fn consume<F, Fut>(
    pool: &PgPool,
    name: &str,
    subscribe: F,
    handler: impl Handler<Postgres> + 'static,
    until: Until,
) -> Result<(), Failure>
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Box<dyn Subscription>, SubscriptionError>> + Send + 'static,
{
    let inbox = Inbox::open(pool.clone(), InboxOptions::default()).await?;
    let consumer = Consumer::builder(inbox, ConsumerName::new(name)?)
        .subscribe(subscribe)
        .handler(handler)
        .concurrency(NonZeroUsize::MIN.saturating_add(3))
        .build()?;
    let shutdown = Shutdown::new();
    let running = tokio::spawn(consumer.run(shutdown.clone()));
    while sqlx::query_scalar::<_, i64>(until.count).fetch_one(pool).await? < until.expected {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    shutdown.graceful.cancel();
    running.await??;
    Ok(())
}
