//! The loop that receives, with a broker that answers by a script.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use drivers::diesel::{apply, run};
use drivers::orders::OrderPlaced;
use drivers::receiving::consume;
use libtest_mimic::{Failed, Trial};
use statements::message::{
    Delivery, DeliveryToken, Malformed, Message, Settlement, Subscription, SubscriptionError,
};
use statements::{Failure, Outbox};

use crate::cases::{delivered, inbox};
use crate::database::{self, letter, order, url};
use crate::diesel::Diesel;

pub(crate) fn trials() -> Vec<Trial> {
    let name = String::from("receiving/diesel/each_delivery_is_settled_once_its_outcome_is_final");
    let run = || -> Result<(), Failed> {
        each_delivery_is_settled_once_its_outcome_is_final();
        Ok(())
    };
    vec![Trial::test(name, run)]
}

/// Hands out these deliveries, then ends.
struct Script {
    deliveries: VecDeque<Delivery>,
    settled: Arc<Mutex<Vec<DeliveryToken>>>,
}

#[async_trait]
impl Subscription for Script {
    fn origin(&self) -> &str {
        "a script"
    }

    async fn receive(&mut self, _: NonZeroUsize, _: Duration) -> Result<Vec<Delivery>, SubscriptionError> {
        let next = self.deliveries.pop_front().ok_or_else(|| SubscriptionError::lost("the script ends"))?;
        Ok(vec![next])
    }

    async fn settle(&mut self, settlements: Vec<Settlement>) -> Result<(), SubscriptionError> {
        let mut settled = self.settled.lock().unwrap_or_else(PoisonError::into_inner);
        settled.extend(settlements.iter().map(Settlement::token));
        Ok(())
    }

    async fn keep_alive(&mut self, _: &[DeliveryToken]) -> Result<(), SubscriptionError> {
        Ok(())
    }

    async fn close(self: Box<Self>) -> Result<(), SubscriptionError> {
        Ok(())
    }
}

fn delivery(token: u64, message: Result<Message, Malformed>) -> Delivery {
    Delivery {
        token: DeliveryToken(token),
        message,
        redelivered: false,
        origin: format!("orders[0]@{token}"),
    }
}

/// Goal: a message that fails at first, a copy of it, one that is rejected, and one that is none
/// are settled once each. Oracle: the settlements, the calls of the handler, and the dead letters.
fn each_delivery_is_settled_once_its_outcome_is_final() {
    let (first, second) = (order(), order());
    let (billed, rejected) = (delivered(first), delivered(second));
    let malformed = Malformed { topic: format!("malformed-{first}"), ..Malformed::default() };
    let deliveries = Mutex::new(VecDeque::from([
        delivery(1, Ok(billed.clone())),
        delivery(2, Ok(billed.clone())),
        delivery(3, Ok(rejected.clone())),
        delivery(4, Err(malformed)),
    ]));
    let settled = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&settled);
    let subscriber = move || {
        let deliveries = std::mem::take(&mut *deliveries.lock().unwrap_or_else(PoisonError::into_inner));
        let script = Script { deliveries, settled: Arc::clone(&settled) };
        async move { Ok(Box::new(script) as Box<dyn Subscription>) }
    };
    let calls = Mutex::new(Vec::new());
    let ended = consume(url(), &inbox::<Diesel>(), &subscriber, |connection, inbox, message| {
        apply(connection, inbox, message, |connection| {
            let mut calls = calls.lock().unwrap_or_else(PoisonError::into_inner);
            calls.push(message.id);
            if message.id == rejected.id {
                return Err(Failure::reject("never"));
            }
            if calls.len() == 1 {
                return Err(Failure::retry("not at first"));
            }
            let event = OrderPlaced { order: first, customer: String::from("ann"), cents: 1 };
            run(connection, Outbox::new().enqueue(&event))?;
            Ok(())
        })
    });
    assert_eq!(ended.expect_err("the script ends").to_string(), "the script ends");
    let settled: Vec<u64> =
        seen.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|token| token.0).collect();
    assert_eq!(settled, [1, 2, 3, 4]);
    let calls = calls.into_inner().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(calls, [billed.id, billed.id, rejected.id]);
    assert_eq!(database::messages(first), "1");
    assert_eq!(letter(&rejected, "reason"), "rejected");
    let stored = format!("SELECT reason FROM inbox_dead_letter WHERE topic = 'malformed-{first}'");
    assert_eq!(database::text(&stored), "malformed");
}
