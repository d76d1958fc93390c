//! Faults of the network between two ends, on the connections of one role to one server.

use std::num::NonZeroU32;
use std::time::Duration;

use async_trait::async_trait;
use proxy::{End, Pass, Proxy, Way};
use rand::Rng as _;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom as _, IteratorRandom as _};

use super::{Fault, FaultKind, Injected, Reach, millis, seconds};
use crate::Failure;

/// The kind of a network fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Everything is delayed by a random time.
    Latency,
    /// The bandwidth is low.
    Bandwidth,
    /// All connections are reset, once.
    Cut,
    /// Every connection is reset after some more bytes, in the middle of a frame.
    CutInFrame,
    /// Requests arrive, but their answers do not. Such connections are reset at the end.
    AnswersLost,
    /// Nothing arrives in one direction, or in both, until the fault is over.
    Partition,
    /// One end has disappeared, but the other end does not notice.
    HalfOpen,
    /// Open connections are reset, and no new connection succeeds.
    Down,
}

/// A network fault on one wire.
#[derive(Debug)]
pub struct Tcp {
    kind: Kind,
    hit: Option<String>,
}

impl Tcp {
    /// Creates a fault of this kind.
    #[must_use]
    pub fn new(kind: Kind) -> Self {
        Self { kind, hit: None }
    }

    /// Returns one fault of each kind.
    #[must_use]
    pub fn all() -> [Self; 8] {
        use Kind::{AnswersLost, Bandwidth, Cut, CutInFrame, Down, HalfOpen, Latency, Partition};
        [Latency, Bandwidth, Cut, CutInFrame, AnswersLost, Partition, HalfOpen, Down].map(Self::new)
    }
}

#[async_trait]
impl<S: Reach> Fault<S> for Tcp {
    fn kind(&self) -> FaultKind {
        let (name, lasts) = match self.kind {
            Kind::Latency => ("tcp-latency", seconds(2)..=seconds(8)),
            Kind::Bandwidth => ("tcp-bandwidth", seconds(2)..=seconds(8)),
            Kind::Cut => ("tcp-cut", Duration::ZERO..=Duration::ZERO),
            Kind::CutInFrame => ("tcp-cut-in-frame", millis(500)..=seconds(3)),
            Kind::AnswersLost => ("tcp-answers-lost", seconds(1)..=seconds(8)),
            // The duration may exceed that of a lease.
            Kind::Partition => ("tcp-partition", seconds(2)..=seconds(15)),
            Kind::HalfOpen => ("tcp-half-open", seconds(2)..=seconds(15)),
            Kind::Down => ("tcp-down", seconds(2)..=seconds(8)),
        };
        FaultKind::new(name).lasts(lasts)
    }

    async fn inject(&mut self, stage: &S, rng: &mut StdRng) -> Result<Injected, Failure> {
        let (wire, proxy) = stage.wires().into_iter().choose(rng).ok_or("there is no wire")?;
        let done = apply(self.kind, proxy, rng);
        Ok(Injected::new(self.hit.insert(wire).as_str(), done))
    }

    async fn heal(&mut self, stage: &S) -> Result<(), Failure> {
        let Some(hit) = self.hit.take() else { return Ok(()) };
        if let Some((_, proxy)) = stage.wires().into_iter().find(|(wire, _)| *wire == hit) {
            revert(self.kind, proxy);
        }
        Ok(())
    }
}

/// Injects the fault and returns its parameters. Other faults on the same wire stay active.
fn apply(kind: Kind, proxy: &Proxy, rng: &mut StdRng) -> String {
    match kind {
        Kind::Latency => {
            let delay = millis(rng.random_range(5..=400));
            proxy.change(|network| {
                for way in [Way::Requests, Way::Answers] {
                    (network.flow_mut(way).delay, network.flow_mut(way).jitter) = (delay, delay);
                }
            });
            format!("{delay:?} to {:?} each way", 2 * delay)
        }
        Kind::Bandwidth => {
            let rate = rng.random_range(2_000..=50_000);
            proxy.change(|network| {
                for way in [Way::Requests, Way::Answers] {
                    network.flow_mut(way).bytes_per_second = NonZeroU32::new(rate);
                }
            });
            format!("{rate} bytes/s per connection")
        }
        Kind::Cut => {
            proxy.cut();
            String::new()
        }
        Kind::CutInFrame => {
            let (way, bytes) = (a_way(rng), rng.random_range(1..=2_000));
            proxy.change(|network| network.flow_mut(way).pass = Pass::CutAfter(bytes));
            format!("{} after {bytes} bytes", said(way))
        }
        Kind::AnswersLost => {
            proxy.change(|network| network.answers.pass = Pass::Lose);
            String::new()
        }
        Kind::Partition => {
            let ways: &[Way] = match rng.random_range(0..3) {
                0 => &[Way::Requests],
                1 => &[Way::Answers],
                _ => &[Way::Requests, Way::Answers],
            };
            proxy.change(|network| ways.iter().for_each(|way| network.flow_mut(*way).pass = Pass::Hold));
            ways.iter().map(|way| said(*way)).collect::<Vec<_>>().join(" and ")
        }
        Kind::HalfOpen => {
            let gone = if rng.random() { End::Client } else { End::Server };
            proxy.abandon(gone);
            let gone = if gone == End::Client { "client" } else { "server" };
            format!("the {gone} has disappeared")
        }
        Kind::Down => {
            proxy.down();
            String::new()
        }
    }
}

/// Reverts [`apply`].
fn revert(kind: Kind, proxy: &Proxy) {
    match kind {
        Kind::Latency => proxy.change(|network| {
            for way in [Way::Requests, Way::Answers] {
                (network.flow_mut(way).delay, network.flow_mut(way).jitter) = Default::default();
            }
        }),
        Kind::Bandwidth => proxy.change(|network| {
            for way in [Way::Requests, Way::Answers] {
                network.flow_mut(way).bytes_per_second = None;
            }
        }),
        Kind::Cut => {}
        Kind::CutInFrame | Kind::AnswersLost | Kind::Partition => proxy.change(|network| {
            for way in [Way::Requests, Way::Answers] {
                network.flow_mut(way).pass = Pass::Forward;
            }
        }),
        Kind::HalfOpen => proxy.end_abandonment(),
        Kind::Down => proxy.change(|network| network.refuse = false),
    }
}

fn a_way(rng: &mut StdRng) -> Way {
    *[Way::Requests, Way::Answers].choose(rng).unwrap_or(&Way::Requests)
}

fn said(way: Way) -> &'static str {
    match way {
        Way::Requests => "requests",
        Way::Answers => "answers",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng as _;

    #[tokio::test]
    async fn what_was_applied_is_reverted_and_nothing_else() {
        for Tcp { kind, .. } in Tcp::all() {
            let proxy = Proxy::start(0, "127.0.0.1:1").await.unwrap();
            let healthy = proxy.conditions();
            let mut rng = StdRng::seed_from_u64(7);
            apply(kind, &proxy, &mut rng);
            let at_once = matches!(kind, Kind::Cut | Kind::HalfOpen);
            assert_eq!(proxy.conditions() == healthy, at_once, "{kind:?}");
            revert(kind, &proxy);
            assert_eq!(proxy.conditions(), healthy, "{kind:?}");
        }
        let proxy = Proxy::start(0, "127.0.0.1:1").await.unwrap();
        apply(Kind::Latency, &proxy, &mut StdRng::seed_from_u64(7));
        let slow = proxy.conditions();
        apply(Kind::AnswersLost, &proxy, &mut StdRng::seed_from_u64(7));
        revert(Kind::AnswersLost, &proxy);
        assert_eq!(proxy.conditions(), slow);
    }
}
