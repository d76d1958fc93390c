//! Logins to Kafka with access tokens (SASL OAUTHBEARER), against a real Kafka that verifies the
//! signatures of an issuer of the test's own.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use brokers::kafka::{self, Admin, TopicPlan, TopicReader, TransactionalConnector};
use brokers::oauth::{OAuth, Token, TokenError, TokenProvider};
use conformance::Broker as _;
use message::{
    Connector as _, Fault, PublishError, Receipts, TransactionMark, TransactionScope, Transactions as _,
};
use sqlx::Postgres;
use tests::brokers::remove_kafka_topic;
use tests::issuer::{CLIENT, Issuer, SECRET, TokenKey};
use tests::relay_process::Config;
use tests::tls::Shown;
use tests::workload::Workload;
use tests::{Backend, Failure, Outcome, RelayProcess, Stage, eventually};

use crate::places::Trust;
use crate::services::{Secured, Way};

const HOUR: Duration = Duration::from_secs(3_600);
/// Lifetime of a token that is replaced while messages flow.
const SHORT: Duration = Duration::from_secs(15);
/// Number of tokens that each client needs in such a case.
const TOKENS: usize = 3;

tests::cases! { "tokens/kafka/{case}":
    anywhere + kafka kafka_sasl tls_files {
        a_token_from_a_file_logs_in_and_is_read_again = from_a_file,
        every_client_logs_in_with_the_tokens_of_a_provider = every_client,
        a_token_that_the_brokers_refuse_is_named = refused_by_brokers,
        a_client_that_the_issuer_refuses_is_named = refused_by_issuer,
        an_issuer_with_a_wrong_certificate_gets_no_secret = wrong_issuer,
    }
    night anywhere + postgres kafka kafka_sasl tls_files {
        tokens_are_replaced_while_messages_flow = replaced,
        a_client_that_is_revoked_loses_nothing = revoked,
    }
}

/// Returns a configuration for the listener that accepts tokens.
fn config(oauth: OAuth) -> Result<kafka::Config, Failure> {
    let files = std::path::PathBuf::from(Backend::TlsFiles.address()?);
    let trust = Trust { authority: Some(files.join("ca.pem")), client: None };
    let config = tests::brokers::patient_kafka(&Backend::KafkaSasl.address()?);
    Ok(config.tls(trust.tls()).sasl(kafka::Sasl::oauth(oauth)))
}

fn client(issuer: &Issuer, id: &str, secret: &str) -> Result<kafka::Config, Failure> {
    config(OAuth::client(issuer.url(), id).client_secret(secret).ca_file(issuer.authority()))
}

async fn connected(config: kafka::Config) -> Result<(), PublishError> {
    let connector =
        kafka::Connector::new(config).map_err(|error| PublishError::session_lost(error.to_string()))?;
    let (receipts, _) = Receipts::channel();
    connector.connect(receipts).await.map(drop)
}

/// Returns the error of a login that the operator has to repair.
async fn refusal(config: kafka::Config) -> Result<String, Failure> {
    let Err(error) = connected(config).await else { return Err("let in".into()) };
    let text = error.to_string();
    assert_eq!(error.fault(), Fault::Operator, "{text}");
    assert!(!text.contains(SECRET) && !text.contains("eyJ"), "{text}");
    Ok(text)
}

/// Goal: the content of the file counts when a client connects. Oracle: the broker's answer to two
/// contents.
async fn from_a_file(stage: Stage) -> Outcome {
    let file = stage.folder().join("token");
    let key = TokenKey::of_services()?;
    std::fs::write(&file, TokenKey::foreign()?.accepted(HOUR)?)?;
    let config = config(OAuth::file(&file))?;
    refusal(config.clone()).await?;
    std::fs::write(&file, format!("{}\n", key.accepted(HOUR)?))?;
    connected(config.clone()).await?;
    let group = kafka::GroupConfig::new(stage.unique("group"), [stage.unique("none")]);
    kafka::Subscriber::new(config, group)?.subscribe().await?;
    Ok(())
}

/// A service's own source of tokens.
#[derive(Debug)]
struct Own(TokenKey);

#[async_trait]
impl TokenProvider for Own {
    async fn token(&self) -> Result<Token, TokenError> {
        let token = self.0.accepted(HOUR).map_err(|error| TokenError::unavailable(error.to_string()))?;
        Token::new(token, std::time::SystemTime::now() + HOUR)
    }
}

/// Goal: no client of the adapter is left without a token. Oracle: the answers of a listener that
/// asks for one.
async fn every_client(stage: Stage) -> Outcome {
    let oauth = OAuth::provider(Arc::new(Own(TokenKey::of_services()?)));
    let mut config = config(oauth)?;
    // The broker ignores extensions that it does not know.
    config.sasl = config.sasl.map(|sasl| sasl.extension("logicalCluster", "lkc-1"));
    config.properties.insert(String::from("socket.timeout.ms"), "60000".into());
    let topic = stage.unique("tokens");
    let admin = Admin::new(&config)?;
    admin.create_topics(&[TopicPlan::new(&topic, 1)]).await?;
    remove_kafka_topic(&stage, &config, &topic);
    eventually("the topic is listed", || async {
        Ok(admin.topics().await?.iter().any(|(name, _)| *name == topic).then_some(()))
    })
    .await?;
    let facts = kafka::inspect(&config, std::slice::from_ref(&topic)).await?;
    let [found] = &facts.topics[..] else { return Err("one topic was asked about".into()) };
    assert!(found.facts.as_ref().is_ok_and(|facts| facts.settings_problem.is_none()), "{found:?}");
    assert!(!kafka::listeners(&config).await?.is_empty());
    let (read_config, read_topic, group) = (config.clone(), topic.clone(), stage.unique("group"));
    let read = tokio::task::spawn_blocking(move || {
        let committed = kafka::committed(&read_config, &group, [read_topic.as_str()])?;
        Ok::<_, kafka::AdminError>((
            committed.len(),
            TopicReader::new(&read_config)?.begin(&read_topic, None)?,
        ))
    });
    let (topics, begun) = read.await??;
    assert!(topics == 1 && begun.is_some());
    let connector = TransactionalConnector::new(config.clone())?;
    let scope = TransactionScope {
        log: stage.unique("log").to_lowercase(),
        relay: String::from("orders"),
        is_new: true,
        timeout: Duration::from_secs(30),
    };
    remove_kafka_topic(&stage, &config, &format!("outbox-marks.{}.{}", scope.log, scope.relay));
    let none: Option<TransactionMark> = connector.take_over(&scope).await?;
    assert!(none.is_none());
    let (receipts, _) = Receipts::channel();
    connector.connect(receipts).await?.close(Duration::from_secs(60)).await;
    Ok(())
}

/// Oracle: the error names what a token must have, and not a password, because none is set.
async fn refused_by_brokers(stage: Stage) -> Outcome {
    let file = stage.folder().join("token");
    for token in [
        TokenKey::of_services()?.token("another-audience", HOUR)?,
        TokenKey::foreign()?.accepted(HOUR)?,
        String::from("opaque"),
    ] {
        std::fs::write(&file, token)?;
        let text = refusal(config(OAuth::file(&file))?).await?;
        assert!(text.contains("issuer, audience") && !text.contains("password"), "{text}");
        let group = kafka::GroupConfig::new(stage.unique("group"), [stage.unique("none")]);
        let subscriber = kafka::Subscriber::new(config(OAuth::file(&file))?, group)?;
        let Err(error) = subscriber.subscribe().await else { return Err("let in".into()) };
        assert!(error.to_string().contains("issuer, audience"), "{error}");
    }
    Ok(())
}

/// Oracle: the error names the client and the issuer's own word; a client that is known again logs
/// in.
async fn refused_by_issuer(stage: Stage) -> Outcome {
    let issuer = Issuer::start(&stage, Shown::Good).await?;
    for (id, secret) in [(CLIENT, "wr0ng"), ("stranger", SECRET)] {
        let text = refusal(client(&issuer, id, secret)?).await?;
        assert!(text.contains(&format!("refuses the client {id:?}")), "{text}");
        assert!(text.contains("kafka.sasl.oauth.token_url") && text.contains("client_secret"), "{text}");
        assert!(!text.contains("wr0ng"), "{text}");
    }
    issuer.set_known(false);
    let text = refusal(client(&issuer, CLIENT, SECRET)?).await?;
    assert!(text.contains("invalid_client"), "{text}");
    issuer.set_known(true);
    connected(client(&issuer, CLIENT, SECRET)?).await?;
    Ok(())
}

/// Oracle: the error names the certificate; the issuer has granted nothing.
async fn wrong_issuer(stage: Stage) -> Outcome {
    for shown in [Shown::Foreign, Shown::OtherHost, Shown::Expired] {
        let issuer = Issuer::start(&stage, shown).await?;
        let text = refusal(client(&issuer, CLIENT, SECRET)?).await?;
        assert!(text.contains("certificate") && text.contains("ca_file"), "{shown:?}: {text}");
        assert_eq!(issuer.granted(), 0, "{shown:?}");
    }
    Ok(())
}

/// A relay and a consumer that log in with tokens.
struct Running {
    workload: Workload<Postgres>,
    relay: RelayProcess,
    consumer: tests::workload::Consumer,
    broker: Arc<Secured>,
}

impl Running {
    async fn start(stage: &Stage) -> Result<Self, Failure> {
        let broker = Arc::new(Secured::open(stage, Way::KafkaToken).await?);
        broker.issuer.as_ref().ok_or("no issuer")?.set_lifetime(SHORT);
        let workload = Workload::<Postgres>::open(stage, Arc::clone(&broker) as Arc<_>).await?;
        let url = workload.database.relay_url()?;
        let config = Config::write(stage, "orders", &url, workload.broker.as_ref(), "")?;
        let relay = RelayProcess::start(stage, &config)?;
        let consumer = workload.consume().await?;
        Ok(Self { workload, relay, consumer, broker })
    }

    fn issuer(&self) -> Result<&Issuer, Failure> {
        self.broker.issuer.as_ref().ok_or_else(|| "no issuer".into())
    }

    async fn stop(self) -> Outcome {
        self.consumer.stop().await?;
        self.relay.stop().await
    }
}

/// Goal: tokens that live for seconds are replaced, and the connections authenticate again, without
/// the end of a session. Oracle: the number of tokens, each order applied once and in order, one
/// record for each in Kafka, and no lost session in the relay's log.
async fn replaced(stage: Stage) -> Outcome {
    let running = Running::start(&stage).await?;
    let begun_with = running.issuer()?.granted();
    eventually("several tokens were granted", || async {
        running.workload.place_many(3, 2).await?;
        let granted = running.issuer()?.granted() - begun_with;
        // Two clients.
        Ok((granted >= 2 * TOKENS).then_some(()))
    })
    .await?;
    running.workload.settled().await?;
    let placed = running.workload.placed().await?.len();
    let records = running.broker.payloads(&running.workload.topic, placed).await?;
    assert_eq!(records.len(), placed, "a record was sent twice");
    assert_eq!(records.into_iter().collect::<BTreeSet<_>>().len(), placed);
    let log = running.relay.log()?;
    assert!(!log.contains("session ended") && !log.contains("not renewed"), "{log}");
    running.stop().await
}

/// Goal: a client that is revoked while it runs ends with the issuer's reason, and continues when
/// it is known again. Oracle: the relay's log; each order applied once.
async fn revoked(stage: Stage) -> Outcome {
    let running = Running::start(&stage).await?;
    running.workload.place_many(3, 6).await?;
    running.workload.settled().await?;
    running.issuer()?.set_known(false);
    running.relay.tells("the token was not renewed").await?;
    running.relay.tells("session ended").await?;
    running.workload.place_many(3, 6).await?;
    running.issuer()?.set_known(true);
    running.workload.settled().await?;
    let log = running.relay.log()?;
    assert!(log.contains("refuses the client") && !log.contains(SECRET), "{log}");
    running.stop().await
}
