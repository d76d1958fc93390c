//! The brokers as data.

use std::sync::Arc;

use libtest_mimic::Trial;
use message::MaxInFlightPerKey;
use tests::brokers::Memory;
use tests::{Backend, Broker, Failure, Outcome, Stage, brokers, trial};

/// A broker, and how it is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// As the harness opens it.
    Shared(Backend),
    /// The in-memory broker whose sessions take any number of messages of one key.
    MemoryPipelined,
}

/// What publishers are tested on.
pub(crate) const PUBLISHERS: [Target; 7] = [
    Target::Shared(Backend::Memory),
    Target::MemoryPipelined,
    Target::Shared(Backend::KafkaMock),
    Target::Shared(Backend::Kafka),
    Target::Shared(Backend::Rabbitmq),
    Target::Shared(Backend::Sqs),
    Target::Shared(Backend::SqsFifo),
];

/// What subscriptions are tested on.
pub(crate) const SUBSCRIPTIONS: [Backend; 6] =
    [Backend::Memory, Backend::KafkaMock, Backend::Kafka, Backend::Rabbitmq, Backend::Sqs, Backend::SqsFifo];

impl Target {
    /// The word in the names of trials.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Shared(backend) => backend.as_str(),
            Self::MemoryPipelined => "memory-pipelined",
        }
    }

    /// What it needs to run.
    pub(crate) fn backend(self) -> Backend {
        match self {
            Self::Shared(backend) => backend,
            Self::MemoryPipelined => Backend::Memory,
        }
    }

    /// A connection to it, or a new one in this process.
    pub(crate) async fn open(self) -> Result<Arc<dyn Broker>, Failure> {
        match self {
            Self::Shared(backend) => brokers::open(backend).await,
            Self::MemoryPipelined => Ok(Arc::new(Memory::new(MaxInFlightPerKey::Pipelined))),
        }
    }
}

/// One case on one broker. The topic is made by the case: some need it to be missing.
pub(crate) fn on<F>(
    suite: &str,
    case: &str,
    target: Target,
    body: impl FnOnce(Stage, Arc<dyn Broker>) -> F + Send + 'static,
) -> Trial
where
    F: Future<Output = Outcome>,
{
    trial(format!("{suite}/{}/{case}", target.as_str()), &[target.backend()], move |stage| async move {
        body(stage, target.open().await?).await
    })
}
