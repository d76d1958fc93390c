//! The outbox and its migrations.

mod busy_key;
mod checkpoint_store;
pub(crate) mod clusters;
mod collations;
mod concurrency;
mod cost;
mod decisions;
mod desks;
mod drift;
mod erasure;
mod grants;
mod hardened;
mod histories;
mod hosts;
mod in_service;
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

pub(crate) use support::each;

tests::cases! {
    modules {
        busy_key, checkpoint_store, collations, concurrency, cost, decisions, desks, drift, erasure,
        grants, hardened, histories, hosts, in_service, log, metrics, migrate, nodes, pauses,
        pictures, plans, producer, reconciling, replays, restore, retention, retention_clocks,
        roles, row_security, rows, searches, servers, shared_ids, sizes, snapshots, tails,
        transaction_ids, unknown_commit, waits, wire,
        withheld,
    }
    // They start and crash their own servers.
    night modules { clusters }
}
