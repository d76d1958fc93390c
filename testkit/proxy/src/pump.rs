//! One direction of one connection.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::watch;

use crate::conditions::{Flow, Pass, Way};
use crate::counts::Counters;
use crate::server::State;

/// Maximum number of bytes that are read at once.
const CHUNK_BYTES: usize = 16 << 10;

/// Number of pieces per second into which a limited throughput is divided, so that it flows evenly.
const PIECES_PER_SECOND: u32 = 20;

/// The end of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The sender has finished.
    Finished,
    /// The network breaks the connection.
    Broken,
}

/// One direction of one connection.
pub(crate) struct Pump<'a> {
    pub(crate) way: Way,
    pub(crate) state: watch::Receiver<State>,
    pub(crate) counters: &'a Counters,
}

impl Pump<'_> {
    /// Carries bytes until the sender ends, or either end or the network breaks the connection.
    pub(crate) async fn run(
        mut self,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
    ) -> io::Result<Ended> {
        let mut buffer = vec![0; CHUNK_BYTES];
        let mut damaged = false;
        let mut until_cut = Countdown::default();
        loop {
            let flow = self.flow();
            until_cut.see(flow.pass);
            if (damaged && flow.pass != Pass::Lose) || until_cut.left == Some(0) {
                return Ok(Ended::Broken);
            }
            let limit = chunk(&flow, until_cut.left);
            let count = tokio::select! {
                // The proxy reads only as much as it can pass on, so the sender's buffers fill, as
                // on a real network.
                read = from.read(&mut buffer[..limit]), if flow.pass != Pass::Hold => read?,
                changed = self.state.changed() => match changed {
                    Ok(()) => continue,
                    Err(_) => return Ok(Ended::Broken),
                },
            };
            if count == 0 {
                return self.end(damaged, to).await;
            }
            tokio::time::sleep(flow.delay + part_of(flow.jitter)).await;
            // The conditions at the time of arrival decide whether a chunk passes.
            match self.passable().await {
                None => return Ok(Ended::Broken),
                Some(Pass::Lose) => {
                    damaged = true;
                    self.counters.lost(count);
                }
                Some(pass) => {
                    let count = until_cut.take(pass, count);
                    to.write_all(&buffer[..count]).await?;
                    self.counters.arrived(self.way, count);
                    tokio::time::sleep(time_of(count, &flow)).await;
                }
            }
        }
    }

    /// Passes on the end of the stream, which is lost like any other byte.
    async fn end(&mut self, damaged: bool, mut to: impl AsyncWrite + Unpin) -> io::Result<Ended> {
        let way = self.way;
        let is_lost = damaged || self.flow().pass == Pass::Lose;
        let passes = |state: &State| !matches!(state.conditions.flow(way).pass, Pass::Hold | Pass::Lose);
        if self.state.wait_for(passes).await.is_err() || is_lost {
            return Ok(Ended::Broken);
        }
        to.shutdown().await?;
        Ok(Ended::Finished)
    }

    fn flow(&mut self) -> Flow {
        *self.state.borrow_and_update().conditions.flow(self.way)
    }

    /// Waits while bytes are held. Returns `None` once the proxy has ended.
    async fn passable(&mut self) -> Option<Pass> {
        let way = self.way;
        let state = self.state.wait_for(|state| state.conditions.flow(way).pass != Pass::Hold).await;
        state.ok().map(|state| state.conditions.flow(way).pass)
    }
}

/// The number of bytes until the cut, counted from the command.
#[derive(Default)]
struct Countdown {
    ordered: Option<u64>,
    left: Option<u64>,
}

impl Countdown {
    fn see(&mut self, pass: Pass) {
        let ordered = if let Pass::CutAfter(bytes) = pass { Some(bytes) } else { None };
        if ordered != self.ordered {
            (self.ordered, self.left) = (ordered, ordered);
        }
    }

    /// Returns how many of the bytes arrive.
    fn take(&mut self, pass: Pass, count: usize) -> usize {
        self.see(pass);
        let Some(left) = &mut self.left else { return count };
        let arriving = count.min(usize::try_from(*left).unwrap_or(usize::MAX));
        *left -= arriving as u64;
        arriving
    }
}

/// Returns how many bytes to read at once, at least one.
fn chunk(flow: &Flow, until_cut: Option<u64>) -> usize {
    let paced = flow.bytes_per_second.map_or(CHUNK_BYTES, |rate| (rate.get() / PIECES_PER_SECOND) as usize);
    let cut = until_cut.map_or(CHUNK_BYTES, |bytes| usize::try_from(bytes).unwrap_or(CHUNK_BYTES));
    CHUNK_BYTES.min(paced).min(cut).max(1)
}

/// Returns how long `count` bytes occupy the line.
fn time_of(count: usize, flow: &Flow) -> Duration {
    flow.bytes_per_second.map_or(Duration::ZERO, |rate| Duration::from_secs(count as u64) / rate.get())
}

fn part_of(jitter: Duration) -> Duration {
    if jitter.is_zero() { jitter } else { rand::random_range(Duration::ZERO..=jitter) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU32;

    #[test]
    fn a_slow_line_is_fed_in_pieces() {
        let slow = Flow { bytes_per_second: NonZeroU32::new(2_000), ..Flow::default() };
        assert_eq!(chunk(&slow, None), 100);
        assert_eq!(chunk(&slow, Some(7)), 7);
        assert_eq!(chunk(&Flow { bytes_per_second: NonZeroU32::new(1), ..slow }, None), 1);
        assert_eq!(chunk(&Flow::default(), None), CHUNK_BYTES);
        assert_eq!(time_of(100, &slow), Duration::from_millis(50));
        assert_eq!(time_of(CHUNK_BYTES, &Flow::default()), Duration::ZERO);
    }

    #[test]
    fn a_cut_is_counted_from_its_order() {
        let mut countdown = Countdown::default();
        assert_eq!(countdown.take(Pass::Forward, 50), 50);
        assert_eq!(countdown.take(Pass::CutAfter(5), 3), 3);
        assert_eq!(countdown.take(Pass::CutAfter(5), 3), 2);
        assert_eq!(countdown.left, Some(0));
        assert_eq!(countdown.take(Pass::Forward, 3), 3);
        assert_eq!(countdown.take(Pass::CutAfter(5), 9), 5);
    }
}
