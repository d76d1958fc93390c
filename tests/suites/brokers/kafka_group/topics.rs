//! Topics that are recreated or missing, for a group and for a publisher.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::time::Duration;

use brokers::kafka::{Admin, Connector, GroupConfig, Start, Subscriber, TopicPlan};
use harness::plain::kafka::{Kafka, Reading};
use message::{
    Connector as _, Fault, FaultScope, Message, MessageId, Publisher, Receipts, Submission, Ticket,
};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::message::Message as _;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use tests::{Backend, Failure, Outcome, Stage, eventually, eventually::when};
use tokio::sync::{mpsc, watch};

use conformance::consuming::{BATCH, WAIT, ids, settle, within};
use conformance::facts::Order;
use conformance::{relaying, sample};

use super::member::{Group, Member};

/// Time that the handler takes for each message, so that the topic is recreated before the backlog
/// is done.
const SLOWLY: Duration = Duration::from_millis(10);

/// Goal: a topic is deleted and recreated under a member that works on a backlog. It is read from
/// its first record, although by then it has more records than the member had read of the old one.
/// Oracle: the ids that are handled, over all subscriptions.
pub(crate) async fn made_anew(stage: Stage) -> Outcome {
    let group = Group::open(&stage, 1).await?;
    let mut member = group.join(Start::Earliest).await?;
    // Far more than a member prefetches: librdkafka's queue is full of old records.
    group.publish(100).await?;
    let first = member.subscription.receive(BATCH, conformance::session::PATIENCE).await?;
    settle(&mut member.subscription, &first).await?;
    let (sent, wanted) = watch::channel(BTreeSet::new());
    let remake = async {
        remake(&group).await?;
        sent.send(group.publish(150).await?)?;
        Ok(())
    };
    tokio::try_join!(remake, again_and_again(member, wanted))?;
    Ok(())
}

/// Goal: positions that a member commits before it notices that the topic was recreated mislead no
/// later member. Oracle: the ids that the later one handles.
pub(crate) async fn made_anew_unnoticed(stage: Stage) -> Outcome {
    let group = Group::open(&stage, 1).await?;
    let mut member = group.join(Start::Earliest).await?;
    member.handle(&group.publish(1).await?).await?;
    member.close().await?;
    let old = committed(&group).await?;
    assert!(!old.metadata.is_empty() && old.offset > 0, "{old:?}");
    remake(&group).await?;
    let second = group.publish(2).await?;
    commit(&group, old).await?;
    let mut member = group.join(Start::Earliest).await?;
    member.handle(&second).await?;
    member.close().await
}

/// A publishing session and its receipts.
struct Session {
    publisher: Box<dyn Publisher>,
    received: mpsc::UnboundedReceiver<message::Receipt>,
}

impl Session {
    /// Publishes a message. Returns its outcome.
    async fn publish(&mut self, message: &Message) -> Result<Result<(), message::PublishError>, Failure> {
        let submission = Submission { ticket: Ticket(1), message: message.clone().into() };
        self.publisher.submit(vec![submission]).await;
        Ok(self.received.recv().await.ok_or("no receipt")?.outcome)
    }
}

/// Goal: a topic is deleted and recreated under a publishing session that sends nothing meanwhile.
/// The new topic does not know this producer and would accept any message as its first, so the
/// session ends with this reason, and the next one publishes everything in order. Oracle: the end
/// of the session and the answer to what is submitted afterwards; the records of the new topic, as
/// a plain client reads them.
pub(crate) async fn made_anew_under_a_publisher(stage: Stage) -> Outcome {
    const MESSAGES: i64 = 20;
    let group = Group::open(&stage, 1).await?;
    let connector = Connector::new(group.config.clone())?;
    let (receipts, received) = Receipts::channel();
    let mut session = Session { publisher: connector.connect(receipts).await?, received };
    let messages = sample::orders(&group.topic, 1, MESSAGES)?;
    session.publish(&messages[0]).await??;
    remake(&group).await?;
    let ended = within("the session ends", async {
        session.publisher.ended().await;
        Ok(())
    });
    ended.await?;
    let error = session.publish(&messages[0]).await?.err().ok_or("a session that is over has confirmed")?;
    assert_eq!((error.fault(), error.scope()), (Fault::Broker, FaultScope::Session), "{error}");
    assert!(error.to_string().contains("was deleted and recreated"), "{error}");

    let sent = relaying::send(&connector, &messages).await?;
    assert!(sent.refused.is_empty(), "{:?}", sent.refused);
    let reading = Reading::default().at_least(messages.len());
    let records = Kafka::new(Backend::Kafka.address()?).read_all(&group.topic, reading).await?;
    let payloads: Vec<Vec<u8>> =
        records.iter().map(|record| record.payload().unwrap_or_default().to_vec()).collect();
    sample::assert_holds(&payloads, &messages, Order::PerKey, sent.sessions == 1)
}

/// Deletes the topic of the group and recreates it.
async fn remake(group: &Group) -> Outcome {
    let admin = Admin::new(&group.config)?;
    admin.delete_topics(&[&group.topic]).await?;
    // Deletion ends some time after the answer: until then a broker answers for the old topic.
    eventually("the old topic is gone", || async {
        Ok(when(admin.topics().await?.iter().all(|(name, _)| *name != group.topic)))
    })
    .await?;
    eventually("the name is free again", || async {
        let made = admin.create_topics(&[TopicPlan::new(&group.topic, 1)]).await;
        Ok(when(made.is_ok() && admin.topics().await?.contains(&(group.topic.clone(), 1))))
    })
    .await?;
    // Its name is known before its partition takes messages.
    eventually("the partition has a leader", || async {
        let (consumer, topic) = (outsider(group)?, group.topic.clone());
        let asked = move || consumer.fetch_watermarks(&topic, 0, conformance::session::PATIENCE).is_ok();
        Ok(when(tokio::task::spawn_blocking(asked).await?))
    })
    .await
}

/// The committed offset of a group in the first partition of its topic.
#[derive(Debug)]
struct Committed {
    offset: i64,
    metadata: String,
}

async fn committed(group: &Group) -> Result<Committed, Failure> {
    let (consumer, topic) = (outsider(group)?, group.topic.clone());
    let asked = tokio::task::spawn_blocking(move || -> Result<Committed, Failure> {
        let mut list = TopicPartitionList::new();
        list.add_partition(&topic, 0);
        let list = consumer.committed_offsets(list, conformance::session::PATIENCE)?;
        let found = list.find_partition(&topic, 0).ok_or("no partition in the answer")?;
        let Offset::Offset(offset) = found.offset() else { return Err("nothing is committed".into()) };
        Ok(Committed { offset, metadata: found.metadata().to_owned() })
    });
    asked.await?
}

/// Commits for the group, which has no members.
async fn commit(group: &Group, old: Committed) -> Outcome {
    let (consumer, topic) = (outsider(group)?, group.topic.clone());
    let committed = tokio::task::spawn_blocking(move || -> Outcome {
        let mut list = TopicPartitionList::new();
        let mut first = list.add_partition(&topic, 0);
        first.set_offset(Offset::Offset(old.offset))?;
        first.set_metadata(&old.metadata);
        Ok(consumer.commit(&list, CommitMode::Sync)?)
    });
    committed.await?
}

/// Returns a client of the group that does not join it.
fn outsider(group: &Group) -> Result<BaseConsumer, Failure> {
    let servers = Backend::Kafka.address()?;
    Ok(ClientConfig::new().set("bootstrap.servers", servers).set("group.id", &group.name).create()?)
}

/// Handles messages until all of these are handled, and resubscribes as often as needed. It works
/// slowly until the first subscription is lost, so that a backlog remains by then.
async fn again_and_again(member: Member, wanted: watch::Receiver<BTreeSet<MessageId>>) -> Outcome {
    let Member { subscriber, mut subscription } = member;
    let mut handled = BTreeSet::new();
    let is_known = || !wanted.borrow().is_empty();
    let mut is_first = true;
    let all = within("everything is handled", async {
        while !is_known() || !handled.is_superset(&wanted.borrow()) {
            let max = if is_first { NonZeroUsize::MIN } else { BATCH };
            let turn = async {
                let deliveries = subscription.receive(max, WAIT).await?;
                if is_first {
                    tokio::time::sleep(SLOWLY).await;
                }
                settle(&mut subscription, &deliveries).await?;
                Ok::<_, Failure>(ids(&deliveries))
            };
            match turn.await {
                Ok(ids) => handled.extend(ids),
                Err(_) => {
                    subscription = subscriber.subscribe().await?;
                    is_first = false;
                }
            }
        }
        Ok(())
    });
    let outcome = all.await;
    let missing = wanted.borrow().difference(&handled).count();
    outcome.map_err(|failure| format!("{failure}; {missing} of {} are missing", wanted.borrow().len()))?;
    Ok(subscription.close().await?)
}

/// Goal: a missing topic does not keep the subscription from reading its other topics. The status
/// names the topic while it is missing, and it is read once it exists. Oracle: the ids that one
/// subscription handles.
pub(crate) async fn missing(stage: Stage) -> Outcome {
    let group = Group::open(&stage, 1).await?;
    let later = stage.unique("later");
    let mut both = GroupConfig::new(&group.name, [&group.topic, &later]);
    both.session_timeout_ms = 6_000;
    let subscriber = Subscriber::new(group.config.clone(), both)?;
    let subscription = subscriber.subscribe().await?;
    let mut member = Member { subscriber, subscription };
    member.handle(&group.publish(1).await?).await?;
    member.until("the missing topic is named", |now| now.unavailable == [later.as_str()]).await?;
    let other = Group { name: group.name.clone(), ..Group::called(&stage, &later, 1).await? };
    member.handle(&other.publish(1).await?).await?;
    member.until("nothing is missing any more", |now| now.unavailable.is_empty()).await?;
    member.close().await
}
