//! Examines one pipeline from end to end: gathers facts and checks them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use message::MessageId;
#[cfg(feature = "kafka")]
use message::loopback::is_loopback;
use migrations::Dialect;
use outbox::connect::dialect_of;
use outbox_log::ExceptionState::{Dead, Discarded, Scheduled};
use outbox_log::admin::{LogAdmin, ParkedCount};
use outbox_log::{EntryId, LogError, RelayName};
use secrecy::ExposeSecret as _;
use tokio::time::timeout;

use super::gather::{self, Unreachable};
use super::grants::examine_grants;
use super::horizon::{self, Horizon};
use super::inbox_order;
use super::reach::{failed, reach_broker};
use super::report::{CheckState, Finding, PipelineReport};
use super::{facts, relays, scheduled, sqlite};
use crate::turns::in_turns;
use crate::{Broker, InboxConfig, PipelineConfig, Retention};

/// Time limit for all queries to a database together.
const DATABASE_TIME_LIMIT: Duration = Duration::from_secs(60);
/// Time limit for all queries to a broker together.
const BROKER_TIME_LIMIT: Duration = Duration::from_secs(60);

/// Options of the doctor besides the configuration. Start from [`DoctorOptions::default`].
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct DoctorOptions {
    /// Additional topics to check, besides those of the latest messages and of the inboxes.
    pub topics: BTreeSet<String>,
    /// The expected number of partitions of each topic.
    pub partitions: BTreeMap<String, usize>,
    /// The names of the roles.
    pub roles: facts::RoleNames,
}

impl DoctorOptions {
    message::setters! {
        /// Sets the additional topics to check.
        topics: BTreeSet<String>,
        /// Sets the expected number of partitions of each topic.
        partitions: BTreeMap<String, usize>,
        /// Sets the names of the roles.
        roles: facts::RoleNames,
    }
}

/// Examines a pipeline: its database, its broker, and the inboxes that apply its messages. `beside`
/// is a finding about the database that the caller made. Writes nothing. A place that cannot be
/// reached is a finding. Cancel-safe.
pub async fn examine(
    pipeline: &PipelineConfig,
    inboxes: &[InboxConfig],
    options: &DoctorOptions,
    beside: Option<Finding>,
) -> PipelineReport {
    let (mut checks, sent) = database(pipeline).await;
    if checks.iter().all(|finding| !finding.unavailable) {
        // The rest of the database may be hidden from a role that lacks a right.
        checks.extend(grants(pipeline, &options.roles).await);
    }
    checks.push(history(pipeline.retention));
    checks.extend(scheduled::look(pipeline, DATABASE_TIME_LIMIT).await);
    checks.extend(relays::look(pipeline, DATABASE_TIME_LIMIT).await);
    checks.extend(beside);
    let inboxes: Vec<&InboxConfig> =
        inboxes.iter().filter(|inbox| inbox.is_of(pipeline.name.as_str())).collect();
    let listed = inboxes.iter().flat_map(|inbox| inbox.topics.iter().cloned());
    let recorded = options.partitions.keys().cloned();
    let filter = &pipeline.settings.filter;
    let (sent, others): (Vec<_>, Vec<_>) = sent.into_iter().partition(|topic| filter.can_take_topic(topic));
    if !filter.takes_all() {
        let others = if others.is_empty() { String::from("none") } else { others.join(", ") };
        let measured = format!("publishes {filter}; excluded topics among the latest messages: {others}");
        checks.push(Finding::pass("filter", "pipeline", measured));
    }
    let topics: BTreeSet<String> =
        sent.into_iter().chain(options.topics.iter().cloned()).chain(listed).chain(recorded).collect();
    let topics: Vec<String> = topics.into_iter().collect();
    checks.push(broker_tls(&pipeline.broker));
    let (findings, horizons) = match timeout(BROKER_TIME_LIMIT, broker(pipeline, &topics, options)).await {
        Ok(found) => found,
        Err(_) => {
            let measured = format!("no answer within {} s", BROKER_TIME_LIMIT.as_secs());
            (vec![failed("broker", &measured, None, true)], Vec::new())
        }
    };
    let is_reached =
        findings.iter().all(|finding| finding.check != "connection" || finding.state == CheckState::Pass);
    checks.extend(findings);
    if topics.is_empty() && is_reached {
        let remedy = "no recent message names a topic: pass topics with --topic";
        checks.push(Finding::unknown("topic", "broker", "no topic is known", remedy));
    }
    let inboxes = in_turns(inboxes.into_iter().map(gather::inbox::gather).collect()).await;
    checks.extend(horizon::check(&horizons, &inboxes));
    checks.extend(inbox_order::check(&inboxes));
    if let Some(longest) = longest_wait(pipeline).await {
        checks.extend(horizon::waiting(longest, &inboxes));
    }
    PipelineReport { pipeline: pipeline.name.to_string(), checks }
}

/// Checks the database. Also returns the topics of its latest messages.
async fn database(pipeline: &PipelineConfig) -> (Vec<Finding>, Vec<String>) {
    let reached = |url: &str| {
        let place = crate::redact::url(url);
        Finding::pass("connection", "database", place)
    };
    let url = match pipeline.database.url() {
        Ok(url) => url,
        Err(error) => {
            return (vec![failed("database", &error.to_string(), error.remedy(), false)], Vec::new());
        }
    };
    let url = url.expose_secret();
    let asked = async {
        match dialect_of(url).map_err(LogError::from)? {
            #[cfg(feature = "postgres")]
            Dialect::Postgres => {
                let allow = pipeline.database.options().allow_plaintext;
                let mut told = gather::postgres::gather(url, allow, pipeline.database.schema()).await?;
                told.facts.refused = refusal(pipeline).await?;
                Ok((super::postgres::check(&told.facts), told.topics))
            }
            #[cfg(not(feature = "postgres"))]
            Dialect::Postgres => Err(Unreachable::operator(crate::tables::without_postgres().to_string())),
            Dialect::Sqlite => {
                let mut told = gather::sqlite::gather(url).await?;
                told.facts.refused = refusal(pipeline).await?;
                Ok((sqlite::check(&told.facts), told.topics))
            }
        }
    };
    // A query on a table that a migration has locked does not return until it is unlocked.
    let gathered: Result<(Vec<Finding>, Vec<String>), Unreachable> = timeout(DATABASE_TIME_LIMIT, asked)
        .await
        .unwrap_or_else(|_| Err(Unreachable::late_by(DATABASE_TIME_LIMIT)));
    match gathered {
        Ok((findings, topics)) => ([vec![reached(url)], findings].concat(), topics),
        Err(Unreachable { reason, is_handed_on: true, .. }) => {
            (vec![reached(url), super::common::handed_on(reason)], Vec::new())
        }
        Err(mut error) => {
            // The text of the log's own errors names the lock already.
            if error.unavailable
                && !error.reason.contains("is locked by")
                && let Some(holder) = lock_holder(pipeline).await
            {
                error.reason = format!("{}: {holder}", error.reason);
            }
            error.reason = pipeline.database.named(&error.reason);
            (vec![failed("database", &error.reason, error.remedy(), error.unavailable)], Vec::new())
        }
    }
}

/// Returns the session that locks a table of the outbox, and the remedy.
async fn lock_holder(pipeline: &PipelineConfig) -> Option<String> {
    let options = pipeline.database.options().clone();
    let log = outbox_log::admin::open(pipeline.database.address(), pipeline.source.clone(), options).ok()?;
    log.lock_holder().await.ok()?
}

/// Checks the rights of the roles.
async fn grants(pipeline: &PipelineConfig, names: &facts::RoleNames) -> Vec<Finding> {
    let examined = timeout(DATABASE_TIME_LIMIT, examine_grants(&pipeline.database, names)).await;
    examined.unwrap_or_else(|_| {
        let measured = format!("no answer within {} s", DATABASE_TIME_LIMIT.as_secs());
        vec![failed("database", &measured, None, true)]
    })
}

/// Returns why the relay refuses the database, which is opened as `relay run` does.
async fn refusal(pipeline: &PipelineConfig) -> Result<Option<String>, Unreachable> {
    let options = pipeline.database.options().clone();
    let store = outbox_log::open(pipeline.database.address(), pipeline.source.clone(), options)?;
    match store.reader(&pipeline.name).await {
        Ok(_) => Ok(None),
        Err(error) if error.fault() == message::Fault::Operator => Ok(Some(error.to_string())),
        Err(error) => Err(error.into()),
    }
}

/// Returns how long the message that has waited longest has waited since it was enqueued. Returns
/// `None` on an error, which other checks report.
async fn longest_wait(pipeline: &PipelineConfig) -> Option<Duration> {
    let options = pipeline.database.options().clone();
    let log = outbox_log::admin::open(pipeline.database.address(), pipeline.source.clone(), options).ok()?;
    let own = timeout(DATABASE_TIME_LIMIT, log.relay(&pipeline.name)).await.ok()?.ok()??;
    // A message scheduled too far ahead was already refused when it was enqueued.
    let is_late = |parked: &&ParkedCount| !matches!(parked.state, Scheduled | Discarded);
    let parked = own.parked.iter().filter(is_late).map(|parked| parked.longest).max();
    let waiting = own.backlog.oldest_waiting().map(|(_, age)| age);
    let dead = timeout(DATABASE_TIME_LIMIT, age_of_dead(log.as_ref(), &pipeline.name)).await.ok()?.ok()?;
    Some(parked.max(waiting).max(dead).unwrap_or_default())
}

/// Returns the age of the id of the first dead message. It has been dead for less time than that.
async fn age_of_dead(log: &dyn LogAdmin, name: &RelayName) -> Result<Option<Duration>, LogError> {
    let first = log.list(name, Dead, EntryId::default(), 1).await?.into_iter().next();
    let Some(id) = first.and_then(|entry| entry.message_id.parse::<MessageId>().ok()) else {
        return Ok(None);
    };
    let now = log.desk(name).now().await?;
    Ok(Duration::try_from(now - id.generated_at()).ok())
}

/// Checks how long the outbox keeps published messages.
fn history(retention: Retention) -> Finding {
    let measured = format!("database.retention = {retention}");
    let problem = retention.keep().is_none().then(|| {
        let remedy = "the outbox grows forever: set database.retention, or delete old messages by other \
                      means";
        (CheckState::Warn, remedy.to_owned())
    });
    Finding::unless("history", "database", measured, problem)
}

/// Checks whether the settings protect the connection to the broker.
fn broker_tls(broker: &Broker) -> Finding {
    let (encrypted, verified, local) = match broker {
        #[cfg(feature = "kafka")]
        Broker::Kafka(config) => {
            let mut hosts =
                config.bootstrap_servers.iter().filter_map(|server| Some(server.rsplit_once(':')?.0));
            let verified = config.tls.as_ref().is_some_and(|tls| tls.verify);
            (config.tls.is_some(), verified, hosts.all(is_loopback))
        }
        #[cfg(feature = "rabbitmq")]
        Broker::Rabbitmq(config) => {
            let encrypted = config.url.expose_secret().starts_with("amqps:");
            // Without `allow_plaintext`, only this machine is accepted.
            (encrypted, encrypted, !config.allow_plaintext)
        }
        #[cfg(feature = "sqs")]
        Broker::Sqs(config) => {
            let encrypted = config.endpoint_url.as_ref().is_none_or(|url| url.starts_with("https:"));
            (encrypted, encrypted, !config.allow_plaintext)
        }
        #[cfg(feature = "http")]
        Broker::Http(config) => {
            let encrypted = config.is_encrypted();
            (encrypted, encrypted, !config.allow_plaintext)
        }
        Broker::Given { .. } => return Finding::unknown("tls", "broker", NOT_KNOWN, ASK_THE_SERVICE),
    };
    let (measured, problem) = match (encrypted, verified) {
        (true, true) => ("encrypted, certificate verified", None),
        (true, false) => (
            "encrypted, certificate not verified",
            Some("anyone on the network path can impersonate the broker: set tls.verify = true"),
        ),
        (false, _) if local => ("not encrypted, on this machine", None),
        (false, _) => (
            "not encrypted",
            Some("payloads may cross the network unencrypted: use TLS, and remove allow_plaintext"),
        ),
    };
    let state = if encrypted { CheckState::Warn } else { CheckState::Fail };
    Finding::unless("tls", "broker", measured, problem.map(|remedy| (state, remedy.to_owned())))
}

async fn broker(
    pipeline: &PipelineConfig,
    topics: &[String],
    options: &DoctorOptions,
) -> (Vec<Finding>, Vec<Horizon>) {
    #[cfg(not(feature = "kafka"))]
    let _ = options;
    match &pipeline.broker {
        #[cfg(feature = "kafka")]
        Broker::Kafka(config) => {
            let asked = brokers::kafka::inspect(config, topics);
            let (asked, listeners) = tokio::join!(asked, brokers::kafka::listeners(config));
            // A cluster that does not answer is reported below.
            let listeners = listeners.ok().map(|listeners| super::kafka::listeners(&listeners));
            let (mut findings, horizons) = match asked {
                Ok(facts) => {
                    let mut findings = super::kafka::check(&facts, config, &options.partitions);
                    if pipeline.broker.is_transactional() {
                        findings
                            .extend(transactions(pipeline, config, facts.nodes.unwrap_or_default()).await);
                    }
                    (with_broker(&facts, findings), super::kafka::horizons(&facts))
                }
                Err(error) => (vec![unreachable(pipeline, &error).await], Vec::new()),
            };
            findings.extend(listeners);
            (findings, horizons)
        }
        #[cfg(feature = "rabbitmq")]
        Broker::Rabbitmq(config) => match brokers::rabbitmq::inspect(config, topics).await {
            Ok(facts) => {
                let findings = super::rabbitmq::check(&facts);
                (with_broker(&facts, findings), super::rabbitmq::horizons(&facts))
            }
            Err(error) => (vec![unreachable(pipeline, &error).await], Vec::new()),
        },
        #[cfg(feature = "sqs")]
        Broker::Sqs(config) => match brokers::sqs::inspect(config, topics).await {
            Ok(facts) => {
                let findings = super::sqs::check(&facts, config);
                (with_broker(&facts, findings), super::sqs::horizons(&facts))
            }
            Err(error) => (vec![unreachable(pipeline, &error).await], Vec::new()),
        },
        #[cfg(feature = "http")]
        Broker::Http(config) => match brokers::http::inspect(config, topics).await {
            // An endpoint keeps nothing that it could deliver again.
            Ok(facts) => (super::http::check(&facts, config), Vec::new()),
            Err(error) => (vec![unreachable(pipeline, &error).await], Vec::new()),
        },
        Broker::Given { .. } => {
            let finding = Finding::unknown("connection", "broker", NOT_KNOWN, ASK_THE_SERVICE);
            (vec![finding], Vec::new())
        }
    }
}

/// The finding about a broker that a service gave to its relay, and the remedy.
const NOT_KNOWN: &str = "its settings are not known here";
const ASK_THE_SERVICE: &str = "check the broker in the service that runs the relay";

/// Checks the prerequisites of a pipeline's transactions.
#[cfg(feature = "kafka")]
async fn transactions(
    pipeline: &PipelineConfig,
    config: &brokers::kafka::Config,
    nodes: usize,
) -> Vec<Finding> {
    match brokers::kafka::inspect_transactions(config, pipeline.name.as_str()).await {
        Ok(facts) => {
            let known = known_transaction(pipeline).await;
            super::transactions::check(&facts, known.as_ref(), pipeline.settings.lease_ttl, nodes)
        }
        Err(error) => vec![unreachable(pipeline, &error).await],
    }
}

/// Returns the relay's last transaction, if its database has it. Other checks report an error.
#[cfg(feature = "kafka")]
async fn known_transaction(pipeline: &PipelineConfig) -> Option<super::transactions::Known> {
    let options = pipeline.database.options().clone();
    let log = outbox_log::admin::open(pipeline.database.address(), pipeline.source.clone(), options).ok()?;
    let own = timeout(DATABASE_TIME_LIMIT, log.relay(&pipeline.name)).await.ok()?.ok()??;
    let transaction = own.cursor.transaction?;
    let topic = brokers::kafka::marks_topic(&transaction.log, &own.relay);
    Some(super::transactions::Known { topic, number: transaction.number })
}

/// Adds the findings that every broker's answer allows. HTTP endpoints are many and answer for
/// themselves only.
#[cfg(any(feature = "kafka", feature = "rabbitmq", feature = "sqs"))]
fn with_broker<D>(told: &brokers::BrokerFacts<D>, findings: Vec<Finding>) -> Vec<Finding> {
    let skew =
        |clock: brokers::ClockReading| super::clock::Skew { by: clock.skew, uncertainty: clock.uncertainty };
    let mut checks = vec![Finding::pass("connection", "broker", "reachable")];
    checks.extend(told.clock.map(|clock| super::clock::check("broker", skew(clock))));
    checks.extend(findings);
    checks
}

/// Describes why a broker does not answer. A session opened as the relay opens it has a better
/// error.
async fn unreachable(pipeline: &PipelineConfig, error: &brokers::InspectError) -> Finding {
    match reach_broker(pipeline).await {
        finding if finding.state == CheckState::Fail => finding,
        _ => failed("broker", &error.reason, error.remedy(), error.fault.is_temporary()),
    }
}

#[cfg(test)]
mod tests {
    use time::OffsetDateTime;

    use super::*;
    use crate::sample::Sample;

    /// Goal: a dead message is seen to become too old for its inbox before it is requeued, however
    /// late it died. Oracle: the age of its id.
    #[tokio::test]
    async fn a_dead_message_has_waited_since_it_was_enqueued() {
        const DAYS: Duration = Duration::from_secs(12 * 86_400);
        let sample = Sample::open().await;
        sample
            .run(r#"INSERT INTO outbox_relay (relay, epoch, cursor) VALUES ('orders', 1, '{"base":"9","progress":null}')"#)
            .await;
        assert_eq!(longest_wait(&sample.pipeline).await, Some(Duration::ZERO));
        let id = MessageId::derived(OffsetDateTime::now_utc() - DAYS, ["order-7"]).unwrap();
        sample
            .run(&format!(
                "INSERT INTO outbox_exception (relay, id, message_id, topic, state, fault, attempts) \
                 VALUES ('orders', 7, '{id}', 'orders', 'dead', 'message', 10)"
            ))
            .await;
        let longest = longest_wait(&sample.pipeline).await.unwrap();
        assert!(longest >= DAYS && longest < DAYS + Duration::from_secs(3_600), "{longest:?}");
    }

    #[test]
    fn an_outbox_that_grows_forever_is_reported() {
        assert_eq!(history(Retention::default()).state, CheckState::Pass);
        assert_eq!(history(Retention::Off).state, CheckState::Warn);
    }
}
