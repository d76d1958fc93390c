//! Remembers messages that a session itself refused, before librdkafka took them, so that the
//! session can continue. Pure, except for the clock.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use message::{Fault, FaultScope, Message, MessageId, OrderingKey, PublishError, Topic};

/// Maximum number of remembered keys; a further refusal ends the session.
const KEYS_MAX: usize = 1_000;
/// Maximum number of remembered topics. Others are queried each time.
const TOPICS_MAX: usize = 1_000;
/// Pause before the cluster is asked again for a missing topic: each request delays all messages.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// The state of a key after a refusal.
#[derive(Debug)]
enum Stop {
    /// The refused message must be submitted again before any other; one in chunks, from this chunk
    /// or an earlier one on.
    Until(MessageId, Option<u32>),
    /// A message of the key was answered as lost with the session: any message now could overtake
    /// it.
    ForGood,
}

/// The keys and topics of refused messages.
#[derive(Debug, Default)]
pub(super) struct Refused {
    keys: HashMap<OrderingKey, Stop>,
    topics: HashMap<Topic, (Instant, Fault, String)>,
}

impl Refused {
    /// Returns whether the message is lost with this session, because another one of its key was
    /// refused. The refused message itself may try again, unless another one of its key was lost
    /// meanwhile, which may precede it. The chunks behind a refused one are lost as well: a message
    /// is confirmed as a whole, so it comes again from its first chunk on.
    pub(super) fn stops(&mut self, message: &Message) -> bool {
        let Some((key, stop)) = message.key.as_ref().and_then(|key| Some((key, self.keys.get_mut(key)?)))
        else {
            return false;
        };
        match stop {
            Stop::Until(id, chunk) if *id == message.id => {
                let is_behind = index(message) > *chunk;
                if !is_behind {
                    self.keys.remove(key);
                }
                is_behind
            }
            Stop::Until(..) | Stop::ForGood => {
                *stop = Stop::ForGood;
                true
            }
        }
    }

    /// Records a refused message. Returns whether there was room.
    pub(super) fn note(&mut self, message: &Message) -> bool {
        let Some(key) = &message.key else { return true };
        let has_room = self.keys.len() < KEYS_MAX;
        if has_room {
            self.keys.insert(key.clone(), Stop::Until(message.id, index(message)));
        }
        has_room
    }

    /// Returns the error of a topic that was refused recently.
    pub(super) fn topic(&mut self, topic: &Topic) -> Option<PublishError> {
        let (at, fault, reason) = self.topics.get(topic)?;
        if at.elapsed() >= ASK_AGAIN {
            self.topics.remove(topic);
            return None;
        }
        Some(PublishError::new(*fault, FaultScope::Topic, reason.clone()))
    }

    /// Records why a topic was refused.
    pub(super) fn note_topic(&mut self, topic: &Topic, error: &PublishError) {
        if error.scope() == FaultScope::Topic {
            if self.topics.len() >= TOPICS_MAX {
                self.topics.retain(|_, (at, ..)| at.elapsed() < ASK_AGAIN);
            }
            if self.topics.len() >= TOPICS_MAX {
                return;
            }
            self.topics.insert(topic.clone(), (Instant::now(), error.fault(), error.to_string()));
        }
    }
}

/// Returns which chunk of its message this is.
fn index(message: &Message) -> Option<u32> {
    message.chunk.as_ref().map(|chunk| chunk.index())
}

#[cfg(test)]
mod tests {
    use super::*;
    use message::EventType;

    #[test]
    fn of_a_key_the_refused_message_comes_first() {
        let message = |key: Option<&str>| {
            let message = Message::new(Topic::new("t").unwrap(), EventType::new("e").unwrap(), "x");
            match key {
                Some(key) => message.with_key(OrderingKey::new(key).unwrap()),
                None => message,
            }
        };
        let (first, second, other, without) =
            (message(Some("a")), message(Some("a")), message(Some("b")), message(None));
        let mut refused = Refused::default();
        assert!(refused.note(&first) && refused.note(&without));
        assert!(!refused.stops(&other) && !refused.stops(&message(None)));
        assert!(!refused.stops(&first), "it tries again");
        assert!(!refused.stops(&second), "and the others come behind it");
        assert!(refused.note(&first) && refused.stops(&second));
        assert!(refused.stops(&first), "the other one may stand before it");
    }

    /// Returns a message, and a function that returns its chunks.
    fn in_chunks() -> (Message, impl Fn(u32) -> Message) {
        let whole = Message::new(Topic::new("t").unwrap(), EventType::new("e").unwrap(), "xyz");
        let whole = whole.with_key(OrderingKey::new("a").unwrap());
        let chunked = whole.clone();
        let chunk = move |index| {
            let chunk = message::Chunk::new(index, 3, 3, message::Fingerprint::of(&chunked)).unwrap();
            Message { chunk: Some(Box::new(chunk)), ..chunked.clone() }
        };
        (whole, chunk)
    }

    #[test]
    fn a_message_in_chunks_tries_again_from_its_first_chunk_on() {
        let (_, chunk) = in_chunks();
        let mut refused = Refused::default();
        for _ in 0..3 {
            assert!(!refused.stops(&chunk(0)), "it tries again");
            assert!(refused.note(&chunk(0)));
            assert!(refused.stops(&chunk(1)) && refused.stops(&chunk(2)), "the first chunk has not left");
        }
        assert!(!refused.stops(&chunk(0)));
        assert!(refused.note(&chunk(1)), "the topic went missing in between");
        assert!(refused.stops(&chunk(2)));
        assert!((0..3).all(|index| !refused.stops(&chunk(index))), "all of it leaves in the end");
    }

    #[test]
    fn behind_a_refused_chunk_no_other_message_of_its_key_may_leave() {
        let (whole, chunk) = in_chunks();
        let other = Message { id: MessageId::new(), ..whole };
        let mut refused = Refused::default();
        assert!(refused.note(&chunk(0)) && refused.stops(&chunk(1)));
        assert!(refused.stops(&other));
        assert!(refused.stops(&chunk(0)), "the other one may stand before it");
    }

    #[test]
    fn the_keys_that_are_remembered_are_bounded() {
        let message = |number: usize| {
            let key = OrderingKey::new(format!("k{number}")).unwrap();
            Message::new(Topic::new("t").unwrap(), EventType::new("e").unwrap(), "x").with_key(key)
        };
        let mut refused = Refused::default();
        assert!((0..KEYS_MAX).all(|number| refused.note(&message(number))));
        assert!(!refused.note(&message(KEYS_MAX)));
    }

    #[test]
    fn the_topics_that_are_remembered_are_bounded() {
        let mut refused = Refused::default();
        for number in 0..2 * TOPICS_MAX {
            let topic = Topic::new(format!("t{number}")).unwrap();
            refused
                .note_topic(&topic, &PublishError::new(Fault::Operator, FaultScope::Topic, "no such topic"));
        }
        // Their number depends on the time that this took: old ones are replaced.
        assert!((1..=TOPICS_MAX).contains(&refused.topics.len()));
    }
}
