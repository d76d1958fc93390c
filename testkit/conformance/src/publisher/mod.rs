//! The contract of publishers, on which the relay relies.

mod connecting;
mod ending;
mod receipts;
mod refusals;

pub use connecting::refusal;

use crate::case::{Case, Need};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("publisher", "nobody_at_the_address_is_the_brokers_fault", Need::Nothing, |broker, can| {
            Box::pin(connecting::nobody(broker, can))
        }),
        Case::new(
            "publisher",
            "everything_confirmed_is_there_in_order_per_key",
            Need::Nothing,
            |broker, can| Box::pin(receipts::everything(broker, can)),
        ),
        Case::new("publisher", "a_missing_topic_is_named_and_stops_alone", Need::Nothing, |broker, can| {
            Box::pin(refusals::missing_topic(broker, can))
        }),
        Case::new("publisher", "hostile_topics_are_refused_alone", Need::Nothing, |broker, can| {
            Box::pin(refusals::hostile_topics(broker, can))
        }),
        Case::new("publisher", "a_close_answers_what_is_in_flight", Need::Nothing, |broker, can| {
            Box::pin(ending::close(broker, can))
        }),
        Case::new("publisher", "a_drop_answers_what_is_in_flight", Need::Nothing, |broker, can| {
            Box::pin(ending::drop(broker, can))
        }),
        Case::new("publisher", "an_oversize_message_is_refused_alone", Need::SizeLimit, |broker, can| {
            Box::pin(refusals::oversize(broker, can))
        }),
    ]
}
