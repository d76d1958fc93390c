//! Bills orders that a relay posts: a webhook with an inbox behind it.
//!
//! `(umask 077; echo "whsec_$(openssl rand -base64 32)" > webhook-secret)`, then
//! `DATABASE_URL=postgres://… SECRET_FILE=webhook-secret LISTEN=127.0.0.1:8090 cargo run -p examples --bin webhook_receiver`,
//! and a relay with
//!
//! ```toml
//! [pipeline.http]
//! url = "http://127.0.0.1:8090/orders"
//! secret_files = ["webhook-secret"]
//! private_networks = ["127.0.0.1"]
//! ```

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use examples::database::prepared;
use examples::order::OrderPlaced;
use examples::setting::{Failure, optional, required};
use outbox_toolkit::inbox::{Admission, AdmitError, ConsumerName};
use outbox_toolkit::message::Fault;
use outbox_toolkit::prelude::*;
use outbox_toolkit::webhooks::{Unverified, Verifier};
use tokio::net::TcpListener;
use tokio::time::{interval, timeout};

const TABLE: &str = "CREATE TABLE IF NOT EXISTS invoice (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, order_id bigint NOT NULL, cents bigint NOT NULL)";

/// Shorter than `request_timeout_ms` of the relay, whose default is 10 s.
const HANDLING_MAX: Duration = Duration::from_secs(8);

struct Billing {
    inbox: Inbox<Postgres>,
    consumer: ConsumerName,
    verifier: Verifier,
}

async fn receive(State(billing): State<Arc<Billing>>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let message = match billing.verifier.read("orders", &headers, body) {
        Ok(Ok(message)) => message,
        Ok(Err(malformed)) => return refuse(StatusCode::UNPROCESSABLE_ENTITY, &malformed.problem),
        Err(error @ Unverified::NoSecrets(_)) => return refuse(StatusCode::SERVICE_UNAVAILABLE, &error),
        Err(error) => return refuse(StatusCode::UNAUTHORIZED, &error),
    };
    if message.kind.as_str() != OrderPlaced::KIND {
        return refuse(StatusCode::UNPROCESSABLE_ENTITY, &"no handler for this kind");
    }
    let order = match serde_json::from_slice::<OrderPlaced>(&message.payload) {
        Ok(order) => order,
        Err(error) => return refuse(StatusCode::UNPROCESSABLE_ENTITY, &error),
    };
    match timeout(HANDLING_MAX, billing.bill(&message, &order)).await {
        Ok(Ok(status)) => status,
        Ok(Err(error)) => refuse(status_of(&error), &format_args!("{error:#}")),
        Err(late) => refuse(StatusCode::INTERNAL_SERVER_ERROR, &late),
    }
}

impl Billing {
    /// Bills an order. The invoice and the id of the message commit together, so a repeated request
    /// finds the id and bills nothing.
    async fn bill(&self, message: &Message, order: &OrderPlaced) -> Result<StatusCode, Failure> {
        let mut tx = self.inbox.begin().await?;
        let status = match tx.admit(&self.consumer, &Tenant::none(), message).await? {
            Admission::Duplicate(_) => StatusCode::OK,
            Admission::Fresh(_) => {
                let insert = "INSERT INTO invoice (order_id, cents) VALUES ($1, $2)";
                sqlx::query(insert).bind(order.order).bind(order.cents).execute(&mut **tx).await?;
                StatusCode::NO_CONTENT
            }
        };
        tx.commit().await?;
        Ok(status)
    }
}

fn status_of(error: &Failure) -> StatusCode {
    // An id that is too old, or that came with another content: no repetition helps.
    let admission = error.downcast_ref::<AdmitError>();
    if admission.is_some_and(|error| error.fault() == Fault::Message) {
        return StatusCode::UNPROCESSABLE_ENTITY;
    }
    // The database answers, and refuses this invoice. Others may succeed: only its key waits.
    if let Some(sqlx::Error::Database(_)) = error.downcast_ref() {
        return StatusCode::INTERNAL_SERVER_ERROR;
    }
    // No message can be handled now: the topic pauses.
    StatusCode::SERVICE_UNAVAILABLE
}

fn refuse(status: StatusCode, why: &dyn Display) -> StatusCode {
    eprintln!("{status}: {why}");
    status
}

/// Creates the days that the inbox needs, and forgets the expired ones. The consumer loop of the
/// library does it by itself; this service has none.
async fn maintain(inbox: Inbox<Postgres>) {
    let mut hourly = interval(Duration::from_hours(1));
    loop {
        hourly.tick().await;
        if let Err(error) = inbox.maintain().await {
            eprintln!("the inbox was not maintained: {error}");
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    #[cfg(feature = "crash-points")]
    message::crash_points::arm_from_environment()?;
    let pool = prepared(&[migrations::Line::Inbox], TABLE).await?;
    let inbox = Inbox::open(pool, InboxOptions::default()).await?;
    tokio::spawn(maintain(inbox.clone()));
    let consumer = ConsumerName::new("billing")?;
    let verifier = Verifier::new(&[required("SECRET_FILE")?.into()])?;
    let billing = Arc::new(Billing { inbox, consumer, verifier });
    let app = Router::new().route("/orders", post(receive));
    // A test ends the process here: after the commit, before the answer.
    #[cfg(feature = "crash-points")]
    let app = app.layer(axum::middleware::map_response(|answer: axum::response::Response| async {
        message::crash_points::reached("webhook_receiver::before_answer");
        answer
    }));
    let listener = TcpListener::bind(optional("LISTEN", "127.0.0.1:8090")).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app.with_state(billing)).await?;
    Ok(())
}
