//! Conditions of the network between client and server.

use std::num::NonZeroU32;
use std::time::Duration;

/// The state of the network. The default is a healthy one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// From the client to the server.
    pub requests: Flow,
    /// From the server to the client.
    pub answers: Flow,
    /// New connections are reset at once; open ones stay.
    pub refuse: bool,
}

/// One way through the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// Added to the time of every chunk.
    pub delay: Duration,
    /// A random part up to this is added to the delay of every chunk.
    pub jitter: Duration,
    /// The throughput of each connection; nothing for no limit.
    pub bytes_per_second: Option<NonZeroU32>,
    /// Whether bytes arrive at all.
    pub pass: Pass,
}

/// Whether bytes arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pass {
    /// They arrive.
    #[default]
    Forward,
    /// They wait and arrive once this is over, as packets do that TCP sends again.
    Hold,
    /// They never arrive. A connection that has lost a byte is reset once this is over: it has a
    /// hole.
    Lose,
    /// So many more bytes of each connection arrive, then it is reset on both ends.
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
    /// Who connected.
    Client,
    /// Who was connected to.
    Server,
}

impl Conditions {
    /// The network in one direction.
    #[must_use]
    pub fn flow(&self, way: Way) -> &Flow {
        match way {
            Way::Requests => &self.requests,
            Way::Answers => &self.answers,
        }
    }

    /// The network in one direction, to be changed.
    pub fn flow_mut(&mut self, way: Way) -> &mut Flow {
        match way {
            Way::Requests => &mut self.requests,
            Way::Answers => &mut self.answers,
        }
    }
}
