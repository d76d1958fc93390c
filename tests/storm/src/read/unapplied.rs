//! The places of messages without an effect: by consumer, and by partition or queue. Pure.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use checker::History;
use uuid::Uuid;

/// Messages in one place that a consumer has not decided.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Unapplied {
    /// The consumer.
    pub consumer: Arc<str>,
    /// The partition or queue, or `None` for messages that never reached the broker.
    pub place: Option<Arc<str>>,
    /// Number of undecided messages.
    pub count: usize,
    /// Number of messages in that place that the consumer has decided.
    pub decided: usize,
    /// Whether no message after the first undecided one is decided, which means that the place is
    /// no longer read.
    pub shield: bool,
}

/// Returns the places, starting with the places that have the most messages.
#[must_use]
pub fn unapplied(history: &History) -> Vec<Unapplied> {
    let mut places: HashMap<Uuid, &Arc<str>> = HashMap::new();
    // The ids are in the order of the broker.
    let mut ids: Vec<Uuid> = Vec::new();
    for seen in history.topic_read.iter().flat_map(|topic_reader| &topic_reader.occurrences) {
        let Some(id) = seen.id else { continue };
        places.entry(id).or_insert_with(|| {
            ids.push(id);
            &seen.place
        });
    }
    let parked: HashSet<Uuid> = history.parked.iter().flatten().map(|parked| parked.id).collect();
    let owed = history.outbox.iter().flatten().map(|row| row.id).filter(|id| !parked.contains(id));
    let owed: HashSet<Uuid> = owed.collect();
    ids.extend(owed.iter().filter(|id| !places.contains_key(*id)));
    let mut found: BTreeMap<(Arc<str>, Option<Arc<str>>), Unapplied> = BTreeMap::new();
    for consumer in &history.consumers {
        let effects = consumer.effects.iter().flatten().map(|effect| effect.id);
        let letters = consumer.dead_letters.iter().flatten().filter_map(|letter| letter.id);
        let decided: HashSet<Uuid> = effects.chain(letters).collect();
        for id in ids.iter().filter(|id| owed.contains(*id)) {
            let (name, place) = (Arc::clone(&consumer.name), places.get(id).copied().cloned());
            let entry = found.entry((Arc::clone(&name), place.clone()));
            let unapplied = entry.or_insert_with(|| Unapplied {
                consumer: name,
                place,
                count: 0,
                decided: 0,
                shield: true,
            });
            if decided.contains(id) {
                unapplied.decided += 1;
                unapplied.shield &= unapplied.count == 0;
            } else {
                unapplied.count += 1;
            }
        }
    }
    let mut found: Vec<_> = found.into_values().filter(|unapplied| unapplied.count > 0).collect();
    found.sort_by_key(|unapplied| std::cmp::Reverse(unapplied.count));
    found
}

impl std::fmt::Display for Unapplied {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { consumer, place, count, decided, shield } = self;
        match place {
            Some(place) => {
                write!(f, "{consumer} has not applied {count} messages of {place}, and {decided} others")?;
            }
            None => write!(f, "{consumer} has not applied {count} messages that the broker never had")?,
        }
        if *shield && place.is_some() {
            f.write_str("; nothing behind the first of them was read")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use checker::{Consumer, DeadLetter, Effect, Occurrence, OutboxRow, Parked, ParkedEntry, TopicRead};

    fn id(number: u128) -> Uuid {
        Uuid::from_u128(number)
    }

    /// Returns a history with messages 1 to 6 in partition 0 and 7 to 9 in partition 1. Message 10
    /// was never published, 11 is parked.
    fn history(applied: &[u128]) -> History {
        let seen = |number| Occurrence {
            id: Some(id(number)),
            place: if number < 7 { "t[0]".into() } else { "t[1]".into() },
            ..Occurrence::default()
        };
        let effects = applied.iter().map(|number| Effect { id: id(*number), ..Effect::default() });
        let consumer = Consumer {
            name: "billing".into(),
            effects: Some(effects.collect()),
            dead_letters: Some(vec![DeadLetter { id: Some(id(9)), scope: "".into() }]),
            ..Consumer::default()
        };
        History {
            outbox: Some(
                (1..=11).map(|number| OutboxRow { id: id(number), ..OutboxRow::default() }).collect(),
            ),
            parked: Some(vec![Parked { id: id(11), state: ParkedEntry::Dead }]),
            topic_read: Some(TopicRead { occurrences: (1..10).map(seen).collect(), ..TopicRead::default() }),
            consumers: vec![consumer],
            ..History::default()
        }
    }

    #[test]
    fn a_partition_that_is_not_read_is_named_with_its_group() {
        let found = unapplied(&history(&[1, 2, 7, 8, 10]));
        assert_eq!(found.len(), 1);
        assert!(found[0].shield);
        let told = found[0].to_string();
        assert!(
            told.contains("billing") && told.contains("4 messages of t[0]") && told.contains("2 others"),
            "{told}"
        );
    }

    #[test]
    fn a_hole_is_no_unread_partition() {
        let found = unapplied(&history(&[1, 2, 4, 5, 6, 7, 8]));
        assert_eq!(
            found.iter().map(|place| place.place.as_deref()).collect::<Vec<_>>(),
            [None, Some("t[0]")]
        );
        assert!(!found[1].shield, "{}", found[1]);
        assert!(found[0].to_string().contains("never had"));
    }

    #[test]
    fn dead_letters_are_decided_and_parked_messages_are_not_owed() {
        assert_eq!(unapplied(&history(&[1, 2, 3, 4, 5, 6, 7, 8, 10])), []);
    }
}
