//! Passwords and tokens that change while the relay runs.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sqlx::{Connection as _, PgConnection, Postgres};
use tests::brokers::Rabbitmq;
use tests::eventually::when;
use tests::issuer::{self, Issuer, Manner, TokenKey};
use tests::rabbitmq_node::RabbitmqNode;
use tests::relay_process::Config;
use tests::tls::Shown;
use tests::workload::Workload;
use tests::{Backend, Failure, Outcome, RelayProcess, Role, Stage, brokers, eventually};

use crate::commands::Ran;
use crate::commands::refusals::refusal;

tests::cases! { "{case}/{on}":
    postgres kafka { a_rotated_database_password_is_picked_up }
    postgres rabbitmq { a_refused_login_is_shown_until_it_is_accepted }
    postgres + xtask { messages_wait_for_an_issuer_that_fails }
}

const RELAY: &str = "orders";

/// Goal: the relay picks up a rotated database password from its file without a restart. Oracle:
/// the old password is refused and every session of the user has ended; a message placed afterwards
/// still takes effect through the same process.
async fn a_rotated_database_password_is_picked_up(stage: Stage) -> Outcome {
    let workload = Workload::<Postgres>::open(&stage, brokers::open(&stage, Backend::Kafka).await?).await?;
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

/// Goal: a login that RabbitMQ refuses is shown until it is accepted, and a wrong password is not
/// mistaken for a rotation. The status also shows how many processes wait for the lease. Oracle:
/// the status while the file holds a wrong password, a right one, and a wrong one again; the log.
async fn a_refused_login_is_shown_until_it_is_accepted(stage: Stage) -> Outcome {
    let workload =
        Workload::<Postgres>::open(&stage, brokers::open(&stage, Backend::Rabbitmq).await?).await?;
    let file = stage.folder().join("password");
    let place = Backend::Rabbitmq.address()?;
    let (_, place) = place.rsplit_once('@').ok_or("an address without a user")?;
    let section = format!(
        "[pipeline.rabbitmq]\nurl = \"amqp://{place}\"\nusername = \"guest\"\npassword_file = {file:?}\n"
    );
    let config = Config::with_section(&stage, RELAY, &workload.database.relay_url()?, &section, "")?;
    let put = |password: &str| -> Outcome {
        let new = file.with_extension("new");
        std::fs::write(&new, password)?;
        Ok(std::fs::rename(&new, &file)?)
    };
    put("not-yet")?;
    let relay = RelayProcess::start(&stage, &config)?;
    workload.place("a").await?;
    eventually("the status has it", || async { Ok(when(!refusal(&config).await?.is_null())) }).await?;
    let found = refusal(&config).await?;
    let error = found["error"].as_str().unwrap_or_default();
    assert!(error.contains("check user name, password and permissions"), "{found}");
    assert_eq!(found["passes"], false, "{found}");

    let consumer = workload.consume().await?;
    put("guest")?;
    workload.applied(1).await?;
    eventually("nothing is left of it", || async { Ok(when(refusal(&config).await?.is_null())) }).await?;
    let standby = RelayProcess::start(&stage, &config)?;
    let standbys = || async {
        let ran = Ran::with(&config, &["status", "--output", "json"]).await?;
        Ok::<_, Failure>(ran.json()?[0]["standbys"].as_u64())
    };
    eventually("the standby is counted", || async { Ok(when(standbys().await? == Some(1))) }).await?;
    standby.stop().await?;
    eventually("no standby is counted", || async { Ok(when(standbys().await? == Some(0))) }).await?;

    put("not-any-more")?;
    relay.tells("rabbitmq refuses the new password of a connection").await?;
    workload.place("a").await?;
    workload.applied(2).await?;
    put("guest")?;
    let log = relay.log()?;
    assert!(!log.contains("accepts the new password") && !log.contains("not-any-more"), "{log}");
    consumer.stop().await?;
    relay.stop().await
}

/// The key that RabbitMQ shares with its issuer.
const KEY: &[u8] = b"a key of thirty-two bytes or more";
/// Lifetime of the tokens: they expire while the issuer fails.
const SHORT: Duration = Duration::from_secs(16);

/// Goal: while the issuer of RabbitMQ's tokens hangs, and while its clock is wrong, messages wait
/// and the status names the reason; then they take effect once. An issuer that promises a longer
/// lifetime than its tokens have costs a session, not a message. Oracle: the status, the effects,
/// and a real RabbitMQ that checks the tokens.
async fn messages_wait_for_an_issuer_that_fails(stage: Stage) -> Outcome {
    let node = RabbitmqNode::start_with_tokens(&stage, URL_SAFE_NO_PAD.encode(KEY)).await?;
    let issuer = Issuer::start_with(&stage, Shown::Good, TokenKey::shared(KEY)).await?;
    issuer.set_lifetime(SHORT);
    let broker = Rabbitmq::with_tokens(&stage, &node, issuer.client().timeout_ms(1_000));
    let workload = Workload::<Postgres>::open(&stage, Arc::new(broker)).await?;
    let url = workload.database.relay_url()?;
    let config = Config::write(&stage, RELAY, &url, workload.broker.as_ref(), "")?;
    let relay = RelayProcess::start(&stage, &config)?;
    let consumer = workload.consume().await?;
    workload.place_many(3, 3).await?;
    workload.settled().await?;

    issuer.set_manner(Manner::Silent);
    relay.tells("the token was not renewed").await?;
    let reason = |part: &'static str| {
        let (workload, config) = (&workload, &config);
        async move {
            // A channel keeps its permission until the broker's next round.
            eventually("the status names the issuer", || async {
                workload.place("a").await?;
                let found = refusal(config).await?;
                Ok(when(found["error"].as_str().is_some_and(|error| error.contains(part))))
            })
            .await
        }
    };
    reason("rabbitmq.oauth.token_url").await?;
    reason("gave no whole answer within 1000 ms").await?;
    issuer.set_manner(Manner::Behind);
    reason("compare the clocks").await?;
    issuer.set_manner(Manner::Boasting);
    workload.settled().await?;
    eventually("the broker has refused a token that was promised for longer", || async {
        workload.place("a").await?;
        Ok(when(relay.log()?.contains("ACCESS_REFUSED")))
    })
    .await?;
    workload.settled().await?;
    let log = relay.log()?;
    assert!(!log.contains(issuer::SECRET) && !log.contains("eyJ"), "{log}");
    consumer.stop().await?;
    relay.stop().await
}

/// Atomically replaces the file with the URL of a user with this password. Returns the URL.
fn write(file: &Path, admin: &str, user: &str, password: &str) -> Result<String, Failure> {
    let (scheme, rest) = admin.split_once("://").ok_or("no URL")?;
    let (_, place) = rest.rsplit_once('@').ok_or("a URL without a user")?;
    let url = format!("{scheme}://{user}:{password}@{place}");
    let new = file.with_extension("new");
    std::fs::write(&new, &url)?;
    std::fs::rename(&new, file)?;
    Ok(url)
}
