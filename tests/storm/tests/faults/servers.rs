//! Servers that stop and come back: private instances on separate ports.

use std::net::TcpListener;
use std::path::PathBuf;

use harness::faults::Fault as _;
use libtest_mimic::Trial;
use proxy::Proxy;
use sqlx::{Connection as _, PgConnection};
use storm::faults::database::promotion::Promotion;
use storm::faults::servers::Server;
use storm::journal::{WENT_BACK, WentBack};
use storm::pair::{BrokerKind, DatabaseKind, Pair};
use storm::stage::{Peer, Role, Services, Wire};
use tests::{Backend, Failure, Outcome, Stage, trial};

use crate::scene::{empty, heal, inject, until};

pub(crate) fn trials() -> Vec<Trial> {
    let needs = &[Backend::Xtask];
    vec![
        trial("servers/a_database_crashes_and_recovers", needs, a_database_crashes_and_recovers),
        trial("servers/a_standby_takes_the_primarys_place", needs, a_standby_takes_the_primarys_place),
    ]
}

/// Returns a private PostgreSQL with its own folder and port, its URL, and its log.
fn private(test: &Stage) -> Result<(Services, String, PathBuf), Failure> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let folder = test.folder().join("services");
    std::fs::create_dir_all(&folder)?;
    let all = Services::new(Backend::Xtask.address()?.into());
    let services = all.another_postgres(&folder, port);
    let url = format!("postgres://outbox:outbox@127.0.0.1:{port}/outbox");
    test.afterwards("the server", async move { all.remove_others().await });
    Ok((services, url, folder.join("postgres/logs/server.log")))
}

async fn a_database_crashes_and_recovers(test: Stage) -> Outcome {
    let (services, url, log) = private(&test)?;
    let mut stage = empty(&test);
    stage.services = services;
    let pair = Pair { database: DatabaseKind::Postgres, broker: BrokerKind::MockKafka };
    let mut faults = Server::all(pair);
    let fault = faults.first_mut().ok_or("nothing can go away")?;
    stage.services.start(storm::stage::Service::Postgres).await?;
    heal(fault, &stage).await?;
    let mut session = PgConnection::connect(&url).await?;
    sqlx::query("CREATE TABLE kept (n int)").execute(&mut session).await?;
    inject(fault, &stage, 1).await?;
    let error = sqlx::query("SELECT 1").execute(&mut session).await.err().ok_or("the session lives")?;
    assert!(PgConnection::connect(&url).await.is_err(), "it is there after {error}");
    heal(fault, &stage).await?;
    let mut session = PgConnection::connect(&url).await?;
    sqlx::query("SELECT FROM kept").execute(&mut session).await?;
    let recovery = std::fs::read_to_string(log)?;
    assert!(recovery.contains("automatic recovery in progress"), "{recovery}");
    Ok(())
}

/// Returns the business rows.
async fn business(url: &str) -> Result<Vec<String>, Failure> {
    let mut session = PgConnection::connect(url).await?;
    Ok(sqlx::query_scalar("SELECT row FROM business ORDER BY row").fetch_all(&mut session).await?)
}

async fn execute(url: &str, sql: &'static str) -> Outcome {
    let mut session = PgConnection::connect(url).await?;
    sqlx::raw_sql(sql).execute(&mut session).await?;
    Ok(())
}

async fn a_standby_takes_the_primarys_place(test: Stage) -> Outcome {
    let (services, primary, _) = private(&test)?;
    let mut stage = empty(&test);
    stage.services = services.clone();
    services.start(storm::stage::Service::Postgres).await?;
    test.afterwards("the standby", async move { services.remove_others().await });
    let server = primary.split(['@', '/']).nth(3).ok_or("no address")?;
    for role in [Role::Producer, Role::Relay, Role::Consumer] {
        let proxy = Proxy::start(0, server).await?;
        stage.wires.proxies.insert(Wire { role, peer: Peer::Database }, proxy);
    }
    let own = Proxy::start(0, server).await?;
    let url = primary.replace(server, &own.address().to_string());
    (stage.wires.own, stage.database.producers) = (Some(own), url.clone());
    execute(&url, "CREATE TABLE business (row text); CREATE TABLE outbox_message (message_id uuid)").await?;
    execute(&url, "INSERT INTO business VALUES ('kept')").await?;
    let mut fault = Promotion::default();
    heal(&mut fault, &stage).await?;
    inject(&mut fault, &stage, 1).await?;
    execute(&url, "INSERT INTO business VALUES ('lost')").await?;
    let relays = &stage.wires.proxies[&Wire { role: Role::Relay, peer: Peer::Database }];
    relays.redirect("127.0.0.1:1");
    assert!(fault.heal(&stage).await.is_err(), "relays would be led back to the old primary");
    relays.redirect(server);
    until("the standby is promoted", async || Ok(fault.heal(&stage).await.is_ok().then_some(()))).await?;
    assert_eq!(business(&url).await?, ["kept"]);
    execute(&url, "INSERT INTO business VALUES ('new')").await?;
    assert!(business(&primary).await.is_err(), "somebody gets into the old primary");
    let led = |role| stage.wires.proxies[&Wire { role, peer: Peer::Database }].upstream();
    assert!(led(Role::Relay) == led(Role::Producer) && &*led(Role::Consumer) == server);
    assert_ne!(&*led(Role::Relay), server);
    let mut times: Vec<WentBack> = Vec::new();
    storm::journal::read(&test.folder().join(WENT_BACK), |time| times.push(time))?;
    assert!(matches!(&times[..], [time] if time.rows == ["lost"] && time.messages.is_empty()), "{times:?}");
    assert!(inject(&mut fault, &stage, 2).await.is_err(), "there is no second standby");
    Ok(())
}
