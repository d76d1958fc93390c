//! Searches, by halving, for the message that makes the broker close a channel.
//!
//! One culprit among 1,000 messages is found with about 20 groups; the others are published on the
//! way.

use message::Topic;

use super::window::Item;

/// Groups of messages, each of which is still to be published as one window.
#[derive(Debug)]
pub(super) struct Suspects {
    groups: Vec<Vec<Item>>,
}

impl Suspects {
    pub(super) fn new() -> Self {
        Self { groups: Vec::new() }
    }

    /// Returns the next group to publish; never empty.
    pub(super) fn next(&mut self) -> Option<Vec<Item>> {
        self.groups.pop()
    }

    /// Splits a group of at least two that closed the channel: its halves come next, in order.
    pub(super) fn split(&mut self, mut group: Vec<Item>) {
        let second = group.split_off(group.len().div_ceil(2));
        self.groups.extend([second, group].into_iter().filter(|half| !half.is_empty()));
    }

    /// Takes out every message of a topic that turned out to be closed.
    pub(super) fn take_topic(&mut self, topic: &Topic) -> Vec<Item> {
        let mut taken = Vec::new();
        for group in &mut self.groups {
            taken.extend(group.extract_if(.., |item| item.message.topic == *topic));
        }
        self.groups.retain(|group| !group.is_empty());
        taken
    }

    /// Ends the search. Returns every message that is left.
    pub(super) fn into_rest(self) -> impl Iterator<Item = Item> {
        self.groups.into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rabbitmq::window::tests::item;

    /// Publishes against a broker that closes the channel when a group contains a `bad` message.
    /// Returns the good messages, the culprits and the number of groups tried.
    fn search(items: Vec<Item>, bad: impl Fn(&Item) -> bool) -> (Vec<Item>, Vec<Item>, usize) {
        let (mut good, mut culprits, mut tried) = (Vec::new(), Vec::new(), 0);
        let mut suspects = Suspects::new();
        suspects.split(items);
        while let Some(mut group) = suspects.next() {
            tried += 1;
            if !group.iter().any(&bad) {
                good.append(&mut group);
            } else if group.len() == 1 {
                culprits.append(&mut group);
            } else {
                suspects.split(group);
            }
        }
        (good, culprits, tried)
    }

    #[test]
    fn only_the_culprit_is_left_out_and_the_order_stays() {
        let items: Vec<Item> = (0..1_000).map(|_| item("orders", 1)).collect();
        let ids: Vec<_> = items.iter().map(|item| item.message.id).collect();
        let (good, culprits, tried) = search(items, |item| item.message.id == ids[617]);
        assert_eq!(culprits.len(), 1);
        assert!(tried <= 20, "{tried}");
        let expected: Vec<_> = ids.iter().copied().filter(|id| *id != ids[617]).collect();
        assert_eq!(good.iter().map(|item| item.message.id).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_closed_topic_leaves_all_at_once() {
        let mut suspects = Suspects::new();
        suspects.split((0..10).map(|n| item(if n % 2 == 0 { "orders" } else { "bills" }, 1)).collect());
        assert_eq!(suspects.take_topic(&Topic::new("orders").unwrap()).len(), 5);
        assert_eq!(suspects.into_rest().count(), 5);
    }
}
