//! The quick checks: whether a pipeline's database and broker admit the relay.

use std::time::Duration;

#[cfg(feature = "http")]
use message::{Fault, FaultScope};
use message::{PublishError, Receipts};
#[cfg(feature = "postgres")]
use secrecy::ExposeSecret as _;
use tokio::time::timeout;

use super::facts::UnreadInbox;
use super::report::Finding;
use crate::{Broker, InboxConfig, PipelineConfig, outage};

/// Time limit for each of them. If the steps of a broker may take longer, their limit applies.
const TIME_LIMIT: Duration = Duration::from_secs(30);
const CHECK: &str = "connection";

/// Opens the database and a session with the broker as `relay run` does, and closes them. Publishes
/// nothing. Cancel-safe.
pub async fn reach(pipeline: &PipelineConfig) -> Vec<Finding> {
    let (database, broker) = tokio::join!(reach_database(pipeline), reach_broker(pipeline));
    let findings = vec![database, broker];
    #[cfg(feature = "kafka")]
    let findings = [findings, unreached_listeners(pipeline).await.into_iter().collect()].concat();
    #[cfg(feature = "postgres")]
    let findings = [findings, admitted(pipeline).await].concat();
    findings
}

/// Returns the finding for Kafka brokers that a bootstrap server names and that this machine cannot
/// reach.
#[cfg(feature = "kafka")]
async fn unreached_listeners(pipeline: &PipelineConfig) -> Option<Finding> {
    let Broker::Kafka(config) = &pipeline.broker else { return None };
    // Another finding reports a cluster that does not answer.
    let listeners = brokers::kafka::listeners(config).await.ok()?;
    Some(super::kafka::listeners(&listeners))
        .filter(|finding| finding.state == super::report::CheckState::Fail)
}

/// Returns the reasons why the relay could not work in a database that admits it. It may lack the
/// right to write, or a pooler may share sessions, which the first connection cannot detect.
#[cfg(feature = "postgres")]
async fn admitted(pipeline: &PipelineConfig) -> Vec<Finding> {
    let Ok(url) = pipeline.database.url() else { return Vec::new() };
    let allow_plaintext = pipeline.database.options().allow_plaintext;
    let shared = super::gather::postgres::has_shared_sessions(url.expose_secret(), allow_plaintext);
    // Other findings report a database that is unreachable, has no tables or is not PostgreSQL.
    let Ok(is_shared) = shared.await else { return Vec::new() };
    let lacking = super::grants::lacking_of_relay(&pipeline.database).await;
    lacking.into_iter().chain(is_shared.then(|| super::common::pooler(true))).collect()
}

/// Opens the database as `relay run` does, and closes it. Cancel-safe.
pub async fn reach_database(pipeline: &PipelineConfig) -> Finding {
    let options = pipeline.database.options().clone();
    let store = match outbox_log::open(pipeline.database.address(), pipeline.source.clone(), options) {
        Ok(store) => store,
        Err(error) => {
            return failed("database", &error.to_string(), error.remedy(), error.fault().is_temporary());
        }
    };
    match timeout(TIME_LIMIT, store.reader(&pipeline.name)).await {
        Ok(Ok(_)) => Finding::pass(CHECK, "database", store.origin()),
        Ok(Err(error)) => {
            let named = |text: &str| pipeline.database.named(text);
            let told = format!("{}: {}", store.origin(), named(&outage::told(&error.to_string())));
            let remedy = error.remedy().map(named);
            failed("database", &told, remedy.as_deref(), error.fault().is_temporary())
        }
        Err(_) => late("database", store.origin(), TIME_LIMIT),
    }
}

/// Opens a session with the broker as `relay run` does, and closes it. Publishes nothing.
/// Cancel-safe.
pub async fn reach_broker(pipeline: &PipelineConfig) -> Finding {
    let connector = match pipeline.broker.connector() {
        Ok(connector) => connector,
        Err(error) => return failed("broker", &error.to_string(), error.remedy(), false),
    };
    // Nothing is submitted, so no receipt arrives.
    let (receipts, _unused) = Receipts::channel();
    let limit = TIME_LIMIT.max(connector.connect_max());
    let opening = async {
        drop(connector.connect(receipts).await?);
        try_configured(&pipeline.broker).await
    };
    match timeout(limit, opening).await {
        Ok(Ok(untried)) => Finding::pass(CHECK, "broker", format!("{}{untried}", connector.destination())),
        Ok(Err(error)) => {
            let told = format!("{}: {error}", connector.destination());
            failed("broker", &told, error.remedy(), error.fault().is_temporary())
        }
        Err(_) => late("broker", connector.destination(), limit),
    }
}

/// Tries the HTTP endpoints of the settings where messages name others: then a session does not.
/// Returns what remains untried.
#[cfg(feature = "http")]
async fn try_configured(broker: &Broker) -> Result<&'static str, PublishError> {
    let Broker::Http(config) = broker else { return Ok("") };
    if !config.names_endpoints() {
        return Ok("");
    }
    let connector = brokers::http::Connector::new(config)
        .map_err(|error| PublishError::new(Fault::Operator, FaultScope::Session, error.to_string()))?;
    connector.try_configured().await?;
    Ok(" (the URLs that messages name were not tried)")
}

#[cfg(not(feature = "http"))]
async fn try_configured(_: &Broker) -> Result<&'static str, PublishError> {
    Ok("")
}

/// Reads the inbox of `[[verify.inbox]]`. A failure is only a warning: the relay publishes without
/// the inbox. Cancel-safe.
pub async fn reach_inbox(inbox: &InboxConfig) -> Finding {
    let subject = format!("inbox {}", inbox.consumer);
    match super::gather::inbox::gather(inbox).await.remembers {
        Ok(_) => Finding::pass(CHECK, subject, "reachable"),
        Err(UnreadInbox { reason, .. }) => {
            let remedy =
                "check url and rights of this [[verify.inbox]]: verify, dead and show cannot read it";
            Finding::warn(CHECK, subject, reason, remedy)
        }
    }
}

/// Returns the finding for a failed connection. `told` ends with the error, and the error with the
/// remedy if it has one.
pub(super) fn failed(subject: &str, told: &str, remedy: Option<&str>, unavailable: bool) -> Finding {
    let without = |remedy: &str| told.strip_suffix(remedy)?.strip_suffix("; ");
    let measured = remedy.and_then(without).unwrap_or(told);
    let remedy = remedy.unwrap_or(if unavailable {
        "check the server and the network in between"
    } else {
        "correct the setting that the error names, or the file or server that it refers to"
    });
    let waits = if unavailable { "; the relay keeps waiting for it" } else { "" };
    Finding::fail(CHECK, subject, measured, format!("{remedy}{waits}")).because_unavailable(unavailable)
}

fn late(subject: &str, place: &str, limit: Duration) -> Finding {
    let measured = format!("{place}: no answer within {} s", limit.as_secs());
    failed(subject, &measured, None, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: an endpoint of the settings to which no request may go is found although messages name
    /// others, which are not tried. Oracle: the error, and what is said to be untried.
    #[cfg(feature = "http")]
    #[tokio::test]
    async fn an_endpoint_of_the_settings_is_tried_although_messages_name_others() {
        let naming = brokers::http::Config::default()
            .endpoint_header("webhook-url")
            .hosts([(String::from("hooks.example.com"), brokers::http::AllowedHost::default())].into());
        let untried = try_configured(&Broker::Http(Box::new(naming.clone()))).await.unwrap();
        assert!(untried.contains("messages name were not tried"), "{untried}");
        let forbidden = naming.url("http://127.0.0.1:1/s3cret");
        let error = try_configured(&Broker::Http(Box::new(forbidden))).await.unwrap_err();
        assert!(error.to_string().contains("127.0.0.1 resolves to 127.0.0.1"), "{error}");
        assert!(!error.to_string().contains("s3cret"), "{error}");
    }

    #[test]
    fn the_remedy_is_what_the_error_says_to_do() {
        for (told, unavailable, measured, remedy) in [
            ("login refused (a; b); check the password", false, "login refused (a; b)", "check the password"),
            ("no answer; look there", true, "no answer", "look there; the relay keeps waiting for it"),
            (
                "kafka.sasl.password_file: /x: missing",
                false,
                "kafka.sasl.password_file: /x: missing",
                "correct the setting",
            ),
            ("no answer within 30 s", true, "no answer within 30 s", "check the server"),
        ] {
            let error = PublishError::session_lost(told);
            let finding = failed("broker", told, error.remedy(), unavailable);
            assert_eq!((finding.measured.as_str(), finding.unavailable), (measured, unavailable));
            assert!(finding.remedy.is_some_and(|told| told.starts_with(remedy)), "{told}");
        }
    }
}
