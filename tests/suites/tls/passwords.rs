//! Passwords of Kafka that are replaced in their files while clients run.

use std::path::{Path, PathBuf};

use brokers::kafka::{self, Mechanism, Sasl, TopicPlan};
use conformance::consuming::handle;
use conformance::sample;
use conformance::session::{End, PATIENCE, Session};
use message::{Connector as _, Fault, PublishError, Receipts, Subscription};
use tests::brokers::{create_kafka_topic, patient_kafka};
use tests::eventually::when;
use tests::kafka_requests::{create_user, set_password};
use tests::{Backend, Failure, Outcome, Stage, eventually};

use crate::places::Trust;

/// A password that no user has.
const WRONG: &str = "s3cret";

tests::cases! { "passwords/kafka/{case}":
    anywhere + kafka kafka_sasl tls_files {
        the_file_counts_at_each_login = counts_at_each_login,
        a_password_that_is_replaced_ends_no_session = replaced,
    }
}

/// Returns a configuration for the listener that asks for a password.
fn config(user: &str, mechanism: Mechanism, file: &Path) -> Result<kafka::Config, Failure> {
    let files = PathBuf::from(Backend::TlsFiles.address()?);
    let trust = Trust { authority: Some(files.join("ca.pem")), client: None };
    let sasl = Sasl::new(user).mechanism(mechanism).password_file(file.to_owned());
    Ok(patient_kafka(&Backend::KafkaSasl.address()?).tls(trust.tls()).sasl(sasl))
}

/// Replaces the file, as an agent does.
fn write(file: &Path, password: &str) -> Outcome {
    let aside = file.with_extension("new");
    std::fs::write(&aside, password)?;
    Ok(std::fs::rename(aside, file)?)
}

async fn login(connector: &kafka::Connector) -> Result<(), PublishError> {
    connector.connect(Receipts::channel().0).await.map(drop)
}

/// Publishes one message in a session, and waits for its confirmation.
async fn publish(session: &mut Session, topic: &str, seq: i64) -> Outcome {
    session.submit([(0, sample::order(topic, "a", seq)?)]).await;
    let answer = session.answer().await?;
    Ok(answer.1?)
}

/// Goal: the content of the file counts when a client connects, and only then. Oracle: the broker's
/// answers to right and wrong passwords; the error names neither of them.
async fn counts_at_each_login(stage: Stage) -> Outcome {
    let topic = stage.unique("logins");
    let plain = patient_kafka(&Backend::Kafka.address()?);
    create_kafka_topic(&stage, &plain, TopicPlan::new(&topic, 1)).await?;
    let file = stage.folder().join("password");
    for mechanism in [Mechanism::Plain, Mechanism::ScramSha256, Mechanism::ScramSha512] {
        let connector = kafka::Connector::new(config("outbox", mechanism, &file)?)?;
        write(&file, WRONG)?;
        let error = login(&connector).await.err().ok_or("a wrong password was let in")?;
        assert_eq!(error.fault(), Fault::Operator, "{mechanism:?}: {error}");
        assert!(!error.to_string().contains(WRONG), "{mechanism:?}: {error}");
        write(&file, "outbox")?;
        let mut session = Session::open(&connector).await?;
        publish(&mut session, &topic, 1).await?;
        write(&file, WRONG)?;
        publish(&mut session, &topic, 2).await?;
        session.end(End::Close(PATIENCE)).await?;
        assert!(login(&connector).await.is_err(), "{mechanism:?}: the file was not read again");
    }
    Ok(())
}

/// Goal: Kafka gets another password for a user, and the file gets it some time later. Sessions
/// that are open continue; in between, a login is the operator's fault; afterwards the same
/// connector and the same subscriber log in again. Oracle: a real Kafka that checks the passwords.
async fn replaced(stage: Stage) -> Outcome {
    let topic = stage.unique("passwords");
    let plain = patient_kafka(&Backend::Kafka.address()?);
    create_kafka_topic(&stage, &plain, TopicPlan::new(&topic, 1)).await?;
    let user = stage.unique("relay");
    let file = stage.folder().join("password");
    create_user(&stage, &user, "first-password").await?;
    write(&file, "first-password")?;
    let config = config(&user, Mechanism::ScramSha256, &file)?;
    let connector = kafka::Connector::new(config.clone())?;
    eventually("the user is known", || async { Ok(when(login(&connector).await.is_ok())) }).await?;
    let group = kafka::GroupConfig::new(stage.unique("group"), [&topic]);
    let subscriber = kafka::Subscriber::new(config, group)?;
    let mut member: Box<dyn Subscription> = subscriber.subscribe().await?;
    let mut session = Session::open(&connector).await?;
    publish(&mut session, &topic, 1).await?;
    handle(&mut member, 1).await?;

    set_password(&user, "second-password").await?;
    let error = eventually("it is refused", || async { Ok(login(&connector).await.err()) }).await?;
    assert_eq!(error.fault(), Fault::Operator, "{error}");
    assert!(!error.to_string().contains("-password"), "{error}");
    publish(&mut session, &topic, 2).await?;
    handle(&mut member, 1).await?;

    write(&file, "second-password")?;
    session.end(End::Close(PATIENCE)).await?;
    member.close().await?;
    let mut session = Session::open(&connector).await?;
    let mut member: Box<dyn Subscription> = subscriber.subscribe().await?;
    publish(&mut session, &topic, 3).await?;
    handle(&mut member, 1).await?;
    session.end(End::Close(PATIENCE)).await?;
    Ok(member.close().await?)
}
