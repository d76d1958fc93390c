//! An HTTP server for everything that a storm serves itself.

use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::Failure;

/// Answers the requests of all connections until it is dropped, which ends them. An error ends its
/// connection without an answer.
pub(crate) async fn serve<A, F, B>(listener: TcpListener, answer: A)
where
    A: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Result<Response<B>, Failure>> + Send + 'static,
    B: Body<Data: Send, Error: Into<Failure>> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((client, _)) = accepted else { continue };
                let answer = answer.clone();
                connections.spawn(async move {
                    let served = http1::Builder::new().serve_connection(TokioIo::new(client), service_fn(answer));
                    // Client and server each handle the end of the connection.
                    let _ = served.await;
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}
