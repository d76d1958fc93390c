//! What consumers rely on in every subscription.

mod cancelling;
mod reading;
mod settling;
mod sharing;

use libtest_mimic::Trial;
use tests::{Backend, Outcome};

use crate::consuming::Scene;
use crate::target::{SUBSCRIPTIONS, Target, on};

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for backend in SUBSCRIPTIONS {
        trials.extend([
            case(backend, "what_is_settled_does_not_come_again", settling::settled),
            case(backend, "what_a_lost_member_had_unsettled_comes_again", settling::unsettled),
            case(backend, "what_is_released_comes_again", settling::released),
            case(backend, "a_token_of_a_closed_subscription_is_skipped", settling::stale_token),
            case(backend, "a_message_arrives_as_it_was_sent", reading::round_trip),
            case(backend, "a_record_without_a_usable_id_comes_as_malformed", reading::malformed),
            case(backend, "a_dropped_receive_loses_nothing", cancelling::dropped_receive),
        ]);
        // The harness reads fixed partitions of the mock, because its group join takes three seconds: no members.
        if backend != Backend::KafkaMock {
            trials.push(case(backend, "two_members_share_the_work", sharing::two_members));
        }
    }
    for backend in [Backend::Sqs, Backend::SqsFifo] {
        trials.push(case(backend, "the_topic_of_a_delivery_is_its_queue", reading::queue_of_a_topic));
    }
    trials
}

fn case<F>(backend: Backend, name: &str, body: impl FnOnce(Scene) -> F + Send + 'static) -> Trial
where
    F: Future<Output = Outcome>,
{
    on("subscription", name, Target::Shared(backend), |stage, broker| async move {
        body(Scene::open(stage, broker).await?).await
    })
}
