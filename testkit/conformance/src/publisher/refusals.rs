//! Refusals, which affect only their scope.

use std::sync::Arc;

use message::{Fault, FaultScope, Message, PublishError, Topic};

use crate::facts::Order;
use crate::hostile::NAMES;
use crate::{Broker, Capabilities, Failure, Outcome, relaying, sample};

const KEYS: usize = 10;
const PER_KEY: i64 = 6;

/// Goal: a missing topic is the operator's to repair, is named, and stops no other topic, even if
/// its messages come among others. Oracle: the verdicts; the records of the other topic.
pub(crate) async fn missing_topic(broker: Arc<dyn Broker>, capabilities: Capabilities) -> Outcome {
    let (there, missing) = (broker.topic_name("there"), broker.topic_name("missing"));
    broker.create_topic(&there).await?;
    let lost = vec![sample::order(&missing, "key-3", 0)?, sample::order(&missing, "key-4", 0)?];
    for (error, at) in refused_alone(broker.as_ref(), capabilities.order, &there, lost).await?.iter().zip(1..)
    {
        assert_eq!((error.fault(), error.scope()), (Fault::Operator, FaultScope::Topic), "{at}: {error}");
        assert!(error.to_string().contains(&missing), "the topic is not named: {error}");
    }
    Ok(())
}

/// Goal: any topic name is only a name: not a path, a pattern, an address, or a topic of another
/// service. A bad name stops no other messages. Oracle: each message is refused separately; the
/// records of the other topics.
pub(crate) async fn hostile_topics(broker: Arc<dyn Broker>, capabilities: Capabilities) -> Outcome {
    let there = broker.topic_name("there");
    broker.create_topic(&there).await?;
    let elsewhere = [format!("../{there}"), format!("{there}/../{there}"), format!("{there}*")];
    let names = NAMES.into_iter().chain(["*", "#", "__consumer_offsets_", "http://127.0.0.1:1/queue"]);
    let names = names.map(String::from).chain(elsewhere).filter(|name| Topic::new(name.as_str()).is_ok());
    let hostile = names.map(|name| sample::order(&name, "key-3", 0)).collect::<Result<Vec<_>, _>>()?;
    assert!(hostile.len() >= 5, "{}", hostile.len());
    for (error, message) in refused_alone(broker.as_ref(), capabilities.order, &there, hostile.clone())
        .await?
        .iter()
        .zip(&hostile)
    {
        assert_ne!(error.scope(), FaultScope::Session, "{}: {error}", message.topic);
    }
    Ok(())
}

/// Goal: a message that is too large is itself at fault, the error names its size and the limit,
/// and no other message is stopped. Oracle: the verdict; the records of the other messages.
pub(crate) async fn oversize(broker: Arc<dyn Broker>, capabilities: Capabilities) -> Outcome {
    let bytes = broker.oversize_bytes().ok_or("no limit to go beyond")?;
    let topic = broker.topic_name("size");
    broker.create_topic(&topic).await?;
    let mut large = sample::order(&topic, "key-3", 0)?;
    large.payload = format!(r#""{}""#, "x".repeat(bytes)).into();
    let size = large.payload.len();
    let errors = refused_alone(broker.as_ref(), capabilities.order, &topic, vec![large]).await?;
    let error = &errors[0];
    assert_eq!((error.fault(), error.scope()), (Fault::Message, FaultScope::Message), "{error}");
    let numbers: Vec<usize> = error
        .to_string()
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|digits| digits.parse().ok())
        .collect();
    let named = |range: std::ops::Range<usize>| numbers.iter().any(|number| range.contains(number));
    // The error names the size including the envelope, and a limit below it.
    assert!(named(size..size + 2_000), "the size of about {size} bytes is not named: {error}");
    assert!(named(bytes / 2..size), "the limit is not named: {error}");
    Ok(())
}

/// Sends these messages among others, some with the same keys. Checks that they are refused and
/// that all others are stored. Returns the verdicts of the refused messages.
async fn refused_alone(
    broker: &dyn Broker,
    order: Order,
    topic: &str,
    refused: Vec<Message>,
) -> Result<Vec<PublishError>, Failure> {
    let mut messages = sample::orders(topic, KEYS, PER_KEY)?;
    let others = messages.clone();
    let middle = messages.len() / 2;
    let culprits: Vec<usize> = (middle..middle + refused.len()).collect();
    messages.splice(middle..middle, refused);
    let sent = relaying::send(broker.connector()?.as_ref(), &messages).await?;
    let mut verdicts = sent.refused;
    verdicts.sort_by_key(|(number, _)| *number);
    let blamed: Vec<usize> = verdicts.iter().map(|(number, _)| *number).collect();
    assert_eq!(blamed, culprits, "others were refused: {verdicts:?}");
    let payloads = broker.payloads(topic, others.len()).await?;
    sample::assert_holds(&payloads, &others, order, sent.sessions == 1)?;
    Ok(verdicts.into_iter().map(|(_, error)| error).collect())
}
