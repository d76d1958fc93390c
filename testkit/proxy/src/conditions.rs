//! Conditions of the network between client and server.

use std::num::NonZeroU32;
use std::time::Duration;

/// The state of the network. The default is a healthy network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// The direction from the client to the server.
    pub requests: Flow,
    /// The direction from the server to the client.
    pub answers: Flow,
    /// Whether new connections are reset immediately. Open connections stay.
    pub refuse: bool,
}

/// One direction of the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// The delay of every chunk.
    pub delay: Duration,
    /// The maximum of a random addition to the delay of every chunk.
    pub jitter: Duration,
    /// The throughput of each connection, or `None` for no limit.
    pub bytes_per_second: Option<NonZeroU32>,
    /// Whether bytes arrive.
    pub pass: Pass,
}

/// Whether bytes arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pass {
    /// The bytes arrive.
    #[default]
    Forward,
    /// The bytes wait and arrive once this condition is over, like packets that TCP retransmits.
    Hold,
    /// The bytes never arrive, nor does the end of the stream. A connection that has lost either is
    /// reset once this condition is over, because its stream has a gap.
    Lose,
    /// This many more bytes of each connection arrive. Then the connection is reset on both ends.
    CutAfter(u64),
}

/// A direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// From the client to the server.
    Requests,
    /// From the server to the client.
    Answers,
}

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// The end that connected.
    Client,
    /// The end that accepted.
    Server,
}

impl Conditions {
    /// Returns the network in one direction.
    #[must_use]
    pub fn flow(&self, way: Way) -> &Flow {
        match way {
            Way::Requests => &self.requests,
            Way::Answers => &self.answers,
        }
    }

    /// Returns the network in one direction, to change it.
    pub fn flow_mut(&mut self, way: Way) -> &mut Flow {
        match way {
            Way::Requests => &mut self.requests,
            Way::Answers => &mut self.answers,
        }
    }
}
