//! Clients that have lost all their brokers: librdkafka reports it, and relay and consumer must act
//! on it.

use std::sync::Arc;
use std::time::Instant;

use message::Fault;
use rdkafka::Statistics;

use super::super::inflow::Inflow;
use super::super::outcomes::Outcomes;
use super::*;

/// The maximum time that a client may be without brokers.
const TOO_LONG: Duration = Duration::from_secs(15);

#[test]
fn a_session_that_is_cut_off_ends() {
    let (outcomes, begin) = (Outcomes::new(Receipts::channel().0, None, Arc::default()), Instant::now());
    outcomes.told(&Statistics::default(), begin);
    assert!(!outcomes.failed());
    outcomes.told(&Statistics::default(), begin + TOO_LONG);
    assert!(outcomes.failed());
    assert_eq!(outcomes.lost().fault(), Fault::Broker);
}

#[test]
fn a_subscription_that_is_cut_off_ends() {
    let (inflow, begin) = (Inflow::new(1, [TOPIC]), Instant::now());
    inflow.told(&Statistics::default(), begin);
    assert!(inflow.check().is_ok());
    inflow.told(&Statistics::default(), begin + TOO_LONG);
    assert_eq!(inflow.check().unwrap_err().fault(), Fault::Broker);
}
