//! The shape of an operation, at random. Pure.

use std::time::Duration;

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, IteratorRandom};
use uuid::Uuid;

use harness::payload::Hint;

/// The way in which messages are enqueued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// One by one, each right after its business row.
    Single,
    /// All at once.
    Batch,
    /// Staged until the commit.
    Staged,
}

/// The part of the producer's interface that an operation uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Path {
    /// `Outbox::transaction`, which runs to its end and retries.
    Run,
    /// `Outbox::begin` and `commit`.
    Guarded,
    /// The caller's own `sqlx::Transaction`.
    Raw,
}

/// The intended end of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// A commit.
    Commit,
    /// A rollback of everything.
    RollBack,
    /// The caller cancels after this many milliseconds.
    Vanish(u64),
}

/// A business row and its message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) row: Uuid,
    /// The account that is locked and counted, and the message's key.
    pub(super) account: String,
    pub(super) topic: Topic,
    /// Whether the id is derived from the row's name. Such a message is enqueued twice.
    pub(super) derived: bool,
    /// Delay in milliseconds until the message may be published.
    pub(super) delay: Option<u64>,
    pub(super) hint: Option<Hint>,
    pub(super) pad: usize,
    /// Whether the item is rolled back to a savepoint.
    pub(super) undone: bool,
}

/// The destination of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Topic {
    /// The topic that consumers read.
    Main,
    /// A topic that does not exist.
    Nowhere,
}

/// One operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) operation: Uuid,
    pub(super) path: Path,
    pub(super) mode: Mode,
    pub(super) ending: Ending,
    /// Whether the isolation level is SERIALIZABLE, on databases that have isolation levels.
    pub(super) serializable: bool,
    /// The items in the order in which their accounts are locked.
    pub(super) items: Vec<Item>,
}

/// Maximum delay of a scheduled message.
pub(crate) const DELAY_MAX: Duration = Duration::from_secs(3);
/// The padding of a message that is larger than a producer may send, in bytes.
pub(super) const OVERSIZE: usize = 150_000;
/// The maximum size of a message that a producer may send, in bytes.
pub(super) const PRODUCER_BYTES_MAX: usize = 100_000;
/// The padding of a message that is larger than the relay accepts even in chunks, in bytes. The
/// relay parks it as dead.
pub(super) const POISONOUS: usize = 80_000;
/// The padding of a message that is larger than the relay sends in one piece, in bytes: two to four
/// chunks.
pub(super) const LARGE: std::ops::Range<usize> = 21_000..50_000;
/// Number of keys for messages that the relay cannot publish. Other messages use different keys,
/// because they would wait behind these.
const POISON_KEYS: u32 = 4;

impl Shape {
    /// Returns a random operation over this number of accounts.
    pub(super) fn random(rng: &mut StdRng, accounts: u32) -> Self {
        let ending = match rng.random_range(0..100) {
            0..88 => Ending::Commit,
            88..93 => Ending::RollBack,
            _ => Ending::Vanish(rng.random_range(0..25)),
        };
        let path = *[Path::Run, Path::Run, Path::Guarded, Path::Raw].choose(rng).unwrap_or(&Path::Run);
        // The caller's own transaction has no staging area.
        let modes: &[Mode] = if path == Path::Raw {
            &[Mode::Single, Mode::Batch]
        } else {
            &[Mode::Single, Mode::Batch, Mode::Staged]
        };
        let mode = *modes.choose(rng).unwrap_or(&Mode::Single);
        let count = rng.random_range(1..=3);
        let mut chosen = (0..accounts).choose_multiple(rng, count);
        // Almost all operations lock in one order. The remaining ones cause deadlocks.
        if !rng.random_bool(0.05) {
            chosen.sort_unstable();
        }
        let mut items: Vec<Item> =
            chosen.into_iter().map(|account| Item::random(rng, format!("account-{account}"))).collect();
        // Staged messages are written after every savepoint.
        if items.len() > 1 && mode == Mode::Single && rng.random_bool(0.15) {
            let last = items.len() - 1;
            items[last].undone = true;
        }
        if rng.random_bool(0.02) {
            items.truncate(1);
            items[0].poison(rng);
        }
        Self { operation: Uuid::new_v4(), path, mode, ending, serializable: rng.random_bool(0.1), items }
    }

    /// Returns whether a client that distrusts the first answer may repeat the operation. This
    /// needs all ids to be derived.
    pub(super) fn is_repeatable(&self) -> bool {
        self.ending == Ending::Commit && self.items.iter().all(|item| item.derived && !item.undone)
    }
}

impl Item {
    fn random(rng: &mut StdRng, account: String) -> Self {
        let hint = match rng.random_range(0..1_000) {
            0..10 => Some(Hint::FailOnce),
            10..14 => Some(Hint::FailAlways),
            14..18 => Some(Hint::Reject),
            18..20 => Some(Hint::Hang),
            _ => None,
        };
        Self {
            row: Uuid::new_v4(),
            account,
            topic: Topic::Main,
            derived: rng.random_bool(0.1),
            delay: rng.random_bool(0.03).then(|| rng.random_range(100..DELAY_MAX.as_millis() as u64)),
            hint,
            pad: if rng.random_bool(0.02) { rng.random_range(LARGE) } else { rng.random_range(0..400) },
            undone: false,
        }
    }

    fn poison(&mut self, rng: &mut StdRng) {
        self.delay = None;
        let key = rng.random_range(0..POISON_KEYS);
        match rng.random_range(0..3) {
            0 => self.pad = OVERSIZE,
            1 => {
                self.account = format!("poison-{key}");
                // Only some messages are too large; the others wait behind a dead message.
                self.pad = if rng.random_bool(0.5) { POISONOUS } else { 10 };
            }
            _ => {
                self.account = format!("nowhere-{key}");
                self.topic = Topic::Nowhere;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn every_kind_of_operation_comes_up() {
        let mut rng = StdRng::seed_from_u64(1);
        let shapes: Vec<Shape> = (0..5_000).map(|_| Shape::random(&mut rng, 40)).collect();
        let any = |what: &str, found: &dyn Fn(&Shape) -> bool| assert!(shapes.iter().any(found), "{what}");
        any("rolled back", &|shape| shape.ending == Ending::RollBack);
        any("vanishing", &|shape| matches!(shape.ending, Ending::Vanish(_)));
        any("undone", &|shape| shape.items.iter().any(|item| item.undone));
        any("repeatable", &Shape::is_repeatable);
        any("oversize", &|shape| shape.items[0].pad == OVERSIZE);
        any("large", &|shape| shape.items.iter().any(|item| LARGE.contains(&item.pad)));
        any("poisonous", &|shape| shape.items[0].pad == POISONOUS);
        any("nowhere", &|shape| shape.items[0].topic == Topic::Nowhere);
        any("serializable", &|shape| shape.serializable);
        assert!(shapes.iter().all(|shape| (1..=3).contains(&shape.items.len())));
        assert!(shapes.iter().all(|shape| shape.path != Path::Raw || shape.mode != Mode::Staged));
    }
}
