//! The commands on a terminal.

use std::collections::BTreeSet;
use std::sync::Arc;

use outbox::NewMessage;
use sqlx::Postgres;
use tests::relay_process::Config;
use tests::terminal::relay_on_terminal;
use tests::workload::Workload;
use tests::{Backend, Broker, Dialect, Failure, Outcome, RelayProcess, Stage, brokers};

use super::Ran;

tests::cases! { "{case}/{on}":
    pairs { tables_fit_the_terminal }
    postgres kafka_mock { a_tail_outlives_outages_of_its_database }
}

/// Returns the words of a text that do not change from run to run.
fn words(text: &str) -> BTreeSet<&str> {
    let is_word = |word: &&str| word.len() > 2 && word.chars().all(|c| c.is_ascii_alphabetic());
    text.split_whitespace().filter(is_word).collect()
}

/// Goal: an operator can read every table on a terminal of any width. Oracle: on 80 and 120 columns
/// no line is wider, except for commands and single words, and no word is broken; a terminal that
/// does not report its width gets the same lines as a pipe.
async fn tables_fit_the_terminal<DB: Dialect>(stage: Stage, broker: Arc<dyn Broker>) -> Outcome {
    let workload = Workload::<DB>::open(&stage, broker).await?;
    let bytes = workload.broker.oversize_bytes().ok_or("every message fits")?;
    let mut tx = workload.begin().await?;
    let message = NewMessage::new(&workload.topic).key("b").payload("x".repeat(bytes));
    workload.outbox().enqueue(&mut tx, message).await?;
    tx.commit().await?;
    workload.place("b").await?;
    let config =
        Config::write(&stage, "orders", &workload.database.relay_url()?, workload.broker.as_ref(), "")?;
    Ran::with(&config, &["run", "--once"]).await?.ended(3)?;
    let path = config.path().to_str().ok_or("a path that is no text")?;
    for command in [
        &["status"][..],
        &["dead", "list"],
        &["dead", "list", "--state", "dead", "--state", "held"],
        &["dead", "show", "--id", "1"],
        &["dead", "audit"],
        &["show", "1"],
        &["retention", "--dry-run"],
        &["config", "show"],
        &["doctor"],
    ] {
        let arguments = [command, &["--config", path]].concat();
        let piped = Ran::of(&arguments).await?.out;
        for columns in [80, 120] {
            let shown = relay_on_terminal(columns, &arguments).await?;
            assert!(!shown.trim().is_empty(), "{command:?} on {columns} columns shows nothing");
            for line in shown.lines().filter(|line| line.chars().count() > usize::from(columns)) {
                let is_whole = line.starts_with("  relay ") || line.split_whitespace().count() <= 2;
                assert!(is_whole, "{command:?} on {columns} columns: {line:?} is too wide in {shown}");
            }
            let known = format!("{piped} not shown columns --output json has");
            let broken: Vec<&str> = words(&shown).difference(&words(&known)).copied().collect();
            assert!(broken.is_empty(), "{command:?} on {columns} columns breaks {broken:?}: {shown}");
        }
        let unknown = relay_on_terminal(0, &arguments).await?;
        assert_eq!(unknown.lines().count(), piped.lines().count(), "{command:?}: {unknown}");
    }
    Ok(())
}

/// Goal: a tail waits while its database does not answer, at its start and later, and misses
/// nothing. Oracle: the lines of a tail behind a network that breaks twice, about messages that a
/// relay beside it publishes.
async fn a_tail_outlives_outages_of_its_database(stage: Stage) -> Outcome {
    let workload =
        Workload::<Postgres>::open(&stage, brokers::open(&stage, Backend::KafkaMock).await?).await?;
    let url = workload.database.relay_url()?;
    let server = url.rsplit_once('@').and_then(|(_, place)| place.split('/').next());
    let server = server.ok_or("a URL without a server")?;
    let way = proxy::Proxy::start(0, server).await?;
    let behind = url.replace(server, &way.address().to_string());
    let config = |url: &str| Config::write(&stage, "orders", url, workload.broker.as_ref(), "");
    let relay = RelayProcess::start(&stage, &config(&url)?)?;
    way.down();
    let mut tail = RelayProcess::start_command(
        &stage,
        &config(&behind)?,
        &["tail", "--limit", "2", "--output", "json"],
    )?;
    tail.tells("; waiting until it does").await?;
    way.heal();
    tail.tells("messages that the relay publishes or parks from now on").await?;
    workload.place("first").await?;
    tail.tells("\"key\":\"first\"").await?;
    way.down();
    waits_again(&tail).await?;
    workload.place("second").await?;
    way.heal();
    assert_eq!(tail.ended().await?.code(), Some(0));
    let told = tail.log()?;
    assert_eq!(told.matches("the database answers again").count(), 2, "{told}");
    assert_eq!(told.matches("\"key\":\"first\"").count(), 1, "{told}");
    assert_eq!(told.matches("\"key\":\"second\"").count(), 1, "{told}");
    relay.stop().await
}

/// Waits until the tail has reported its second outage.
async fn waits_again(tail: &RelayProcess) -> Result<(), Failure> {
    tests::eventually("the second outage", || async {
        Ok((tail.log()?.matches("; waiting until it does").count() == 2).then_some(()))
    })
    .await
}
