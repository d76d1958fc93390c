//! The signals that ask a process to end.

/// Completes when the process is asked to end: by SIGTERM or SIGINT (Ctrl-C), and on Windows by
/// Ctrl-C. For consumers and relays inside a service. The first poll takes over these signals for
/// as long as the process lives, so a second signal has no effect. If taking over SIGTERM fails,
/// only Ctrl-C completes the future.
///
/// ```no_run
/// # async fn example(serve: impl AsyncFnOnce(std::pin::Pin<Box<dyn Future<Output = ()> + Send>>)) {
/// serve(Box::pin(outbox_toolkit::shutdown_signal())).await;
/// # }
/// ```
pub async fn shutdown_signal() {
    let interrupted = async {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = terminated() => {}
        () = interrupted => {}
    }
}

#[cfg(unix)]
async fn terminated() {
    use tokio::signal::unix::{SignalKind, signal};

    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => drop(terminate.recv().await),
        Err(_) => std::future::pending().await,
    }
}

/// Other systems have no such signal.
#[cfg(not(unix))]
async fn terminated() {
    std::future::pending().await
}
