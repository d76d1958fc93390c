//! The broker's answers about the queues of a topic. With a management API they include all
//! settings; over AMQP alone they only show that the queues exist. Read-only.

use lapin::ExchangeKind;
use lapin::options::{ExchangeDeclareOptions, QueueDeclareOptions};
use lapin::types::{FieldTable, ShortString};
use message::{Fault, SubscriptionError};
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::config::{Config, Unroutable};
use super::connection::Connection;
use super::endpoint::Endpoint;
use super::facts::{QueueFacts, TopicFacts};
use super::fault;
use super::management::Management;
use super::publisher::GOODBYE;
use super::unrouted::Rules;
use crate::inspect::{BrokerFacts, InspectError, Inspected};

/// Inspects these topics. Cancel-safe.
///
/// # Errors
/// [`InspectError`] when the broker is unreachable, or credentials or settings are wrong.
pub async fn inspect(config: &Config, topics: &[String]) -> Result<BrokerFacts<TopicFacts>, InspectError> {
    // Connects even where the management API answers, because messages go over AMQP.
    let endpoint = Endpoint::new(config).map_err(|error| InspectError::operator(error.to_string()))?;
    let connection = endpoint.open("doctor").await.map_err(SubscriptionError::from)?;
    let management = Management::new(config).await?;
    if let Some(management) = management {
        connection.say_goodbye(Instant::now() + GOODBYE).await;
        let (exchange, topics) = (config.exchange.clone(), topics.to_vec());
        let asked = spawn_blocking(move || management.inspect(&exchange, &topics)).await;
        let facts = asked
            .map_err(|error| InspectError::broker(format!("asking rabbitmq was interrupted: {error}")))??;
        return Ok(with_rules(facts, &Rules::of(config)));
    }
    let mut inspected = Vec::new();
    for topic in topics {
        let facts = look(&connection, &config.exchange, topic).await.map_err(|error| InspectError {
            // A missing queue is the operator's fault, however a subscription would treat it.
            fault: if error.to_string().contains("NOT_FOUND") { Fault::Operator } else { error.fault() },
            reason: error.to_string(),
        });
        inspected.push(Inspected { topic: topic.clone(), facts });
    }
    connection.say_goodbye(Instant::now() + GOODBYE).await;
    let facts = BrokerFacts { version: None, nodes: None, clock: None, alarms: None, topics: inspected };
    Ok(with_rules(facts, &Rules::of(config)))
}

/// Adds what the settings say about messages that no queue takes.
fn with_rules(mut facts: BrokerFacts<TopicFacts>, rules: &Rules) -> BrokerFacts<TopicFacts> {
    for Inspected { topic, facts } in &mut facts.topics {
        if let Ok(facts) = facts {
            facts.passes = rules.find(topic) == Unroutable::Pass;
        }
    }
    facts
}

/// Declares passively. An error closes the channel, so each query has its own.
async fn look(connection: &Connection, exchange: &str, topic: &str) -> Result<TopicFacts, SubscriptionError> {
    let channel = connection.channel().await.map_err(fault::of_subscription)?;
    let short = |name: &str| {
        ShortString::try_new(name).map_err(|error| {
            SubscriptionError::operator(format!("the name {name:?} cannot be used: {error}"))
        })
    };
    if !exchange.is_empty() {
        let passive = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
        let kind = ExchangeKind::Topic;
        let found = channel.exchange_declare(short(exchange)?, kind, passive, FieldTable::default());
        connection.ask(found).await.map_err(fault::of_subscription)?;
        connection.finish(&channel).await;
        return Ok(TopicFacts::default());
    }
    let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let found = channel.queue_declare(short(topic)?, passive, FieldTable::default());
    connection.ask(found).await.map_err(fault::of_subscription)?;
    connection.finish(&channel).await;
    let queue = QueueFacts { queue: topic.to_owned(), settings: None };
    Ok(TopicFacts { queues: Some(vec![queue]), ..TopicFacts::default() })
}
