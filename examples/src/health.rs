//! Routes for the probes of a service with a consumer and a relay.

use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use outbox_toolkit::inbox::ConsumerStatus;
use outbox_toolkit::{RelayHealth, RelayRole, RelayStatus};

/// The parts that probes ask. Take both before `run`, which consumes consumer and relay.
#[derive(Debug, Clone)]
pub struct Health {
    /// From `consumer.status()`.
    pub consumer: ConsumerStatus,
    /// From `relay.health()`.
    pub relay: RelayHealth,
}

/// Longer than any handler of this service may take.
const STALLED_MAX: Duration = Duration::from_secs(300);

/// The advice where a relay gives none.
const SEE: &str = "see the log";

/// Returns `/livez` and `/readyz`, which need no login: serve them on a port of their own.
pub fn probes(health: Health) -> Router {
    Router::new().route("/livez", get(livez)).route("/readyz", get(readyz)).with_state(health)
}

/// A restart helps only if this fails.
async fn livez(State(health): State<Health>) -> (StatusCode, String) {
    answer(health.consumer.is_alive() && health.relay.is_alive(), &health)
}

async fn readyz(State(health): State<Health>) -> (StatusCode, String) {
    answer(health.consumer.is_ready(STALLED_MAX) && health.relay.is_healthy(), &health)
}

fn answer(is_well: bool, Health { consumer, relay }: &Health) -> (StatusCode, String) {
    let status = if is_well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let mut text = format!("relay {} for {}s\n", does(&relay.status()), relay.in_role_for().as_secs());
    text += &format!("consumer reads {}\n", consumer.reads().as_deref().unwrap_or("nothing yet"));
    for wait in consumer.waits() {
        text += &format!("consumer waits for {wait}\n");
    }
    (status, text)
}

/// Says what a relay does, and what helps while it waits. A probe needs no login, so the whole
/// reason, which may name servers and users, is only in the log.
fn does(relay: &RelayStatus) -> String {
    match &relay.role {
        _ if relay.faults > 1 => String::from("is ended by a bug again and again (see the log),"),
        RelayRole::Starting => String::from("has not started"),
        RelayRole::Leading { .. } => String::from("leads"),
        RelayRole::Standby { .. } => String::from("stands by"),
        RelayRole::Waiting { remedy, .. } => format!("waits ({})", remedy.as_deref().unwrap_or(SEE)),
        RelayRole::Refused { remedy, .. } => format!("is refused ({})", remedy.as_deref().unwrap_or(SEE)),
        RelayRole::Stopped => String::from("has stopped"),
    }
}
