//! The suites of both database seams on PostgreSQL 18.

use libtest_mimic::Trial;
use tests::trial::at_night;
use tests::{Cluster, Outcome, Stage, cluster, trial};

pub(crate) fn trials() -> Vec<Trial> {
    let of = |part: &'static str| {
        let name = format!("release/postgres_18/{}", part.trim_end_matches('/'));
        trial(name, &cluster::NEEDS, move |stage| on_18(stage, part))
    };
    at_night(["outbox/", "inbox/", "keys/", "saga/"].map(of).into())
}

/// Goal: PostgreSQL 18 behaves as the toolkit requires. Oracle: the cases of this suite, run on
/// such a server.
async fn on_18(stage: Stage, part: &str) -> Outcome {
    let cluster = Cluster::start(&stage, &[(cluster::MAJOR, "18")]).await?;
    cluster.passes(part).await
}
