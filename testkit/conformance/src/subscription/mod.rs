//! The contract of subscriptions, on which consumers rely.

mod cancelling;
mod reading;
mod settling;
mod sharing;

use crate::case::{Case, Need};
use crate::consuming::Scene;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("subscription", "what_is_settled_does_not_come_again", Need::Nothing, |broker, can| {
            Box::pin(async move { settling::settled(Scene::open(broker, can).await?).await })
        }),
        Case::new(
            "subscription",
            "what_a_lost_member_had_unsettled_comes_again",
            Need::Nothing,
            |broker, can| Box::pin(async move { settling::unsettled(Scene::open(broker, can).await?).await }),
        ),
        Case::new("subscription", "what_is_released_comes_again", Need::Nothing, |broker, can| {
            Box::pin(async move { settling::released(Scene::open(broker, can).await?).await })
        }),
        Case::new(
            "subscription",
            "a_token_of_a_closed_subscription_is_skipped",
            Need::Nothing,
            |broker, can| {
                Box::pin(async move { settling::stale_token(Scene::open(broker, can).await?).await })
            },
        ),
        Case::new("subscription", "a_message_arrives_as_it_was_sent", Need::Nothing, |broker, can| {
            Box::pin(async move { reading::round_trip(Scene::open(broker, can).await?).await })
        }),
        Case::new(
            "subscription",
            "a_record_without_a_usable_id_comes_as_malformed",
            Need::Nothing,
            |broker, can| Box::pin(async move { reading::malformed(Scene::open(broker, can).await?).await }),
        ),
        Case::new(
            "subscription",
            "records_without_an_id_that_differ_in_a_header_are_different_deliveries",
            Need::Nothing,
            |broker, can| Box::pin(async move { reading::told_apart(Scene::open(broker, can).await?).await }),
        ),
        Case::new("subscription", "a_dropped_receive_loses_nothing", Need::Nothing, |broker, can| {
            Box::pin(async move { cancelling::dropped_receive(Scene::open(broker, can).await?).await })
        }),
        Case::new("subscription", "two_members_share_the_work", Need::SharedWork, |broker, can| {
            Box::pin(async move { sharing::two_members(Scene::open(broker, can).await?).await })
        }),
    ]
}
