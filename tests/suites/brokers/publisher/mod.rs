//! What the relay relies on in every publisher.

mod connecting;
mod ending;
mod receipts;
mod refusals;

use libtest_mimic::Trial;

use crate::target::{PUBLISHERS, on};

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = connecting::trials();
    for target in PUBLISHERS {
        trials.extend([
            on("publisher", "everything_confirmed_is_there_in_order_per_key", target, receipts::everything),
            on("publisher", "a_missing_topic_is_named_and_stops_alone", target, refusals::missing_topic),
            on("publisher", "hostile_topics_are_refused_alone", target, refusals::hostile_topics),
            on("publisher", "a_close_answers_what_is_in_flight", target, ending::close),
            on("publisher", "a_drop_answers_what_is_in_flight", target, ending::drop),
        ]);
        // Memory has no limit.
        if target.backend() != tests::Backend::Memory {
            trials.push(on("publisher", "an_oversize_message_is_refused_alone", target, refusals::oversize));
        }
    }
    trials
}
