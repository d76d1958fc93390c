//! Refusals without TLS, and the warning where plaintext is allowed. Nothing is sent, because the
//! remote address is reserved for documentation (RFC 5737).

use tests::relay_process::{Config, relay};
use tests::{Database, Failure, Outcome, RelayProcess, Stage};

const KAFKA: &str = "[pipeline.kafka]\nbootstrap_servers = [\"192.0.2.1:9092\"]\nconnect_timeout_ms = 200\n";
const SASL_PLAIN: &str = "sasl = { mechanism = \"PLAIN\", username = \"u\", password = \"s3cret\" }\n";
const RABBITMQ: &str = "[pipeline.rabbitmq]\nurl = \"amqp://u:s3cret@192.0.2.1\"\nconnect_timeout_ms = 200\n";
const SQS: &str = "[pipeline.sqs]\nregion = \"r\"\naccess_key_id = \"k\"\nsecret_access_key = \"s3cret\"\n\
                   connect_timeout_ms = 200\nendpoint_url = \"http://192.0.2.1\"\n";
const ALLOWED: &str = "allow_plaintext = true\n";

tests::cases! { "plaintext/{case}":
    anywhere {
        another_machine_is_refused_by_every_setting = refused_everywhere,
        where_it_is_allowed_the_start_says_so = told_at_the_start,
        an_endpoint_of_the_aws_environment_is_refused = aws_environment,
    }
}

async fn file(stage: &Stage, database: Option<&str>, broker: &str) -> Result<Config, Failure> {
    let own;
    let url = match database {
        Some(url) => url,
        None => {
            own = Database::<sqlx::Sqlite>::migrated(stage).await?.url;
            &own
        }
    };
    Config::text(
        stage,
        &format!("[[pipeline]]\nname = \"orders\"\n[pipeline.database]\nurl = {url:?}\n{broker}"),
    )
}

/// Oracle: exit code 2, the setting, the host and the remedy; no secret.
async fn refused_everywhere(stage: Stage) -> Outcome {
    let sasl = format!("{KAFKA}{ALLOWED}{SASL_PLAIN}");
    let remote = "postgres://u:s3cret@192.0.2.1/d?sslmode=";
    let (disable, prefer) = (format!("{remote}disable"), format!("{remote}prefer"));
    for (database, broker, setting) in [
        (None, KAFKA, "pipeline[0].kafka.tls"),
        (None, sasl.as_str(), "pipeline[0].kafka.sasl.mechanism"),
        (None, RABBITMQ, "pipeline[0].rabbitmq.url"),
        (None, SQS, "pipeline[0].sqs.endpoint_url"),
        (Some(disable.as_str()), "[pipeline.sqs]\nregion = \"r\"\n", "pipeline[0].database.url"),
        (Some(prefer.as_str()), "[pipeline.sqs]\nregion = \"r\"\n", "pipeline[0].database.url"),
    ] {
        let config = file(&stage, database, broker).await?;
        let path = config.path().display().to_string();
        for command in [["run", "--config", &path], ["status", "--config", &path]] {
            let output = relay(&command).await?;
            let text = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{setting}: {text}");
            assert!(text.contains(setting) && text.contains("192.0.2.1"), "{setting}: {text}");
            assert!(!text.contains("s3cret"), "{text}");
        }
    }
    Ok(())
}

/// Oracle: a warning that names the address, before anything else happens.
async fn told_at_the_start(stage: Stage) -> Outcome {
    for broker in [KAFKA, RABBITMQ, SQS] {
        let config = file(&stage, None, &format!("{broker}{ALLOWED}")).await?;
        let relay = RelayProcess::start(&stage, &config)?;
        relay.tells("not encrypted: allow_plaintext is set").await?;
        let log = relay.log()?;
        let line = log.lines().find(|line| line.contains("not encrypted")).unwrap_or_default();
        assert!(line.contains("WARN") && line.contains("192.0.2.1"), "{log}");
        assert!(!log.contains("s3cret"), "{log}");
        relay.kill().await?;
    }
    Ok(())
}

/// Goal: the environment cannot allow something that the configuration does not. Oracle: the
/// operator gets the error, and nothing was sent: a connection to that address would time out
/// instead.
async fn aws_environment(stage: Stage) -> Outcome {
    let section = SQS.replace("endpoint_url = \"http://192.0.2.1\"\n", "");
    let section = section.replace("access_key_id = \"k\"\nsecret_access_key = \"s3cret\"\n", "");
    let config = file(&stage, None, &section).await?;
    let variables = [
        ("AWS_ENDPOINT_URL", "http://192.0.2.1"),
        ("AWS_ACCESS_KEY_ID", "k"),
        ("AWS_SECRET_ACCESS_KEY", "s3cret"),
    ];
    let relay = RelayProcess::start_with(&stage, &config, &variables)?;
    relay.tells("192.0.2.1 is another machine").await?;
    assert!(!relay.log()?.contains("s3cret"), "{}", relay.log()?);
    relay.kill().await
}
