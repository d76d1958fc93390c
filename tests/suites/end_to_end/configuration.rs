//! The program's errors about wrong settings, with which it does not start.

use sqlx::Postgres;
use tests::relay_process::{Config, relay};
use tests::{Backend, Database, Outcome, RelayProcess, Stage, brokers};

tests::cases! { "{case}":
    anywhere {
        an_unknown_setting_is_named_with_its_place = an_unknown_setting,
        two_pipelines_of_one_name_are_refused = two_pipelines_of_one_name,
        hostile_names_are_refused_with_their_place = hostile_names,
    }
    anywhere + postgres kafka {
        a_missing_schema_names_the_command = a_missing_schema,
        a_schema_that_is_too_new_is_refused = a_schema_that_is_too_new,
        a_wrong_password_of_the_database_is_named = a_wrong_database_password,
    }
    anywhere + postgres rabbitmq { a_wrong_password_of_the_broker_is_named = a_wrong_broker_password }
}

const PIPELINE: &str = "\
[[pipeline]]
name = \"orders\"
[pipeline.database]
url = \"sqlite::memory:\"
[pipeline.kafka]
bootstrap_servers = [\"127.0.0.1:1\"]
";

/// Runs the program with a file that it must refuse. Returns its errors.
async fn refused(config: &Config) -> Result<String, tests::Failure> {
    let path = config.path().to_str().ok_or("the path is not UTF-8")?;
    let output = relay(&["run", "--config", path]).await?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    Ok(text)
}

/// Goal: a misspelt setting is never silently ignored. Oracle: exit code 2; name, line and known
/// names in the text.
async fn an_unknown_setting(stage: Stage) -> Outcome {
    let config = Config::text(&stage, &format!("{PIPELINE}[pipeline.engine]\nlease_til = \"5s\"\n"))?;
    let text = refused(&config).await?;
    for part in ["lease_til", "8", "lease_ttl"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    Ok(())
}

/// Goal: no name in the configuration gets into a statement, or exceeds the length limit of the
/// object that it names. Oracle: exit code 2 and the setting, for each name and each place; the
/// database's file is not even created.
async fn hostile_names(stage: Stage) -> Outcome {
    let file = stage.folder().join("never.db");
    let pipeline = PIPELINE.replace("sqlite::memory:", &format!("sqlite:{}?mode=rwc", file.display()));
    let sqs = "[pipeline.sqs]\nregion = \"r\"\nqueues = { orders = ";
    for name in tests::hostile::NAMES {
        let text = serde_json::to_string(name)?;
        let mut places = vec![
            ("pipeline[0].name", pipeline.replace("\"orders\"", &text)),
            (
                "pipeline[0].database.schema",
                pipeline.replace("[pipeline.kafka]", &format!("schema = {text}\n[pipeline.kafka]")),
            ),
        ];
        // A queue's name may have 64 letters.
        if name.len() != 64 {
            let (head, _) = pipeline.split_once("[pipeline.kafka]").ok_or("no broker")?;
            places.push(("pipeline[0].sqs.queues", format!("{head}{sqs}{text} }}\n")));
        }
        for (setting, text) in places {
            let told = refused(&Config::text(&stage, &text)?).await?;
            assert!(told.contains(setting), "{name:?}: {told}");
        }
        // A program's argument cannot hold a null character.
        if !name.contains('\0') {
            let output = relay(&["migrate", "roles", &format!("--producer={name}")]).await?;
            assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{name:?}");
        }
    }
    assert!(!file.exists(), "the database was opened");
    Ok(())
}

/// Goal: two pipelines never share a cursor. Oracle: exit code 2; the name in the text.
async fn two_pipelines_of_one_name(stage: Stage) -> Outcome {
    let text = refused(&Config::text(&stage, &format!("{PIPELINE}{PIPELINE}"))?).await?;
    assert!(text.contains("orders"), "{text}");
    Ok(())
}

/// Goal: the relay waits for a database without tables, because a restore may bring them, and the
/// log names the command that helps. Oracle: the log, and a process that runs.
async fn a_missing_schema(stage: Stage) -> Outcome {
    let database = Database::<Postgres>::empty(&stage).await?;
    let broker = brokers::open(&stage, Backend::Kafka).await?;
    let config = Config::write(&stage, "orders", &database.relay_url()?, broker.as_ref(), "")?;
    let relay = RelayProcess::start(&stage, &config)?;
    relay.tells("run `relay migrate up").await?;
    relay.stop().await
}

/// Goal: an old program does not touch a newer schema. Oracle: exit code 2; both versions in the
/// text.
async fn a_schema_that_is_too_new(stage: Stage) -> Outcome {
    let database = Database::<Postgres>::migrated(&stage).await?;
    let newer = "INSERT INTO outbox_toolkit_migration (line, version, name, checksum) \
                 VALUES ('outbox', 99, '0099_future', 'x')";
    database.execute(newer).await?;
    let broker = brokers::open(&stage, Backend::Kafka).await?;
    let text =
        refused(&Config::write(&stage, "orders", &database.relay_url()?, broker.as_ref(), "")?).await?;
    assert!(text.contains("99") && text.contains("upgrade"), "{text}");
    Ok(())
}

/// Goal: wrong credentials are distinguished from an outage, and never printed. Oracle: the log
/// names the operator's fault and holds no password.
async fn a_wrong_database_password(stage: Stage) -> Outcome {
    let database = Database::<Postgres>::migrated(&stage).await?;
    let url = database.url.replacen(":outbox@", ":s3cret@", 1);
    let broker = brokers::open(&stage, Backend::Kafka).await?;
    let relay = RelayProcess::start(&stage, &Config::write(&stage, "orders", &url, broker.as_ref(), "")?)?;
    relay.tells("password authentication failed").await?;
    assert!(!relay.log()?.contains("s3cret"), "the log holds the password");
    relay.kill().await
}

/// Does the same for a broker.
async fn a_wrong_broker_password(stage: Stage) -> Outcome {
    let database = Database::<Postgres>::migrated(&stage).await?;
    let url = Backend::Rabbitmq.address()?.replace("guest:guest@", "guest:s3cret@");
    let broker = brokers::Rabbitmq::new(&stage, url);
    let relay =
        RelayProcess::start(&stage, &Config::write(&stage, "orders", &database.relay_url()?, &broker, "")?)?;
    // The relay's own line, not the earlier one of the client library.
    relay.tells("check user name, password and permissions").await?;
    let log = relay.log()?;
    assert!(!log.contains("s3cret"), "the log holds the password");
    relay.kill().await
}
