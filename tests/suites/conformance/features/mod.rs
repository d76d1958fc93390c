//! Combinations of features: each works alone, so every pair of them is tested together, all the
//! way from producer to effect.

mod scene;
mod transactions;

use libtest_mimic::Trial;
use sqlx::{Postgres, Sqlite};
use tests::trial::at_night;
use tests::{Backend, Outcome, Stage, pairs, trial};

/// A feature and its levels. The first level is the default, or means that the feature is off.
type Factor = (&'static str, &'static [&'static str]);

const FACTORS: [Factor; 22] = [
    ("producer", &["a transaction", "under a held key", "under a leased key", "into an adopted table"]),
    ("publishing", &["by confirmations", "in transactions"]),
    ("window of a key", &["one", "pipelined"]),
    ("relays", &["one", "with a standby", "divided by filters"]),
    ("after a dead message", &["hold", "pass"]),
    ("large messages", &["none", "in chunks"]),
    ("pause", &["none", "a topic", "a key"]),
    ("message that the broker refuses", &["none", "requeued", "discarded"]),
    ("scheduled messages", &["none", "some"]),
    ("crash of a relay", &["none", "one"]),
    ("batches", &["none", "of four"]),
    ("consumers", &["one", "two"]),
    ("after a dead letter", &["the key goes on", "the key is held"]),
    ("unknown kinds", &["refused", "skipped"]),
    ("message that its handler cannot do", &["none", "redriven", "discarded"]),
    ("tenants", &["none", "two"]),
    ("copies", &["none", "all again"]),
    ("sagas", &["none", "one an effect", "decided by operators"]),
    ("replay by command", &["none", "of all"]),
    ("crash of a consumer", &["none", "one"]),
    ("retention", &["none", "of all that has left"]),
    ("log", &["of this server", "of another server"]),
];

fn levels() -> Vec<usize> {
    FACTORS.iter().map(|(_, levels)| levels.len()).collect()
}

tests::cases! { "features/{case}":
    anywhere { every_two_levels_meet }
    also { rows(Backend::Sqlite, scene::plays::<Sqlite>), at_night(rows(Backend::Postgres, scene::plays::<Postgres>)) }
}

async fn every_two_levels_meet() {
    let (rows, mut missing) = (pairs::rows(&levels()), pairs::pairs(&levels()));
    let count = missing.len();
    for pair in rows.iter().flat_map(|row| pairs::met(row)) {
        missing.remove(&pair);
    }
    assert!(missing.is_empty(), "{missing:?}");
    println!("{count} pairs meet in {} rows", rows.len());
}

/// Returns a trial for each row of levels.
fn rows<F>(on: Backend, plays: fn(Stage, Vec<usize>) -> F) -> Vec<Trial>
where
    F: Future<Output = Outcome> + 'static,
{
    let trial =
        |(number, row)| trial(format!("features/{on}/{number:02}"), &[on], move |stage| plays(stage, row));
    pairs::rows(&levels()).into_iter().enumerate().map(trial).collect()
}
