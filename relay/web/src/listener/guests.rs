//! The admitted connections of a listener, and which of them is closed for a new one.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

/// The bounds of a listener.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Maximum number of connections.
    pub connections_max: usize,
    /// Maximum number of connections of one peer; `None` if all connections come from a proxy.
    pub per_peer_max: Option<usize>,
    /// Whether loopback addresses count as a peer. A proxy or a tunnel on this machine stands for
    /// many peers.
    pub counts_loopback: bool,
    /// Whether a connection that is being answered may lose its place when no other can. If
    /// responses are short, a slow response means that the peer does not read it.
    pub may_cut_answers: bool,
    /// Maximum age of a connection, requests and responses included.
    pub lifetime: Duration,
}

/// The connections of a listener. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Guests {
    bounds: Bounds,
    connected: Arc<Mutex<Connected>>,
}

#[derive(Debug, Default)]
struct Connected {
    /// In the order of their arrival.
    guests: BTreeMap<u64, Guest>,
    arrivals: u64,
}

#[derive(Debug)]
struct Guest {
    /// `None` if peers are not counted.
    peer: Option<IpAddr>,
    /// Whether it has not yet sent a request that keeps its place: see [`Admitted::heard`].
    is_silent: bool,
    evicted: CancellationToken,
}

/// An admitted connection. Dropping it makes room for another one.
#[derive(Debug)]
pub struct Admitted {
    guests: Guests,
    address: IpAddr,
    arrival: u64,
    evicted: CancellationToken,
}

impl Admitted {
    /// Records a request that keeps the place: any request where responses are short, one of an
    /// authenticated user where a login is needed.
    pub fn heard(&self) {
        if let Some(guest) = self.guests.lock().guests.get_mut(&self.arrival) {
            guest.is_silent = false;
        }
    }

    /// Waits until its place goes to another connection. Cancel-safe.
    pub(super) async fn evicted(&self) {
        self.evicted.cancelled().await;
    }

    /// Returns the address of the peer: that of the proxy, if there is one.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Returns the peer as it is counted; `None` for a proxy and for this machine.
    #[must_use]
    pub fn peer(&self) -> Option<IpAddr> {
        self.guests.lock().guests.get(&self.arrival)?.peer
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.guests.lock().guests.remove(&self.arrival);
    }
}

impl Guests {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self { bounds, connected: Arc::default() }
    }

    /// Admits a new connection if there is a place, or if another connection can lose its own.
    pub(super) fn admit(&self, peer: IpAddr) -> Option<Admitted> {
        let address = peer.to_canonical();
        let peer = self.counted(peer);
        let mut connected = self.lock();
        if let (Some(peer), Some(most)) = (peer, self.bounds.per_peer_max)
            && connected.of(peer) >= most
        {
            let outgoing = connected.outgoing(self.bounds, |guest| guest.peer == Some(peer))?;
            connected.evict(outgoing);
        }
        if connected.guests.len() >= self.bounds.connections_max {
            let outgoing = connected.outgoing(self.bounds, |_| true)?;
            connected.evict(outgoing);
        }
        let arrival = connected.arrivals;
        connected.arrivals += 1;
        let evicted = CancellationToken::new();
        connected.guests.insert(arrival, Guest { peer, is_silent: true, evicted: evicted.clone() });
        Some(Admitted { guests: self.clone(), address, arrival, evicted })
    }

    /// Returns the part of an address that counts as one peer. An IPv4 peer on an IPv6 socket is
    /// the same peer, and an IPv6 prefix is one peer, because its owner has all its addresses.
    fn counted(&self, peer: IpAddr) -> Option<IpAddr> {
        let peer = match peer.to_canonical() {
            IpAddr::V6(address) if !address.is_loopback() => {
                IpAddr::from((u128::from(address) & !u128::from(u64::MAX)).to_be_bytes())
            }
            peer => peer,
        };
        let is_counted =
            self.bounds.per_peer_max.is_some() && (self.bounds.counts_loopback || !peer.is_loopback());
        is_counted.then_some(peer)
    }

    fn lock(&self) -> MutexGuard<'_, Connected> {
        self.connected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connected {
    fn of(&self, peer: IpAddr) -> usize {
        self.guests.values().filter(|guest| guest.peer == Some(peer)).count()
    }

    /// Returns the connection that loses its place. Silent ones go first: the oldest of the peer
    /// with the most of them, so that filling the listener evicts only one's own connections. If
    /// none is silent and responses may be cut, one that is being answered goes.
    fn outgoing(&self, bounds: Bounds, is_candidate: impl Fn(&Guest) -> bool) -> Option<u64> {
        let candidates: Vec<_> = self.guests.iter().filter(|(_, guest)| is_candidate(guest)).collect();
        let has_silent = candidates.iter().any(|(_, guest)| guest.is_silent);
        // An office behind one address has many connections, but few silent ones.
        let mut counts: BTreeMap<Option<IpAddr>, usize> = BTreeMap::new();
        for guest in self.guests.values().filter(|guest| guest.is_silent || !has_silent) {
            *counts.entry(guest.peer).or_default() += 1;
        }
        let can_go = |guest: &Guest| guest.is_silent || (bounds.may_cut_answers && !has_silent);
        let candidates = candidates.into_iter().filter(|(_, guest)| can_go(guest));
        let by_crowd =
            |(arrival, guest): &(&u64, &Guest)| (counts.get(&guest.peer).copied(), Reverse(**arrival));
        candidates.max_by_key(by_crowd).map(|(arrival, _)| *arrival)
    }

    fn evict(&mut self, arrival: u64) {
        if let Some(guest) = self.guests.remove(&arrival) {
            guest.evicted.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEALTH: Bounds = Bounds {
        connections_max: 8,
        per_peer_max: Some(3),
        counts_loopback: true,
        may_cut_answers: true,
        lifetime: Duration::MAX,
    };
    const PAGE: Bounds = Bounds { counts_loopback: false, may_cut_answers: false, ..HEALTH };

    fn admit(guests: &Guests, peer: &str) -> Option<Admitted> {
        guests.admit(peer.parse().unwrap())
    }

    fn is_evicted(admitted: &Admitted) -> bool {
        admitted.evicted.is_cancelled()
    }

    #[test]
    fn a_peer_takes_the_places_of_its_own_silent_connections() {
        let guests = Guests::new(PAGE);
        let other = admit(&guests, "10.0.0.2").unwrap();
        let all: Vec<_> = (0..3).map(|_| admit(&guests, "10.0.0.1").unwrap()).collect();
        all[0].heard();
        let next = admit(&guests, "::ffff:10.0.0.1").unwrap();
        assert_eq!(all.iter().map(is_evicted).collect::<Vec<_>>(), [false, true, false]);
        assert!(!is_evicted(&other) && !is_evicted(&next));
        all[2].heard();
        next.heard();
        assert!(admit(&guests, "10.0.0.1").is_none(), "all of them are being answered");
        drop(next);
        assert!(admit(&guests, "10.0.0.1").is_some(), "a place that was given up is free");
    }

    /// Goal: two unauthenticated peers that send requests cannot take all places. Oracle: the
    /// places.
    #[test]
    fn those_who_are_not_known_keep_no_place_from_one_who_asks() {
        let guests = Guests::new(Bounds { per_peer_max: Some(4), ..PAGE });
        let strangers: Vec<_> =
            (0..8).map(|n| admit(&guests, &format!("10.0.0.{}", n % 2)).unwrap()).collect();
        let known = admit(&guests, "10.1.0.1").unwrap();
        known.heard();
        assert!(is_evicted(&strangers[0]) && strangers[1..].iter().all(|it| !is_evicted(it)));
        let _later: Vec<_> = (0..40).map(|n| admit(&guests, &format!("10.0.0.{}", n % 2))).collect();
        assert!(!is_evicted(&known) && known.peer() == Some("10.1.0.1".parse().unwrap()));
    }

    #[test]
    fn a_full_room_has_a_place_for_everybody_who_asks() {
        for bounds in [HEALTH, PAGE] {
            let guests = Guests::new(bounds);
            let crowd: Vec<_> =
                (0..40).map(|n| admit(&guests, &format!("10.0.0.{}", n % 8)).unwrap()).collect();
            assert_eq!(crowd.iter().filter(|guest| !is_evicted(guest)).count(), 8);
            let probe = admit(&guests, "10.1.0.1").unwrap();
            let later: Vec<_> = (0..40).map(|_| admit(&guests, "10.0.0.9").unwrap()).collect();
            assert!(!is_evicted(&probe), "the peer with most gives up its places first");
            drop((crowd, later, probe));
            assert!(guests.lock().guests.is_empty(), "whoever has gone is forgotten");
        }
    }

    #[test]
    fn answers_are_cut_only_where_they_are_short_and_nothing_is_silent() {
        let fill = |bounds| {
            let guests = Guests::new(bounds);
            let all: Vec<_> = (0..8).map(|n| admit(&guests, &format!("10.0.0.{n}")).unwrap()).collect();
            all[1..].iter().for_each(Admitted::heard);
            (guests, all)
        };
        let (guests, all) = fill(HEALTH);
        let first = admit(&guests, "10.1.0.1").unwrap();
        assert!(is_evicted(&all[0]) && all[1..].iter().all(|guest| !is_evicted(guest)), "the silent one");
        first.heard();
        let second = admit(&guests, "10.1.0.2").unwrap();
        assert!(is_evicted(&all[1]) && all[2..].iter().all(|guest| !is_evicted(guest)), "the oldest");
        assert!(!is_evicted(&first) && !is_evicted(&second));
        let (guests, all) = fill(PAGE);
        let first = admit(&guests, "10.1.0.1").unwrap();
        first.heard();
        assert!(admit(&guests, "10.1.0.2").is_none());
        assert!(all[1..].iter().all(|guest| !is_evicted(guest)));
    }

    #[test]
    fn all_addresses_of_a_prefix_are_one_peer_and_a_proxy_is_none() {
        let guests = Guests::new(PAGE);
        let prefix: Vec<_> = (0..6).map(|n| admit(&guests, &format!("2001:db8::{n:x}")).unwrap()).collect();
        assert_eq!(prefix.iter().filter(|guest| !is_evicted(guest)).count(), 3);
        let other = admit(&guests, "2001:db8:0:1::1").unwrap();
        assert!(!is_evicted(&other));
        for (bounds, peer) in
            [(PAGE, "127.0.0.1"), (PAGE, "::1"), (Bounds { per_peer_max: None, ..PAGE }, "10.0.0.1")]
        {
            let guests = Guests::new(bounds);
            let all: Vec<_> = (0..8).map(|_| admit(&guests, peer).unwrap()).collect();
            assert!(all.iter().all(|guest| !is_evicted(guest)), "{peer}");
        }
        let guests = Guests::new(HEALTH);
        let all: Vec<_> = (0..8).map(|_| admit(&guests, "127.0.0.1").unwrap()).collect();
        assert_eq!(all.iter().filter(|guest| !is_evicted(guest)).count(), 3, "a peer like any other");
    }
}
