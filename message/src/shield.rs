//! Work that must not stop halfway.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;

type Work<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Runs a future to its end, even if its caller is dropped. As long as the caller waits, it runs in
/// the caller's task; once dropped, it continues in a separate task. So a transaction whose caller
/// was cancelled by a timeout still commits or rolls back, and a caller that waits pays for no
/// extra task.
///
/// It makes no progress while its caller neither polls nor drops it. Dropped outside a tokio
/// runtime, or while the runtime shuts down, it stops where it is. A panic of the future reaches
/// the caller, or only its own task once the caller was dropped.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let (sender, receiver) = tokio::sync::oneshot::channel();
/// let work = message::shield(async move {
///     tokio::task::yield_now().await;
///     sender.send("done").ok();
/// });
/// drop(work);
/// assert_eq!(receiver.await, Ok("done"));
/// # });
/// ```
pub fn shield<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> ToItsEnd<T> {
    ToItsEnd { work: Some(Box::pin(work)) }
}

/// See [`shield`].
#[must_use = "it runs when it is awaited, or dropped"]
pub struct ToItsEnd<T: Send + 'static> {
    /// `None` once the work has ended or panicked.
    work: Option<Work<T>>,
}

impl<T: Send + 'static> Future for ToItsEnd<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        // Taken out, so that it is not polled again after a panic.
        let Some(mut work) = self.work.take() else { return Poll::Pending };
        let polled = work.as_mut().poll(context);
        if polled.is_pending() {
            self.work = Some(work);
        }
        polled
    }
}

impl<T: Send + 'static> Drop for ToItsEnd<T> {
    fn drop(&mut self) {
        if let (Some(work), Ok(runtime)) = (self.work.take(), Handle::try_current()) {
            runtime.spawn(async move { drop(work.await) });
        }
    }
}

impl<T: Send + 'static> std::fmt::Debug for ToItsEnd<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ToItsEnd").field("has_ended", &self.work.is_none()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn it_goes_on_without_its_caller_and_runs_once() {
        let ended = Arc::new(AtomicUsize::new(0));
        let work = |pauses: u32| {
            let ended = Arc::clone(&ended);
            shield(async move {
                for _ in 0..pauses {
                    tokio::task::yield_now().await;
                }
                ended.fetch_add(1, Ordering::SeqCst)
            })
        };
        assert_eq!(work(3).await, 0);
        // One is dropped before its first poll, one halfway.
        drop(work(0));
        let mut cut = work(100);
        let polled = |context: &mut Context<'_>| Poll::Ready(Pin::new(&mut cut).poll(context).is_pending());
        assert!(std::future::poll_fn(polled).await);
        drop(cut);
        // The runtime has one thread: by then every spawned task has had its turns.
        for _ in 0..1_000 {
            tokio::task::yield_now().await;
        }
        assert_eq!(ended.load(Ordering::SeqCst), 3);
    }

    #[tokio::test]
    async fn a_panic_is_the_callers_and_ends_it() {
        let caught = tokio::spawn(shield(async { panic!("expected by a test") })).await;
        assert!(caught.is_err_and(|error: tokio::task::JoinError| error.is_panic()));
    }
}
