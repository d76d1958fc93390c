//! A receiver of HTTP requests, as a subscription: a request is answered once its message is
//! settled.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::num::NonZeroUsize;
use std::time::Duration;

use async_trait::async_trait;
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response, StatusCode, client};
use hyper_util::rt::TokioIo;
use message::{
    Delivery, DeliveryToken, Disposition, Malformed, Message, Settlement, Subscription, SubscriptionError,
};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::Failure;
use crate::faults::broker::http::REGISTER;
use crate::serving::serve;

/// A request that waits for its answer.
struct Arrival {
    message: Result<Message, Malformed>,
    done: oneshot::Sender<()>,
}

/// A server with the endpoint of one topic.
pub(super) struct Receiver {
    origin: String,
    arrivals: mpsc::Receiver<Arrival>,
    open: HashMap<DeliveryToken, oneshot::Sender<()>>,
    last: u64,
    /// Ends with this value.
    _serving: JoinSet<()>,
}

impl Receiver {
    /// Listens on a free port, and announces it to the gateway.
    pub(super) async fn open(gateway: &str, topic: &str) -> Result<Self, SubscriptionError> {
        let lost = |error: Failure| SubscriptionError::lost(error.to_string());
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(|error| lost(error.into()))?;
        let port = listener.local_addr().map_err(|error| lost(error.into()))?.port();
        let (sender, arrivals) = mpsc::channel(1);
        let mut serving = JoinSet::new();
        let for_topic = topic.to_owned();
        serving.spawn(serve(listener, move |request| answer(request, for_topic.clone(), sender.clone())));
        register(gateway, topic, port).await.map_err(lost)?;
        Ok(Self {
            origin: format!("http {topic}"),
            arrivals,
            open: HashMap::new(),
            last: 0,
            _serving: serving,
        })
    }

    fn delivery(&mut self, Arrival { message, done }: Arrival) -> Delivery {
        self.last += 1;
        let token = DeliveryToken(self.last);
        self.open.insert(token, done);
        // It is unknown whether it came before.
        Delivery { token, message, redelivered: true, origin: self.origin.clone() }
    }
}

#[async_trait]
impl Subscription for Receiver {
    fn origin(&self) -> &str {
        &self.origin
    }

    async fn receive(
        &mut self,
        max: NonZeroUsize,
        wait: Duration,
    ) -> Result<Vec<Delivery>, SubscriptionError> {
        let mut deliveries = Vec::new();
        let Ok(first) = tokio::time::timeout(wait, self.arrivals.recv()).await else {
            return Ok(deliveries);
        };
        let first = first.ok_or_else(|| SubscriptionError::lost("the server has ended"))?;
        deliveries.push(self.delivery(first));
        while deliveries.len() < max.get()
            && let Ok(arrival) = self.arrivals.try_recv()
        {
            deliveries.push(self.delivery(arrival));
        }
        Ok(deliveries)
    }

    async fn settle(&mut self, settlements: Vec<Settlement>) -> Result<(), SubscriptionError> {
        for settlement in settlements {
            // One that is dropped is answered with 503.
            if let Some(done) = self.open.remove(&settlement.token())
                && *settlement.disposition() == Disposition::Done
            {
                // The client may have gone.
                let _ = done.send(());
            }
        }
        Ok(())
    }

    async fn keep_alive(&mut self, _: &[DeliveryToken]) -> Result<(), SubscriptionError> {
        Ok(())
    }

    async fn stop_receiving(&mut self) -> Result<(), SubscriptionError> {
        self.arrivals.close();
        Ok(())
    }

    async fn close(self: Box<Self>) -> Result<(), SubscriptionError> {
        Ok(())
    }
}

/// Announces a receiver to the gateway.
async fn register(gateway: &str, topic: &str, port: u16) -> Result<(), Failure> {
    let stream = TcpStream::connect(gateway).await?;
    let (mut sender, connection) = client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let driving = tokio::spawn(async move { drop(connection.await) });
    let request = Request::post(format!("{REGISTER}{topic}/{port}")).body(Empty::<Bytes>::new())?;
    let status = sender.send_request(request).await?.status();
    driving.abort();
    if status.is_success() { Ok(()) } else { Err(format!("the gateway answers {status}").into()) }
}

/// Answers with success only once the message is settled.
async fn answer(
    request: Request<Incoming>,
    topic: String,
    arrivals: mpsc::Sender<Arrival>,
) -> Result<Response<Full<Bytes>>, Failure> {
    let (parts, body) = request.into_parts();
    let status = match body.collect().await {
        Ok(body) => {
            let read = brokers::http::read(&topic, &parts.headers, body.to_bytes());
            let (done, settled) = oneshot::channel();
            let message = read.map_err(|malformed| *malformed);
            let arrived = arrivals.send(Arrival { message, done }).await;
            if arrived.is_ok() && settled.await.is_ok() {
                StatusCode::NO_CONTENT
            } else {
                StatusCode::SERVICE_UNAVAILABLE
            }
        }
        Err(_) => StatusCode::BAD_REQUEST,
    };
    let mut response = Response::new(Full::new(Bytes::new()));
    *response.status_mut() = status;
    Ok(response)
}
