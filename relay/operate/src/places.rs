//! The outboxes and inboxes for an operator's request.

use std::collections::BTreeSet;
use std::sync::Arc;

use brokers::InvalidSetting;
use futures_util::future::join_all;
use futures_util::{StreamExt as _, stream};
use inbox::{ConsumerName, Tenant};
use message::{Connector, Splitter};
use migrations::Identifier;
use outbox_log::admin::{Desk, LogAdmin};
use outbox_log::entries::{self, Labels, LogEntries};
use outbox_log::{LogOptions, RelayName, RowLimit};
use secrecy::SecretString;
use time::OffsetDateTime;
use tokio::sync::{Mutex, MutexGuard};

use super::error::OperateError;
use super::inbox_database::InboxDatabase;
use super::tables::Tables;
use crate::settings::{InboxConfig, PipelineConfig};
use engine::{Chunking, DeadPolicy, Filter};

/// The outbox of a pipeline. Queries of parked entries and decisions share one session; each of the
/// others opens its own connection.
#[derive(Clone)]
pub struct OutboxPlace {
    /// The pipeline.
    pub pipeline: RelayName,
    pub(crate) log: Arc<dyn LogAdmin>,
    /// The session for parked entries, opened with its first call. Clones share it.
    desk: Arc<Mutex<Box<dyn Desk>>>,
    /// Its entries.
    pub entries: Arc<dyn LogEntries>,
    /// The entries that are its own.
    pub(crate) filter: Filter,
    /// Maximum size of a row that it reads.
    pub(crate) row_limit: RowLimit,
    /// Whether a key waits for its dead messages.
    pub(crate) dead_policy: DeadPolicy,
    connect: Connect,
    chunking: Option<Splitter>,
}

/// Creates a connector to a broker. Does not connect yet.
type Connect = Arc<dyn Fn() -> Result<Arc<dyn Connector>, InvalidSetting> + Send + Sync>;

impl OutboxPlace {
    /// Returns its session for parked entries, once no other call uses it. A caller that still
    /// holds one must not ask again: not even through another method that queries parked entries.
    pub(crate) async fn desk(&self) -> MutexGuard<'_, Box<dyn Desk>> {
        self.desk.lock().await
    }

    /// Returns the time of its database.
    pub(crate) async fn now(&self) -> Result<OffsetDateTime, OperateError> {
        Ok(self.desk().await.now().await?)
    }

    /// Returns whether the pipeline leaves an entry to others.
    pub(crate) fn leaves_out(&self, topic: &str, labels: &Labels) -> bool {
        !self.filter.takes(&(topic, labels))
    }

    /// Returns a connector to its broker that splits large messages as the relay does.
    pub(crate) fn connector(&self) -> Result<Arc<dyn Connector>, OperateError> {
        let connector = (self.connect)()?;
        Ok(match self.chunking {
            Some(splitter) => Arc::new(Chunking::new(connector, splitter)),
            None => connector,
        })
    }

    /// Returns the destination to which it publishes.
    pub(crate) fn destination(&self) -> String {
        match (self.connect)() {
            Ok(connector) => connector.destination().to_owned(),
            Err(error) => error.to_string(),
        }
    }
}

/// The inbox of a consumer, or of all consumers of a database if none is named.
#[derive(Clone)]
pub(crate) struct InboxPlace {
    pub(crate) consumer: Option<ConsumerName>,
    pub(crate) scope: Option<Tenant>,
    /// The pipelines whose messages it applies; if empty, all.
    pub(crate) pipelines: BTreeSet<String>,
    /// The topics that it applies; if empty, all.
    pub(crate) topics: BTreeSet<String>,
    pub(crate) database: Arc<InboxDatabase>,
    /// The location of the database, without secrets.
    pub(crate) location: String,
}

impl InboxPlace {
    /// Connects to the inbox of a configured consumer.
    async fn open(inbox: &InboxConfig) -> Result<Self, OperateError> {
        let tables = inbox.tables()?;
        let location = tables.location();
        let database = Arc::new(InboxDatabase::open(&tables).await?);
        Ok(Self {
            consumer: Some(inbox.consumer.clone()),
            scope: inbox.scope.clone(),
            pipelines: inbox.pipelines.clone(),
            topics: inbox.topics.clone(),
            database,
            location,
        })
    }

    /// Returns its consumer, or the location of the database if it is of all consumers.
    pub(crate) fn name(&self) -> String {
        self.consumer.as_ref().map_or_else(|| self.location.clone(), |name| name.as_str().to_owned())
    }

    /// Returns whether every row of the other place belongs to it as well.
    fn covers(&self, other: &Self) -> bool {
        self.location == other.location
            && (self.consumer.is_none() || self.consumer == other.consumer)
            && (self.scope.is_none() || self.scope == other.scope)
    }

    /// Returns whether it applies messages of a pipeline.
    pub(crate) fn is_of(&self, pipeline: &str) -> bool {
        self.pipelines.is_empty() || self.pipelines.contains(pipeline)
    }

    /// Returns whether it applies messages of a topic.
    pub(crate) fn takes_topic(&self, topic: &str) -> bool {
        self.topics.is_empty() || self.topics.contains(topic)
    }

    /// Returns whether rows of this consumer and scope belong to it.
    pub(crate) fn holds(&self, consumer: &str, scope: &str) -> bool {
        self.consumer.as_ref().is_none_or(|name| name.as_str() == consumer)
            && self.scope.as_ref().is_none_or(|name| name.as_str() == scope)
    }
}

/// Maximum number of inboxes to which one request connects at once.
const OPENING_MAX: usize = 32;

/// The outboxes and inboxes for a request. Some may be away: queries then return results of the
/// others, and decisions are refused.
#[derive(Default)]
pub struct Places {
    pub(crate) outboxes: Vec<OutboxPlace>,
    pub(crate) inboxes: Vec<InboxPlace>,
    /// The errors of all of them that are away, also of inboxes.
    pub(crate) away: Vec<OperateError>,
    /// The configured inboxes among these.
    pub(crate) inboxes_away: Vec<InboxAway>,
}

/// A configured inbox that does not answer.
pub(crate) struct InboxAway {
    inbox: InboxConfig,
    pub(crate) error: OperateError,
}

impl InboxAway {
    /// Returns whether it applies messages of one of these pipelines.
    pub(crate) fn is_of_any<'a>(&self, pipelines: impl IntoIterator<Item = &'a RelayName>) -> bool {
        pipelines.into_iter().any(|pipeline| self.inbox.is_of(pipeline.as_str()))
    }
}

impl Places {
    /// Creates an empty set of places.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of places, including those that do not answer.
    pub(crate) fn count(&self) -> usize {
        self.outboxes.len() + self.inboxes.len() + self.away.len()
    }

    /// Returns the inboxes with their numbers, without those whose rows belong to another one: the
    /// configuration may name one database several times.
    pub(crate) fn distinct_inboxes(&self) -> impl Iterator<Item = (usize, &InboxPlace)> {
        let is_distinct = |(number, place): &(usize, &InboxPlace)| {
            let mut others = self.inboxes.iter().enumerate().filter(|(other, _)| other != number);
            !others.any(|(other, it)| it.covers(place) && (other < *number || !place.covers(it)))
        };
        self.inboxes.iter().enumerate().filter(is_distinct)
    }

    /// Returns the places without inboxes whose rows belong to another one.
    #[must_use]
    pub(crate) fn distinct(mut self) -> Self {
        let inboxes = self.distinct_inboxes().map(|(_, place)| place.clone()).collect();
        self.inboxes = inboxes;
        self
    }

    /// Adds the outbox of a pipeline. Does not connect yet.
    #[must_use]
    pub fn outbox(mut self, pipeline: &PipelineConfig) -> Self {
        let options = pipeline.database.options().clone();
        let broker = pipeline.broker.clone();
        match entries::open(pipeline.database.address(), pipeline.source.clone(), options) {
            Ok((log, entries)) => self.outboxes.push(OutboxPlace {
                pipeline: pipeline.name.clone(),
                desk: Arc::new(Mutex::new(log.desk(&pipeline.name))),
                log,
                entries,
                filter: pipeline.settings.filter.clone(),
                row_limit: pipeline.settings.row_limit(),
                dead_policy: pipeline.settings.on_dead,
                connect: Arc::new(move || broker.connector()),
                chunking: pipeline.settings.chunking,
            }),
            Err(error) => self.away.push(OperateError::from(error).about(&pipeline.name)),
        }
        self
    }

    /// Publishes to another broker instead of the pipelines' own, for tests.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn connected_to(mut self, connector: Arc<dyn Connector>) -> Self {
        for place in &mut self.outboxes {
            let connector = Arc::clone(&connector);
            place.connect = Arc::new(move || Ok(Arc::clone(&connector)));
        }
        self
    }

    /// Adds the inbox of a configured consumer. Connects to it.
    pub async fn inbox(self, inbox: &InboxConfig) -> Self {
        self.inboxes(vec![inbox]).await
    }

    /// Adds the inboxes of configured consumers, in this order. Connects to up to 32 of them at
    /// once: those that do not answer together take as long as one.
    pub async fn inboxes(mut self, inboxes: Vec<&InboxConfig>) -> Self {
        let opening: Vec<_> = inboxes.iter().map(|inbox| Box::pin(InboxPlace::open(inbox))).collect();
        let opened: Vec<_> = stream::iter(opening).buffered(OPENING_MAX).collect().await;
        for (inbox, opened) in inboxes.into_iter().zip(opened) {
            match opened {
                Ok(place) => self.inboxes.push(place),
                Err(error) => {
                    let error = error.about(format_args!("inbox of {}", inbox.consumer));
                    self.away.push(error.clone());
                    self.inboxes_away.push(InboxAway { inbox: inbox.clone(), error });
                }
            }
        }
        self
    }

    /// Adds the inboxes of all consumers of a database. Connects to it.
    pub async fn inbox_at(
        mut self,
        url: &SecretString,
        schema: Option<Identifier>,
        allow_plaintext: bool,
    ) -> Self {
        let options = LogOptions::default().schema(schema).allow_plaintext(allow_plaintext);
        let tables = Tables::new(url.clone(), options);
        let location = tables.location();
        match InboxDatabase::open(&tables).await {
            Ok(database) => {
                self.inboxes.push(InboxPlace {
                    consumer: None,
                    scope: None,
                    pipelines: BTreeSet::new(),
                    topics: BTreeSet::new(),
                    database: Arc::new(database),
                    location,
                });
            }
            Err(error) => self.away.push(error),
        }
        self
    }

    /// Returns the outboxes.
    #[must_use]
    pub fn outboxes(&self) -> &[OutboxPlace] {
        &self.outboxes
    }

    /// Returns the errors of unreachable databases.
    #[must_use]
    pub fn away(&self) -> &[OperateError] {
        &self.away
    }

    /// Returns the outbox if it is the only one.
    pub(crate) fn only_outbox(&self) -> Result<&OutboxPlace, OperateError> {
        match (&self.outboxes[..], self.away.first()) {
            ([place], None) => Ok(place),
            (_, Some(error)) => Err(error.clone()),
            (places, None) => {
                let text = format!("this command needs one pipeline, but {} are named", places.len());
                Err(OperateError::refused(text, "add --pipeline NAME"))
            }
        }
    }

    /// Closes all connections.
    pub async fn close(self) {
        join_all(self.inboxes.iter().map(|inbox| inbox.database.close())).await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use brokers::Secret;
    use tokio::net::TcpListener;
    use tokio::task::JoinSet;

    use super::*;

    fn inbox(consumer: &str, port: u16) -> InboxConfig {
        let url = format!("postgres://nobody:secret@127.0.0.1:{port}/none?sslmode=disable");
        InboxConfig::new(ConsumerName::new(consumer).unwrap(), Secret::Text(url.into()))
    }

    /// Goal: several inboxes that do not answer delay a request no longer than one. Oracle: all of
    /// them have a connection while none has been answered; the errors are in the order of the
    /// inboxes.
    #[tokio::test]
    async fn silent_inboxes_are_waited_for_together() {
        let mut inboxes = Vec::new();
        let mut accepting = JoinSet::new();
        for number in 0..12 {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            inboxes.push(inbox(&format!("consumer-{number}"), listener.local_addr().unwrap().port()));
            accepting.spawn(async move { listener.accept().await.unwrap().0 });
        }
        let opening = tokio::spawn(async move { Places::new().inboxes(inboxes.iter().collect()).await });
        // Without an answer, a connection attempt ends after 10 s.
        let connected = tokio::time::timeout(Duration::from_secs(9), accepting.join_all()).await;
        drop(connected.expect("one of them was waited for alone"));
        let places = opening.await.unwrap();
        let errors: Vec<String> = places.away.iter().map(ToString::to_string).collect();
        assert_eq!(errors.len(), 12, "{errors:?}");
        for (number, error) in errors.iter().enumerate() {
            assert!(error.contains(&format!("consumer-{number}")), "{number}: {error}");
        }
    }

    /// Returns pipelines whose databases accept a connection and do not answer, and the tasks that
    /// accept it.
    #[cfg(feature = "sqs")]
    async fn silent_outboxes() -> (Places, JoinSet<tokio::net::TcpStream>) {
        let mut accepting = JoinSet::new();
        let mut places = Places::new();
        for number in 0..8 {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let url = format!("postgres://nobody:secret@127.0.0.1:{port}/none?sslmode=disable");
            let sqs =
                brokers::sqs::Config::default().region("eu-central-1").endpoint_url("http://127.0.0.1:1");
            places = places.outbox(&PipelineConfig {
                name: RelayName::new(format!("pipeline-{number}")).unwrap(),
                source: message::Source::new("/orders").unwrap(),
                database: crate::settings::Database::new(Secret::Text(url.into()), LogOptions::default()),
                retention: crate::settings::Retention::default(),
                audit_retention: crate::settings::Retention::Off,
                broker: crate::settings::Broker::Sqs(Box::new(sqs)),
                settings: engine::EngineOptions::default(),
            });
            accepting.spawn(async move { listener.accept().await.unwrap().0 });
        }
        (places, accepting)
    }

    /// Goal: several outboxes that do not answer delay a query no longer than one. Oracle: all of
    /// them have a connection while none has been answered.
    #[cfg(feature = "sqs")]
    async fn assert_together(what: &str, look: impl AsyncFnOnce(&Places) -> usize) {
        let (places, accepting) = silent_outboxes().await;
        // Without an answer, a connection attempt ends after 10 s.
        let connected = async {
            let connected = tokio::time::timeout(Duration::from_secs(9), accepting.join_all()).await;
            drop(connected.unwrap_or_else(|_| panic!("{what}: one of them was waited for alone")));
        };
        let looked = tokio::join!(look(&places), connected);
        assert_eq!(looked.0, 8, "{what} names each");
    }

    #[cfg(feature = "sqs")]
    #[tokio::test]
    async fn silent_outboxes_are_waited_for_together() {
        use std::num::NonZeroU32;

        use crate::audit::AuditQuery;
        use crate::dead::{Filter, survey};
        use crate::{Operator, Role};

        let ann = Operator::new("ann", Role::Viewer);
        let id = "0198a0de-0000-7000-8000-000000000000".parse().unwrap();
        let about = |error: &OperateError| error.to_string().matches("pipeline-").count();
        let story = async |places: &Places| {
            about(&crate::story::story(places, &ann, &id).await.map(drop).unwrap_err())
        };
        let lag = async |places: &Places| crate::lag::lag(places, &ann).await.unwrap().1.len();
        let surveyed = async |places: &Places| {
            let state = outbox_log::ExceptionState::Dead;
            survey(places, &ann, &Filter::default(), state).await.unwrap().away.len()
        };
        let topic = outbox_log::PauseScope::Topic(String::from("orders"));
        let paused = async |places: &Places| {
            assert!(!crate::pause::is_unknown(places, &topic).await);
            places.outboxes.len()
        };
        let listed = async |places: &Places| {
            let states = crate::dead::States::Dead;
            crate::dead::list(places, &ann, &Filter::default(), states, 50).await.unwrap().away.len()
        };
        let named = async |places: &Places| {
            let filter = Filter { ids: vec!["7".parse().unwrap()], ..Filter::default() };
            let states = crate::dead::States::Any;
            crate::dead::list(places, &ann, &filter, states, 50).await.unwrap().away.len()
        };
        let held = async |places: &Places| crate::held::held(places, &ann).await.unwrap().away.len();
        let audited = async |places: &Places| {
            let query = AuditQuery::latest(NonZeroU32::MIN);
            crate::audit::read(places, &[], &ann, &query).await.unwrap().away.len()
        };
        let decided = async |places: &Places| {
            crate::dead::decision(places, &ann, uuid::Uuid::nil()).await.unwrap().away.len()
        };
        // Each takes as long as a connection attempt may.
        tokio::join!(
            assert_together("the story of a message", story),
            assert_together("the backlog", lag),
            assert_together("the causes", surveyed),
            assert_together("the look for a misspelt name", paused),
            assert_together("the list of dead messages", listed),
            assert_together("named messages", named),
            assert_together("waiting keys", held),
            assert_together("the audit", audited),
            assert_together("the result of a decision", decided),
        );
    }
}
