//! How many connections each peer has: one must not take those of all others.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// Connections of one peer at once: more than event streams, which stay. A browser opens six.
const CONNECTIONS_MAX: usize = 64;

/// The peers that are connected. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Peers {
    /// Nothing is counted behind a proxy, which stands for everybody.
    is_behind_proxy: bool,
    connections: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// A connection of a peer; ends being counted when it is dropped.
#[derive(Debug)]
pub(crate) struct Connected {
    /// Nobody where connections are not counted.
    of: Option<(Peers, IpAddr)>,
}

impl Peers {
    pub(crate) fn new(is_behind_proxy: bool) -> Self {
        Self { is_behind_proxy, connections: Arc::default() }
    }

    /// Counts one more connection, where there is room. A peer by a loopback address is not
    /// counted.
    pub(crate) fn connect(&self, peer: IpAddr) -> Option<Connected> {
        // A peer of IPv4 on a socket of IPv6 is the same peer, and whoever has a prefix of IPv6 has
        // all addresses in it.
        let peer = match peer.to_canonical() {
            IpAddr::V6(address) if !address.is_loopback() => {
                IpAddr::from((u128::from(address) & !u128::from(u64::MAX)).to_be_bytes())
            }
            peer => peer,
        };
        if self.is_behind_proxy || peer.is_loopback() {
            return Some(Connected { of: None });
        }
        let mut peers = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        let connections = peers.entry(peer).or_default();
        if *connections >= CONNECTIONS_MAX {
            return None;
        }
        *connections += 1;
        Some(Connected { of: Some((self.clone(), peer)) })
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        let Some((peers, peer)) = &self.of else { return };
        let mut peers = peers.connections.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(connections) = peers.get_mut(peer) {
            *connections -= 1;
            if *connections == 0 {
                peers.remove(peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_has_its_connections_and_takes_no_others() {
        let peers = Peers::new(false);
        let connect = |peer: &str| peers.connect(peer.parse().unwrap());
        let mut all: Vec<_> = (0..CONNECTIONS_MAX).map(|_| connect("10.0.0.1").unwrap()).collect();
        assert!(connect("10.0.0.1").is_none() && connect("::ffff:10.0.0.1").is_none());
        assert!(connect("10.0.0.2").is_some() && connect("2001:db8::1").is_some());
        all.pop();
        all.push(connect("10.0.0.1").unwrap());
        assert!(connect("10.0.0.1").is_none());
        all.clear();
        assert!(peers.connections.lock().unwrap().is_empty(), "whoever has gone is forgotten");
    }

    #[test]
    fn all_addresses_of_a_prefix_are_one_peer_and_a_proxy_is_none() {
        let peers = Peers::new(false);
        let prefix: Vec<_> =
            (0..200).filter_map(|n| peers.connect(format!("2001:db8::{n:x}").parse().unwrap())).collect();
        assert_eq!(prefix.len(), CONNECTIONS_MAX);
        assert!(peers.connect("2001:db8:0:1::1".parse().unwrap()).is_some());
        for proxy in ["127.0.0.1", "::1"] {
            let all: Vec<_> = (0..200).filter_map(|_| peers.connect(proxy.parse().unwrap())).collect();
            assert_eq!(all.len(), 200, "{proxy}");
        }
        let proxied = Peers::new(true);
        let all: Vec<_> = (0..200).filter_map(|_| proxied.connect("10.0.0.1".parse().unwrap())).collect();
        assert_eq!(all.len(), 200);
    }
}
