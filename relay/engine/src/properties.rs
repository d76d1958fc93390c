//! Properties of the pure parts that hold for any input: window, queues by key, blocks,
//! the lease's times.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use message::{EventType, MaxInFlightPerKey, Message, OrderingKey, Ticket, Topic};
use outbox_log::{Cursor, Difference, EntryId, Mark};
use proptest::prelude::*;

use super::key_queues::KeyQueues;
use super::options::EngineOptions;
use super::window::{Item, Origin, Window};

fn key(number: u8) -> OrderingKey {
    OrderingKey::new(format!("k{number}")).unwrap()
}

fn item(id: i64, difference: &Arc<Difference>) -> Item {
    let message = Message::new(Topic::new("t").unwrap(), EventType::new("e").unwrap(), "payload");
    Item {
        id: EntryId(id),
        bytes: message.wire_bytes(),
        message: message.into(),
        origin: Origin::Log(Arc::clone(difference)),
        attempts: 0,
        in_flight: None,
        waits: false,
    }
}

/// Fills a window with one difference for each of these sizes, which are numbers of entries. Entry
/// `n` of each difference has the id `n + 1`.
fn filled(sizes: &[usize]) -> (Window, Vec<Arc<Difference>>, Vec<(usize, Ticket)>) {
    let mut window = Window::new(Cursor::at(Mark::new("0")), usize::MAX, usize::MAX, usize::MAX);
    let (mut differences, mut tickets) = (Vec::new(), Vec::new());
    for (number, size) in sizes.iter().enumerate() {
        let mark = |number: usize| Mark::new(number.to_string());
        let ceiling = i64::try_from(*size).unwrap();
        let difference = Arc::new(Difference { base: mark(number), head: mark(number + 1), ceiling });
        tickets.extend((1..=ceiling).map(|id| (number, window.push(item(id, &difference)))));
        window.end(&difference);
        differences.push(difference);
    }
    (window, differences, tickets)
}

/// Returns where the cursor must stand while these entries are unsettled.
fn expected(sizes: &[usize], differences: &[Arc<Difference>], unsettled: &BTreeSet<usize>) -> Cursor {
    let mut before = unsettled.first().copied().unwrap_or(usize::MAX);
    for (size, difference) in sizes.iter().zip(differences) {
        match before {
            0 if *size > 0 => return Cursor::at(difference.base.clone()),
            within if within < *size => {
                return Cursor::inside(difference, EntryId(i64::try_from(within).unwrap()));
            }
            _ => before -= size,
        }
    }
    Cursor::at(Mark::new(differences.len().to_string()))
}

proptest! {
    #[test]
    fn the_cursor_stands_before_the_oldest_unsettled_entry(
        sizes in prop::collection::vec(0_usize..6, 1..6),
        order in any::<prop::sample::Index>(),
        seeds in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
    ) {
        let (mut window, differences, mut tickets) = filled(&sizes);
        let places: BTreeMap<Ticket, usize> =
            tickets.iter().enumerate().map(|(place, (_, ticket))| (*ticket, place)).collect();
        let mut unsettled: BTreeSet<usize> = places.values().copied().collect();
        if !tickets.is_empty() {
            let middle = order.index(tickets.len());
            tickets.rotate_left(middle);
        }
        for seed in seeds {
            prop_assert_eq!(window.cursor(), &expected(&sizes, &differences, &unsettled));
            prop_assert_eq!(window.open_len(), unsettled.len());
            if tickets.is_empty() {
                break;
            }
            let (_, ticket) = tickets.swap_remove(seed.index(tickets.len()));
            prop_assert!(window.settle(ticket, false).is_some());
            prop_assert!(window.settle(ticket, false).is_none());
            unsettled.remove(&places[&ticket]);
        }
        prop_assert_eq!(window.cursor(), &expected(&sizes, &differences, &unsettled));
    }

    #[test]
    fn of_a_key_one_message_is_out_and_all_come_in_order(
        keys in prop::collection::vec(prop::option::of(0_u8..4), 1..40),
        seeds in prop::collection::vec(any::<prop::sample::Index>(), 80),
    ) {
        let mut key_queues = KeyQueues::new(MaxInFlightPerKey::One);
        let mut coming: VecDeque<_> = keys.iter().copied().enumerate().collect();
        let mut out: Vec<(usize, Option<u8>)> = Vec::new();
        let mut last: BTreeMap<u8, usize> = BTreeMap::new();
        let mut left = keys.len();
        for seed in seeds.into_iter().cycle().take(400) {
            match seed.index(3) {
                0 => if let Some((number, of)) = coming.pop_front() {
                    key_queues.push(Ticket(number as u64), of.map(key).as_ref());
                },
                1 => if let Some(Ticket(number)) = key_queues.pop() {
                    let number = usize::try_from(number).unwrap();
                    if let Some(of) = keys[number] {
                        prop_assert!(out.iter().all(|(_, other)| *other != Some(of)), "two of key {of} are out");
                        prop_assert!(last.insert(of, number).is_none_or(|before| before < number));
                    }
                    out.push((number, keys[number]));
                    left -= 1;
                },
                _ => if !out.is_empty() {
                    let (_, of) = out.swap_remove(seed.index(out.len()));
                    key_queues.settled(of.map(key).as_ref());
                },
            }
        }
        // Nothing is lost: everything left is handed out once the rest is settled.
        while let Some((number, of)) = coming.pop_front() {
            key_queues.push(Ticket(number as u64), of.map(key).as_ref());
        }
        loop {
            while let Some(Ticket(number)) = key_queues.pop() {
                out.push((usize::try_from(number).unwrap(), keys[usize::try_from(number).unwrap()]));
                left -= 1;
            }
            let Some((_, of)) = out.pop() else { break };
            key_queues.settled(of.map(key).as_ref());
        }
        prop_assert_eq!(left, 0);
    }

    /// Two renewals can fail before the relay stops, and it stops before the database gives the
    /// lease to another.
    #[test]
    fn a_lease_is_renewed_in_time_and_trusted_less_than_it_lasts(ttl in 100_u64..10_000_000) {
        let settings = EngineOptions { lease_ttl: Duration::from_millis(ttl), ..EngineOptions::default() };
        prop_assert!(settings.lease_trust() < settings.lease_ttl);
        prop_assert!(settings.renew_interval() * 2 < settings.lease_trust());
    }
}
