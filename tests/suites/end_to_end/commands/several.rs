//! Several pipelines in one process.

use std::sync::Arc;

use tests::relay_process::Config;
use tests::workload::Workload;
use tests::{Broker, Database, Dialect, Outcome, RelayProcess, Stage};

use super::{Ran, column};

tests::cases! { "{case}/{on}":
    pairs { pipelines_of_one_process_do_not_wait_for_each_other }
}

/// Goal: pipelines of one process share only the process. If the broker of one pipeline and the
/// database of another are unreachable, the other pipelines continue, and each has its own cursor.
/// Oracle: the effects of a third and a fourth pipeline, which read one database under two names;
/// the status of each; the orderly stop.
async fn pipelines_of_one_process_do_not_wait_for_each_other<DB: Dialect>(
    stage: Stage,
    broker: Arc<dyn Broker>,
) -> Outcome {
    let workload = Workload::<DB>::open(&stage, broker).await?;
    let other = Database::<DB>::migrated(&stage).await?;
    let section = workload.broker.relay_section().ok_or("no section")?;
    let pipeline = |name: &str, url: &str, section: &str| {
        // All pipelines have the same source, so that the consumer recognizes a message that came
        // through two pipelines.
        format!(
            "[[pipeline]]\nname = {name:?}\nsource = \"/shop\"\n[pipeline.database]\nurl = {url:?}\n{section}\n"
        )
    };
    let nobody = "[pipeline.kafka]\nbootstrap_servers = [\"127.0.0.1:1\"]\n";
    let (url, other) = (workload.database.relay_url()?, other.relay_url()?);
    let text = [
        pipeline("no-broker", &other, nobody),
        pipeline("no-database", "postgres://relay@127.0.0.1:1/orders", &section),
        pipeline("orders", &url, &section),
        pipeline("audit", &url, &section),
    ];
    let config = Config::text(&stage, &text.concat())?;
    let relay = RelayProcess::start(&stage, &config)?;
    let consumer = workload.consume().await?;
    workload.place_many(3, 30).await?;
    workload.settled().await?;
    tests::eventually("both cursors have passed everything", || async {
        let status = Ran::with(&config, &["status", "--output", "json"]).await?.ended(3)?.json()?;
        assert_eq!(column(&status, "pipeline"), ["no-broker", "no-database", "orders", "audit"]);
        let states = column(&status, "state");
        let is_done =
            |index: usize| states[index] == "leading" && status[index]["oldest_pending_id"].is_null();
        Ok((states[1] == "unknown" && [0, 2, 3].into_iter().all(is_done)).then_some(()))
    })
    .await?;
    let all = Ran::with(&config, &["dead", "list", "--output", "json"]).await?.ended(3)?;
    assert!(all.err.contains("no-database") && all.json()?.is_array(), "what is away hides nothing");
    Ran::with(&config, &["dead", "list", "--pipeline", "orders"]).await?.done()?;
    consumer.stop().await?;
    relay.stop().await
}
