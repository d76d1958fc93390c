//! The program on servers as configured in practice. `conformance: outbox/servers` tests the
//! database sessions themselves.

use std::sync::Arc;

use sqlx::Postgres;
use tests::relay_process::Config;
use tests::workload::Workload;
use tests::{Broker, Failure, Outcome, RelayProcess, Role, Stage};

use crate::commands::Ran;

tests::cases! { "{case}/{on}":
    postgres rabbitmq {
        a_cloud_that_hides_its_timeline_is_served = without_a_timeline,
        sessions_do_not_depend_on_a_roles_defaults = other_defaults,
    }
    postgres { urls_that_cannot_be_honoured_are_refused_by_name = refused_urls }
}

/// Goal: when the server refuses the functions of its write-ahead log, as Aurora does, messages are
/// still delivered, even through a change of leader. Oracle: the checker.
async fn without_a_timeline(stage: Stage, broker: Arc<dyn Broker>) -> Outcome {
    let workload = Workload::<Postgres>::open(&stage, broker).await?;
    workload.database.refuse_wal_functions().await?;
    let config =
        Config::write(&stage, "orders", &workload.database.relay_url()?, workload.broker.as_ref(), "")?;
    let consumer = workload.consume().await?;
    for _ in 0..2 {
        let relay = RelayProcess::start(&stage, &config)?;
        workload.place_many(3, 10).await?;
        workload.settled().await?;
        relay.stop().await?;
    }
    let status = Ran::with(&config, &["status", "--output", "json"]).await?.done()?.json()?;
    assert_eq!(status[0]["cursor_timeline"], 0, "{status}");
    assert_eq!(status[0]["cursor_is_of_this_server"], true, "{status}");
    consumer.stop().await
}

/// Goal: a role that is read-only and serializable by default can run the relay and every command
/// that makes a decision. Oracle: the checker, and exit codes.
async fn other_defaults(stage: Stage, broker: Arc<dyn Broker>) -> Outcome {
    let workload = Workload::<Postgres>::open(&stage, broker).await?;
    let database = &workload.database;
    let defaults = |user: &str| -> Result<String, Failure> {
        let name = database.name()?;
        Ok(format!(
            "ALTER ROLE {user} IN DATABASE {name} SET default_transaction_read_only = on;
             ALTER ROLE {user} IN DATABASE {name} SET default_transaction_isolation = 'serializable'"
        ))
    };
    database.execute(&defaults(Role::Relay.user())?).await?;
    let config = Config::write(&stage, "orders", &database.relay_url()?, workload.broker.as_ref(), "")?;
    let relay = RelayProcess::start(&stage, &config)?;
    let consumer = workload.consume().await?;
    workload.place_many(3, 10).await?;
    workload.settled().await?;
    for command in ["pause", "resume"] {
        let command = [command, "--topic", "other", "--actor", "ann", "--note", "a test"];
        Ran::with(&config, &command).await?.done()?;
    }
    consumer.stop().await?;
    relay.stop().await?;
    // The owner of the tables decides about keys. Its new sessions follow the defaults.
    let owner = database.texts("SELECT current_user").await?.remove(0);
    database
        .execute(
            "INSERT INTO idempotency_key (scope, operation, key, fingerprint, state, attempt, holder, lease_until,
                claimed_at, expires_at, refuses)
             VALUES ('s', 'o', 'k', decode(repeat('00', 32), 'hex'), 'in_progress', 1, gen_random_uuid(),
                now() - interval '1 hour', now() - interval '1 hour', now() + interval '1 hour', true)",
        )
        .await?;
    database.execute(&defaults(&owner)?).await?;
    let key = ["--scope", "s", "--operation", "o", "--key", "k"];
    let by = ["--actor", "ann", "--note", "a test"];
    Ran::on(&database.url, &[&["keys", "discard"], &key[..], &by[..]].concat()).await?.done()?;
    Ok(())
}

/// Goal: a URL parameter that the program cannot honour is refused on reading. The error shows its
/// name, but never its value. Oracle: exit code 2, the name, the remedy; no value.
async fn refused_urls(stage: Stage) -> Outcome {
    let place = "postgres://u@127.0.0.1:1/x";
    for (url, parts) in [
        (format!("{place}?sslpassword=CANARY"), ["sslpassword", "openssl"]),
        (format!("{place}?ssl%70assword=CANARY"), ["sslpassword", "openssl"]),
        (format!("{place}?nosuchthing=CANARY"), ["nosuchthing", "docs/configuration.md"]),
        (String::from("postgres://u:CANARY@h1,,CANARY/x"), ["hosts of the URL", "host 2 of 3 is empty"]),
        (String::from("postgres://u:CANARY@h1:5432,h2:5433:1/x"), ["host 2 of 2", "more than one colon"]),
        (format!("{place}?host=h1,h2&password=CANARY"), ["several hosts", "before the database"]),
        (
            format!("{place}?target_session_attrs=standby&password=CANARY"),
            ["target_session_attrs", "primary"],
        ),
    ] {
        let text = format!(
            "[[pipeline]]\nname = \"orders\"\n[pipeline.database]\nurl = {url:?}\n\
             [pipeline.kafka]\nbootstrap_servers = [\"127.0.0.1:1\"]\n"
        );
        let config = Config::text(&stage, &text)?;
        for command in [&["run"][..], &["check"], &["status"], &["doctor"], &["migrate", "status"]] {
            let ran = Ran::with(&config, command).await?;
            ran.refused_without("CANARY", &parts)?;
        }
        for command in [&["migrate", "up"][..], &["keys", "list"], &["sagas", "list"]] {
            Ran::on(&url, command).await?.refused_without("CANARY", &parts)?;
        }
    }
    Ok(())
}
