//! The outbox and its migrations.

mod checkpoint_store;
pub(crate) mod clusters;
mod collations;
mod concurrency;
mod cost;
mod decisions;
mod desks;
mod drift;
mod grants;
mod hardened;
mod histories;
mod log;
mod metrics;
mod migrate;
mod nodes;
mod pauses;
mod pictures;
mod plans;
mod producer;
mod reconciling;
mod replays;
mod restore;
mod retention;
mod retention_clocks;
mod roles;
mod row_security;
mod rows;
mod searches;
mod servers;
mod shared_ids;
mod sizes;
mod snapshots;
pub(crate) mod support;
mod tails;
mod transaction_ids;
pub(crate) mod unknown_commit;
mod waits;
mod wire;
mod withheld;

use libtest_mimic::Trial;
pub(crate) use support::{each, each as on};

pub(crate) fn trials() -> Vec<Trial> {
    [
        // They start and crash their own servers.
        tests::trial::at_night(clusters::trials()),
        collations::trials(),
        concurrency::trials(),
        cost::trials(),
        decisions::trials(),
        desks::trials(),
        drift::trials(),
        grants::trials(),
        hardened::trials(),
        histories::trials(),
        checkpoint_store::trials(),
        log::trials(),
        metrics::trials(),
        migrate::trials(),
        nodes::trials(),
        pauses::trials(),
        pictures::trials(),
        plans::trials(),
        producer::trials(),
        reconciling::trials(),
        replays::trials(),
        restore::trials(),
        retention::trials(),
        retention_clocks::trials(),
        roles::trials(),
        row_security::trials(),
        rows::trials(),
        searches::trials(),
        servers::trials(),
        shared_ids::trials(),
        sizes::trials(),
        snapshots::trials(),
        tails::trials(),
        transaction_ids::trials(),
        unknown_commit::trials(),
        waits::trials(),
        wire::trials(),
        withheld::trials(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
