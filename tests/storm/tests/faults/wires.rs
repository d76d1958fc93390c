//! The wire to a database, as one of its clients sees it.

use harness::faults::tcp::{Kind, Tcp};
use libtest_mimic::Trial;
use proxy::Proxy;
use sqlx::{Connection as _, PgConnection, Postgres};
use storm::stage::{Peer, Role, Wire};
use tests::{Backend, Database, Failure, Outcome, Stage, trial};

use crate::scene::{empty, heal, inject, until};

pub(crate) fn trials() -> Vec<Trial> {
    [Kind::Cut, Kind::CutInFrame, Kind::AnswersLost, Kind::HalfOpen, Kind::Down]
        .into_iter()
        .map(|kind| {
            let name = format!("wires/{kind:?}_breaks_a_session_and_no_more");
            trial(name, &[Backend::Postgres], move |test| a_session_breaks(test, kind))
        })
        .collect()
}

/// Checks that a producer's session ends with an I/O error, and that another session works after
/// healing.
async fn a_session_breaks(test: Stage, kind: Kind) -> Outcome {
    let database = Database::<Postgres>::empty(&test).await?;
    database.execute("CREATE TABLE done (n int)").await?;
    let (server, name) = parts(&database.url)?;
    let wire = Proxy::start(0, server.as_str()).await?;
    let through = database.url.replace(&server, &wire.address().to_string());
    let mut stage = empty(&test);
    stage.wires.proxies.insert(Wire { role: Role::Producer, peer: Peer::Database }, wire);
    let mut session = PgConnection::connect(&through).await?;
    let mut fault = Tcp::new(kind);
    heal(&mut fault, &stage).await?;
    let injected = inject(&mut fault, &stage, 3).await?;
    assert_eq!(injected.target, "producers–database");
    let work = tokio::spawn(async move {
        loop {
            // A simple query, because a prepared statement would wait for the first answer before
            // it is executed.
            if let Err(error) = sqlx::raw_sql("INSERT INTO done VALUES (1)").execute(&mut session).await {
                return error;
            }
        }
    });
    if kind == Kind::AnswersLost {
        // The row becomes visible before the server's answer reaches the proxy. Healing in between
        // would let the answer pass.
        until("an answer is lost", async || {
            Ok(stage.wires.proxies.values().any(|wire| wire.counts().lost_bytes > 0).then_some(()))
        })
        .await?;
        // The insert was done, but its client does not know.
        assert!(database.integer("SELECT count(*) FROM done").await? > 0);
        assert!(!work.is_finished());
    }
    if matches!(kind, Kind::AnswersLost | Kind::HalfOpen) {
        heal(&mut fault, &stage).await?;
    }
    let error = work.await?;
    assert!(matches!(error, sqlx::Error::Io(_)), "{injected} in {name}: {error}");
    heal(&mut fault, &stage).await?;
    PgConnection::connect(&through).await?.close().await?;
    Ok(())
}

/// Returns `host:port` and the database's name.
fn parts(url: &str) -> Result<(String, String), Failure> {
    let (_, rest) = url.rsplit_once('@').ok_or("an address without a user")?;
    let (server, name) = rest.split_once('/').ok_or("an address without a database")?;
    Ok((server.to_owned(), name.to_owned()))
}
