//! Passwords that change while the relay runs.

use std::path::Path;

use sqlx::{Connection as _, PgConnection, Postgres};
use tests::relay_process::Config;
use tests::workload::Workload;
use tests::{Backend, Failure, Outcome, RelayProcess, Role, Stage, brokers};

const RELAY: &str = "orders";

/// Goal: a database password that was rotated is picked up from its file without a restart. Oracle:
/// the old password no longer opens anything and every session of the user is gone; what is placed
/// then takes effect all the same, through the same process.
pub(crate) async fn a_rotated_database_password_is_picked_up(stage: Stage) -> Outcome {
    let workload = Workload::<Postgres>::open(&stage, brokers::open(Backend::Kafka).await?).await?;
    let user = stage.unique("rotated");
    let group = Role::Relay.user();
    workload.database.execute(&format!("CREATE ROLE {user} LOGIN PASSWORD 'first' IN ROLE {group}")).await?;
    let (database, gone) = (workload.database.clone(), user.clone());
    stage.afterwards(
        format!("role {user}"),
        async move { database.execute(&format!("DROP ROLE {gone}")).await },
    );

    let file = stage.folder().join("url");
    let first = write(&file, &workload.database.url, &user, "first")?;
    let section = workload.broker.relay_section().ok_or("no section")?;
    let pipeline = format!("[[pipeline]]\nname = {RELAY:?}\n[pipeline.database]\nurl_file = {file:?}\n");
    let config =
        Config::text(&stage, &format!("{pipeline}{section}[pipeline.engine]\nlease_ttl = \"3s\"\n"))?;
    let mut relay = RelayProcess::start(&stage, &config)?;
    let consumer = workload.consume().await?;
    workload.place("a").await?;
    workload.applied(1).await?;

    workload.database.execute(&format!("ALTER ROLE {user} PASSWORD 'second'")).await?;
    let second = write(&file, &workload.database.url, &user, "second")?;
    let end =
        format!("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = '{user}'");
    assert!(workload.database.integer(&end).await? > 0, "the relay had no session");
    assert!(PgConnection::connect(&first).await.is_err(), "the old password is still good");

    workload.place("a").await?;
    workload.applied(2).await?;
    workload.settled().await?;
    assert!(relay.has_ended()?.is_none(), "the relay has ended");
    let log = relay.log()?;
    assert!(!log.contains(&second) && !log.contains(":second@"), "the log holds the password");
    consumer.stop().await?;
    relay.stop().await
}

/// Writes the URL of a user with this password, as a whole and at once.
fn write(file: &Path, admin: &str, user: &str, password: &str) -> Result<String, Failure> {
    let (scheme, rest) = admin.split_once("://").ok_or("no URL")?;
    let (_, place) = rest.rsplit_once('@').ok_or("a URL without a user")?;
    let url = format!("{scheme}://{user}:{password}@{place}");
    let new = file.with_extension("new");
    std::fs::write(&new, &url)?;
    std::fs::rename(&new, file)?;
    Ok(url)
}
