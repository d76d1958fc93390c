//! Buffer of prefetched deliveries, bounded by count and bytes. Pure.

use std::collections::VecDeque;
use std::num::NonZeroUsize;

use message::{Delivery, DeliveryToken};

use super::reading::Room;

/// Maximum bytes in memory, exceeded by one message at most.
const BYTES_MAX: usize = 64 * 1024 * 1024;

/// The bytes in memory of a header or property that is kept as two texts, besides those of the
/// texts: two strings, and the allocator's share of both.
const ENTRY_BYTES: usize = 80;

/// Deliveries in the order of their arrival.
#[derive(Debug)]
pub(super) struct Ahead {
    deliveries: VecDeque<Delivery>,
    bytes: usize,
    len_max: usize,
    len_peak: usize,
}

impl Ahead {
    /// Creates a buffer for `len_max` deliveries.
    pub(super) fn new(len_max: usize) -> Self {
        Self { deliveries: VecDeque::new(), bytes: 0, len_max, len_peak: 0 }
    }

    /// Adds a delivery.
    pub(super) fn push(&mut self, delivery: Delivery) {
        self.bytes += bytes(&delivery);
        self.deliveries.push_back(delivery);
        self.len_peak = self.len_peak.max(self.deliveries.len());
    }

    /// Takes out up to `max` deliveries.
    pub(super) fn take(&mut self, max: NonZeroUsize) -> Vec<Delivery> {
        let count = max.get().min(self.deliveries.len());
        let taken: Vec<Delivery> = self.deliveries.drain(..count).collect();
        self.bytes -= taken.iter().map(bytes).sum::<usize>();
        taken
    }

    /// Keeps only the deliveries that `keep` accepts.
    pub(super) fn retain(&mut self, keep: impl Fn(DeliveryToken) -> bool) {
        self.deliveries.retain(|delivery| keep(delivery.token));
        self.bytes = self.deliveries.iter().map(bytes).sum();
    }

    /// Returns how much room is left.
    pub(super) fn room(&self) -> Room {
        if self.deliveries.len() >= self.len_max || self.bytes >= BYTES_MAX {
            Room::None
        } else if self.deliveries.len() <= self.len_max / 2 && self.bytes <= BYTES_MAX / 2 {
            Room::Plenty
        } else {
            Room::Some
        }
    }

    /// Returns the number of deliveries.
    pub(super) fn len(&self) -> usize {
        self.deliveries.len()
    }

    /// Returns the highest number of deliveries so far.
    pub(super) fn len_peak(&self) -> usize {
        self.len_peak
    }
}

/// Returns the memory that a delivery takes. Headers count: similar ones compress to almost nothing
/// on the wire.
fn bytes(delivery: &Delivery) -> usize {
    match &delivery.message {
        Ok(message) => message.wire_bytes(),
        Err(malformed) => {
            // A key or header that is not text is kept in hexadecimal among the properties.
            let kept = [&malformed.headers, &malformed.properties, &malformed.broker_notes];
            let kept = kept.into_iter().flatten().map(|(name, value)| ENTRY_BYTES + name.len() + value.len());
            let key = malformed.key.as_ref().map_or(0, |key| key.len());
            malformed.payload.len() + key + kept.sum::<usize>()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivery(token: u64, bytes: usize) -> Delivery {
        let malformed =
            message::Malformed { payload: vec![0; bytes].into(), ..message::Malformed::default() };
        let token = DeliveryToken(token);
        Delivery { token, message: Err(malformed), redelivered: false, origin: String::new() }
    }

    #[test]
    fn short_headers_take_more_room_than_their_texts() {
        let mut ahead = Ahead::new(1_000);
        let mut short = delivery(0, 0);
        if let Err(malformed) = &mut short.message {
            malformed.headers = vec![(String::from("h"), String::new()); message::WIRE_HEADERS_MAX];
        }
        ahead.push(short);
        assert!(ahead.bytes > 50 * message::WIRE_HEADERS_MAX, "{}", ahead.bytes);
    }

    #[test]
    fn headers_and_keys_take_room_as_payloads_do() {
        let long = "x".repeat(BYTES_MAX);
        let mut message = message::Message::new(
            message::Topic::new("orders").unwrap(),
            message::EventType::new("order.placed").unwrap(),
            // Just below the limit: the headers add the rest.
            vec![0; BYTES_MAX - 8_000],
        );
        message.headers.insert("h".to_owned(), "x".repeat(8_000)).unwrap();
        let mut with_headers = delivery(0, 0);
        with_headers.message = Ok(message);
        let mut malformed = [delivery(1, 0), delivery(2, 0)];
        if let [Delivery { message: Err(first), .. }, Delivery { message: Err(second), .. }] = &mut malformed
        {
            first.headers.push((String::from("h"), long.clone()));
            second.key = Some(long);
        }
        for delivery in malformed.into_iter().chain([with_headers]) {
            let mut ahead = Ahead::new(4);
            ahead.push(delivery);
            assert_eq!(ahead.room(), Room::None);
            ahead.take(NonZeroUsize::MIN);
            assert_eq!(ahead.bytes, 0);
        }
    }

    #[test]
    fn room_is_counted_in_messages_and_in_bytes() {
        let mut ahead = Ahead::new(4);
        for (expected, token) in [(Room::Plenty, 0), (Room::Plenty, 1), (Room::Plenty, 2), (Room::Some, 3)] {
            assert_eq!(ahead.room(), expected, "before {token}");
            ahead.push(delivery(token, 10));
        }
        assert_eq!((ahead.room(), ahead.len(), ahead.len_peak()), (Room::None, 4, 4));
        assert_eq!(ahead.take(NonZeroUsize::new(3).unwrap()).len(), 3);
        assert_eq!(ahead.room(), Room::Plenty);
        ahead.push(delivery(4, BYTES_MAX));
        assert_eq!(ahead.room(), Room::None);
        ahead.retain(|token| token.0 != 4);
        assert_eq!((ahead.room(), ahead.len(), ahead.bytes), (Room::Plenty, 1, 10));
        ahead.take(NonZeroUsize::MAX);
        assert_eq!((ahead.len(), ahead.bytes, ahead.len_peak()), (0, 0, 4));
    }
}
