//! The outbox and its migrations.

mod concurrency;
mod cost;
mod keeper;
mod log;
mod migrate;
mod producer;
mod restore;
mod retention;
mod roles;
mod snapshots;
mod support;
pub(crate) mod unknown_commit;

use libtest_mimic::Trial;
pub(crate) use support::each;

pub(crate) fn trials() -> Vec<Trial> {
    [
        concurrency::trials(),
        cost::trials(),
        keeper::trials(),
        log::trials(),
        migrate::trials(),
        producer::trials(),
        restore::trials(),
        retention::trials(),
        roles::trials(),
        snapshots::trials(),
        unknown_commit::trials(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
