//! The signals by which a process is asked to end.

use tokio::signal::unix::{SignalKind, signal};

/// Ends when the process is asked to: by SIGTERM or SIGINT (Ctrl-C). For consumers and relays
/// inside a service. The first poll takes both signals over, for as long as the process lives, so
/// that a second one does nothing; where that is refused, the future ends with Ctrl-C only.
///
/// ```no_run
/// # async fn example(serve: impl AsyncFnOnce(std::pin::Pin<Box<dyn Future<Output = ()> + Send>>)) {
/// serve(Box::pin(outbox_toolkit::shutdown_signal())).await;
/// # }
/// ```
pub async fn shutdown_signal() {
    let terminated = async {
        match signal(SignalKind::terminate()) {
            Ok(mut terminate) => terminate.recv().await,
            Err(_) => std::future::pending().await,
        }
    };
    let interrupted = async {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        _ = terminated => {}
        () = interrupted => {}
    }
}
