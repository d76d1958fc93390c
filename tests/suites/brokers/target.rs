//! The brokers as data, and the cases that run on each.

use std::sync::Arc;

use conformance::facts::Order;
use conformance::{Broker, Capabilities, Case};
use libtest_mimic::Trial;
use message::MaxInFlightPerKey;
use tests::brokers::{Http, Memory};
use tests::{Backend, Failure, Stage, brokers, trial};

/// A broker and the way to open it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    /// Opened as all suites open it.
    Shared(Backend),
    /// The in-memory broker, with sessions that accept any number of messages of one key at once.
    MemoryPipelined,
    /// HTTP endpoints of a server in this process, which have no subscriptions.
    Http,
}

/// Brokers whose publishers and subscriptions are tested, each with every case that its
/// capabilities allow.
const TARGETS: [Target; 8] = [
    Target::Shared(Backend::Memory),
    Target::MemoryPipelined,
    Target::Http,
    Target::Shared(Backend::KafkaMock),
    Target::Shared(Backend::Kafka),
    Target::Shared(Backend::Rabbitmq),
    Target::Shared(Backend::Sqs),
    Target::Shared(Backend::SqsFifo),
];

/// Returns every case on every broker that can run it.
pub(crate) fn trials() -> Vec<Trial> {
    let of = |target: Target| {
        let applies = move |case: &Case| target.publishes_only().is_none_or(|suite| case.suite == suite);
        let can = target.capabilities();
        let cases = conformance::cases().into_iter().filter(applies);
        cases.filter(move |case| case.lacks(&can).is_none()).map(move |case| target.trial(case))
    };
    TARGETS.into_iter().flat_map(of).collect()
}

impl Target {
    /// Returns the target's name in the names of trials.
    fn as_str(self) -> &'static str {
        match self {
            Self::Shared(backend) => backend.as_str(),
            Self::MemoryPipelined => "memory-pipelined",
            Self::Http => "http",
        }
    }

    /// Returns the service that the target needs; the broker in memory stands for none.
    fn backend(self) -> Backend {
        match self {
            Self::Shared(backend) => backend,
            Self::MemoryPipelined | Self::Http => Backend::Memory,
        }
    }

    /// Returns the only suite that applies, or `None` for all suites. The pipelined in-memory
    /// broker differs from the plain one only in its publishers.
    fn publishes_only(self) -> Option<&'static str> {
        matches!(self, Self::MemoryPipelined | Self::Http).then_some("publisher")
    }

    fn capabilities(self) -> Capabilities {
        let backend = self.backend();
        Capabilities {
            order: if backend == Backend::Sqs { Order::Free } else { Order::PerKey },
            // Kafka has one committed offset for each partition.
            settles_singly: !matches!(backend, Backend::Kafka | Backend::KafkaMock),
            // The harness assigns fixed partitions of the mock, because joining a group there takes
            // three seconds. So there are no members.
            shares_work: backend != Backend::KafkaMock,
            limits_size: self == Self::Http || backend != Backend::Memory,
            // The in-memory broker delivers malformed messages unchanged.
            has_wire: backend != Backend::Memory,
        }
    }

    /// Connects to the broker, or creates a new one in this process.
    async fn open(self, stage: &Stage) -> Result<Arc<dyn Broker>, Failure> {
        Ok(match self {
            Self::Shared(backend) => brokers::open(stage, backend).await?,
            Self::Http => Arc::new(Http::start(stage).await?),
            Self::MemoryPipelined => Arc::new(Memory::new(stage, MaxInFlightPerKey::Pipelined)),
        })
    }

    fn trial(self, case: Case) -> Trial {
        let name = format!("{}/{}/{}", case.suite, self.as_str(), case.name);
        trial(name, &[self.backend()], move |stage| async move {
            case.run(self.open(&stage).await?, self.capabilities()).await
        })
    }
}
