//! The suites of both database seams on PostgreSQL 18.

use tests::{Cluster, Outcome, Stage, cluster};

tests::cases! { "release/postgres_18/{case}":
    night anywhere + postgres xtask {
        outbox = |stage: Stage| on_18(stage, "outbox/"),
        inbox = |stage: Stage| on_18(stage, "inbox/"),
        keys = |stage: Stage| on_18(stage, "keys/"),
        saga = |stage: Stage| on_18(stage, "saga/"),
    }
}

/// Goal: PostgreSQL 18 behaves as the toolkit requires. Oracle: the cases of this suite, run on
/// such a server.
async fn on_18(stage: Stage, part: &str) -> Outcome {
    let cluster = Cluster::start(&stage, &[(cluster::MAJOR, "18")]).await?;
    cluster.passes(part).await
}
