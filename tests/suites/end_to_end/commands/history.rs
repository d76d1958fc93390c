//! `relay retention` and `relay forget`.

use std::sync::Arc;

use tests::relay_process::Config;
use tests::workload::Workload;
use tests::{Broker, Database, Dialect, Failure, Outcome, RelayProcess, Stage};

use super::{Ran, column};

tests::cases! { "{case}/{on}":
    databases {
        a_relay_that_is_gone_is_forgotten,
        what_is_asked_wrongly_changes_nothing,
    }
    pairs { what_was_published_is_removed_when_it_is_old }
}

/// Runs a command that the audit records.
async fn signed(config: &Config, command: &[&str]) -> Result<Ran, Failure> {
    Ran::with(config, &[command, &["--actor", "ann", "--note", "a test"]].concat()).await
}

/// Returns the operations that `relay dead audit` shows, oldest first.
async fn audited(config: &Config) -> Result<Vec<String>, Failure> {
    let lines = Ran::with(config, &["dead", "audit", "--output", "json"]).await?.done()?.json()?;
    let lines = lines.as_array().ok_or("no lines")?.iter().rev();
    let shown = lines.map(|line| {
        let text = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
        format!("{} {}: {} ({})", text("actor"), text("action"), text("selection"), text("note"))
    });
    Ok(shown.collect())
}

fn unreachable(url: &str) -> String {
    format!(
        "[[pipeline]]\nname = \"orders\"\n[pipeline.database]\nurl = {url:?}\n\
         [pipeline.kafka]\nbootstrap_servers = [\"127.0.0.1:1\"]\n"
    )
}

/// Goal: history is removed when it is old and published, not before. Oracle: rows before and after
/// each call, including a dry run; what is reported about rows that stay; the audit, which has a
/// line for what was removed and none for a call that removed nothing; nothing is published again
/// afterwards.
async fn what_was_published_is_removed_when_it_is_old<DB: Dialect>(
    stage: Stage,
    broker: Arc<dyn Broker>,
) -> Outcome {
    let workload = Workload::<DB>::open(&stage, broker).await?;
    let url = workload.database.relay_url()?;
    let config = Config::write(&stage, "orders", &url, workload.broker.as_ref(), "")?;
    let rows = || workload.database.integer("SELECT count(*) FROM outbox_message");
    workload.place_many(2, 10).await?;
    let unread = signed(&config, &["retention", "--keep", "0s", "--output", "json"]).await?;
    assert!(column(&unread.json()?, "held_back_by").iter().any(|text| !text.is_empty()), "{unread:?}");
    assert_eq!(rows().await?, 10);
    Ran::with(&config, &["run", "--once"]).await?.done()?;
    signed(&config, &["retention", "--keep", "1h"]).await?.done()?;
    let dry = Ran::with(&config, &["retention", "--keep", "0s", "--dry-run"]).await?.done()?;
    assert!(dry.out.starts_with("PIPELINE") && dry.out.contains("can go"), "{dry:?}");
    assert_eq!(rows().await?, 10);
    assert_eq!(audited(&config).await?, [""; 0], "nothing was removed so far");
    Ran::with(&config, &["retention", "--keep", "0s"]).await?.refused(2, &["--note"])?;
    let done = signed(&config, &["retention", "--keep", "0s"]).await?.done()?;
    assert!(done.err.contains("orders: 1 segment emptied"), "{done:?}");
    assert_eq!(rows().await?, 0);
    let lines = audited(&config).await?;
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!(lines[0], "ann expire: messages older than 0s (a test)");
    assert!(lines[1].starts_with("ann expired: messages older than 0s: 1 segments, "), "{lines:?}");
    let by_ann = ["audit", "--actor", "ann", "--action", "expire", "--from", "1h"];
    let found = Ran::with(&config, &[&by_ann[..], &["--output", "json"]].concat()).await?.done()?.json()?;
    assert_eq!(column(&found, "selection"), ["messages older than 0s"]);
    let file = Ran::with(&config, &[&by_ann[..], &["--export", "csv"]].concat()).await?.done()?;
    assert!(file.out.starts_with("at,actor,action,source,owner,"), "{file:?}");
    assert_eq!(file.out.lines().count(), 2, "{file:?}");
    let none = Ran::with(&config, &["audit", "--actor", "bob"]).await?.done()?;
    assert!(none.out.contains("no decision matches"), "{none:?}");
    workload.place("after").await?;
    Ran::with(&config, &["run", "--once"]).await?.done()?;
    assert_eq!(workload.broker.drain(&workload.topic, 11).await?.len(), 11);
    Ok(())
}

/// Goal: a relay that will not return can be forgotten, so that it holds nothing back. A leading
/// relay cannot be forgotten. Oracle: exit codes; the relay's row; the audit.
async fn a_relay_that_is_gone_is_forgotten<DB: Dialect>(stage: Stage) -> Outcome {
    let database = Database::<DB>::migrated(&stage).await?;
    let config = Config::text(&stage, &unreachable(&database.relay_url()?))?;
    let relays = || database.integer("SELECT count(*) FROM outbox_relay");
    let relay = RelayProcess::start(&stage, &config)?;
    relay.tells("leading").await?;
    let leads = signed(&config, &["forget", "orders"]).await?;
    leads.refused(2, &["orders", "is led by"])?;
    relay.stop().await?;
    assert_eq!(relays().await?, 1);
    let done = signed(&config, &["forget", "orders"]).await?.done()?;
    assert!(done.err.contains("relay orders is forgotten"), "{done:?}");
    assert_eq!(relays().await?, 0);
    Ran::with(&config, &["forget", "orders"]).await?.refused(2, &["--note"])?;
    let lines = audited(&config).await?;
    let [refused, request, done] =
        ["forget", "forget", "forgotten"].map(|action| format!("ann {action}: relay orders (a test)"));
    assert_eq!(lines, [refused, request, done]);
    signed(&config, &["forget", "orders"]).await?.refused(2, &["orders"])
}

/// Goal: a misspelt name, an invalid duration and an unavailable database change nothing. Oracle:
/// exit code 2 or 3, and the error; the relay's row is still there.
async fn what_is_asked_wrongly_changes_nothing<DB: Dialect>(stage: Stage) -> Outcome {
    let database = Database::<DB>::migrated(&stage).await?;
    let config = Config::text(&stage, &unreachable(&database.relay_url()?))?;
    let relay = RelayProcess::start(&stage, &config)?;
    relay.tells("leading").await?;
    relay.stop().await?;
    let cases: [(&[&str], &[&str]); 6] = [
        (&["forget", "order"], &["order"]),
        (&["forget", "no such name!"], &["no such name!"]),
        (&["forget"], &["RELAY"]),
        (&["forget", "orders", "--pipeline", "nobody"], &["nobody", "orders"]),
        (&["retention", "--keep", "soon"], &["soon"]),
        (&["retention", "--pipeline", "nobody"], &["nobody", "orders"]),
    ];
    for (arguments, parts) in cases {
        signed(&config, arguments).await?.refused(2, parts)?;
    }
    for (arguments, part) in [
        (["audit", "--action", "burn"], "burn"),
        (["audit", "--from", "yesterday"], "yesterday"),
        (["audit", "--export", "xlsx"], "csv or json"),
    ] {
        Ran::with(&config, &arguments).await?.refused(2, &[part])?;
    }
    let away = Config::text(&stage, &unreachable("postgres://relay@127.0.0.1:1/orders"))?;
    signed(&away, &["forget", "orders"]).await?.refused(3, &["orders: ", "does not answer"])?;
    let both = unreachable("postgres://relay@127.0.0.1:1/orders").replace("\"orders\"", "\"away\"")
        + &unreachable(&database.relay_url()?);
    let both = Config::text(&stage, &both)?;
    let ran = signed(&both, &["retention", "--keep", "1h", "--output", "json"]).await?.ended(3)?;
    assert!(column(&ran.json()?, "pipeline").contains(&"orders"), "{ran:?}");
    assert!(ran.err.contains("away: "), "{ran:?}");
    let ran = Ran::with(&both, &["audit", "--output", "json"]).await?.ended(3)?;
    assert!(ran.json()?.is_array() && ran.err.contains("away: "), "{ran:?}");
    let ran = Ran::with(&both, &["audit", "--export", "csv"]).await?.ended(3)?;
    assert!(ran.out.starts_with("at,actor,") && ran.out.contains(",,missing,"), "{ran:?}");
    assert_eq!(database.integer("SELECT count(*) FROM outbox_relay").await?, 1);
    Ok(())
}
