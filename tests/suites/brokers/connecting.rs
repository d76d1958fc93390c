//! Failures to open a session, caused by a silent server or by wrong credentials. The tests check
//! the party at fault and the time until the error is reported.

use std::sync::Arc;
use std::time::Duration;

use brokers::{kafka, rabbitmq, sqs};
use conformance::publisher::refusal;
use message::{Connector, Fault, FaultScope};
use tests::{Backend, Failure, Outcome};
use tokio::net::TcpListener;

/// Connect timeout against a server that does not answer.
const TIMEOUT: Duration = Duration::from_millis(1_000);
/// Connect timeout against a server that refuses: only a failing test reaches it.
const PATIENCE: Duration = Duration::from_secs(120);
const PASSWORD: &str = "wr0ng-s3cret";

tests::cases! { "publisher/{case}":
    anywhere {
        "kafka/a_silent_server_is_the_brokers_fault" = || silent(silent_kafka),
        "rabbitmq/a_silent_server_is_the_brokers_fault" = || silent(silent_rabbitmq),
        "sqs/a_silent_server_is_the_brokers_fault" = || silent(silent_sqs),
    }
    anywhere + kafka {
        "kafka/wrong_credentials_are_the_operators_fault" = || wrong_credentials(sasl_kafka),
    }
    anywhere + rabbitmq {
        "rabbitmq/wrong_credentials_are_the_operators_fault" = || wrong_credentials(wrong_rabbitmq),
    }
}

type Made = Result<Arc<dyn Connector>, Failure>;

/// Goal: the connector gives up, after the connect timeout, on a server that accepts the connection
/// but does not answer. Oracle: the error and the clock.
async fn silent(connector: fn(u16) -> Made) -> Outcome {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let connector = connector(listener.local_addr()?.port())?;
    // Accepts every connection, keeps it open and never writes.
    let server = tokio::spawn(async move {
        let mut taken = Vec::new();
        while let Ok(connection) = listener.accept().await {
            taken.push(connection);
        }
    });
    let error = refusal(connector.as_ref()).await;
    server.abort();
    let error = error?;
    assert_eq!((error.fault(), error.scope()), (Fault::Broker, FaultScope::Session), "{error}");
    Ok(())
}

/// Goal: rejected credentials are distinguished from an outage, and never shown. Oracle: the error.
async fn wrong_credentials(connector: fn() -> Made) -> Outcome {
    let connector = connector()?;
    let error = refusal(connector.as_ref()).await?;
    assert_eq!((error.fault(), error.scope()), (Fault::Operator, FaultScope::Session), "{error}");
    let shown = format!("{error} {error:?} {}", connector.destination());
    assert!(!shown.contains(PASSWORD), "the password is shown: {shown}");
    Ok(())
}

fn millis(timeout: Duration) -> u64 {
    u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX)
}

fn silent_kafka(port: u16) -> Made {
    let mut config = kafka::Config::new([format!("127.0.0.1:{port}")]);
    config.connect_timeout_ms = millis(TIMEOUT);
    Ok(Arc::new(kafka::Connector::new(config)?))
}

fn silent_rabbitmq(port: u16) -> Made {
    let config = rabbitmq::Config::new(format!("amqp://guest:guest@127.0.0.1:{port}"));
    let config = config.connect_timeout_ms(millis(TIMEOUT));
    Ok(Arc::new(rabbitmq::Connector::new(&config)?))
}

fn silent_sqs(port: u16) -> Made {
    let config = crate::sqs::config(format!("http://127.0.0.1:{port}"))
        .connect_timeout_ms(millis(TIMEOUT))
        .request_timeout_ms(millis(TIMEOUT))
        .attempts(1);
    Ok(Arc::new(sqs::Connector::new(&config)?))
}

/// Configures a password for a cluster that asks for none. librdkafka treats it like a wrong
/// password.
fn sasl_kafka() -> Made {
    let servers = Backend::Kafka.address()?;
    let settings = serde_json::json!({
        "bootstrap_servers": servers.split(',').collect::<Vec<_>>(),
        "connect_timeout_ms": millis(PATIENCE),
        "sasl": { "username": "relay", "password": PASSWORD },
    });
    Ok(Arc::new(kafka::Connector::new(serde_json::from_value(settings)?)?))
}

fn wrong_rabbitmq() -> Made {
    let config = rabbitmq::Config::new(without_user(&Backend::Rabbitmq.address()?)?);
    let mut config = config.connect_timeout_ms(millis(PATIENCE));
    config.username = Some(String::from("relay"));
    config.password = Some(String::from(PASSWORD).into());
    Ok(Arc::new(rabbitmq::Connector::new(&config)?))
}

fn without_user(url: &str) -> Result<String, Failure> {
    let (scheme, rest) = url.split_once("://").ok_or("no URL")?;
    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    Ok(format!("{scheme}://{host}"))
}
