//! The listener and its commands.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::conditions::{Conditions, End};
use crate::connection;
use crate::counts::{Counters, Counts};

/// The state that every connection watches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct State {
    pub(crate) conditions: Conditions,
    /// Number of cuts of all connections.
    pub(crate) cuts: u64,
    /// Number of times that an end was abandoned, and the end that was abandoned last.
    pub(crate) abandoned: (u64, End),
    /// Number of times that the network was healed.
    pub(crate) heals: u64,
}

/// A running proxy. Dropping it stops the proxy and all its connections.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    upstream: watch::Sender<Arc<str>>,
    state: watch::Sender<State>,
    counters: Arc<Counters>,
    _accepting: JoinSet<()>,
}

impl Proxy {
    /// Listens on this port of this machine (0: a free one) and connects every client to `upstream`
    /// (`host:port`).
    ///
    /// # Errors
    /// The port is not free.
    pub async fn start(port: u16, upstream: impl Into<String>) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        let address = listener.local_addr()?;
        let upstream = watch::Sender::new(Arc::from(upstream.into()));
        let healthy =
            State { conditions: Conditions::default(), cuts: 0, abandoned: (0, End::Client), heals: 0 };
        let state = watch::Sender::new(healthy);
        let counters = Arc::new(Counters::default());
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, upstream.subscribe(), state.subscribe(), Arc::clone(&counters)));
        Ok(Self { address, upstream, state, counters, _accepting: accepting })
    }

    /// Returns the address at which the proxy listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the server to which the proxy connects: `host:port`.
    #[must_use]
    pub fn upstream(&self) -> Arc<str> {
        Arc::clone(&self.upstream.borrow())
    }

    /// Connects to another server (`host:port`) from now on. Open connections stay.
    pub fn redirect(&self, upstream: impl Into<String>) {
        self.upstream.send_replace(Arc::from(upstream.into()));
    }

    /// Returns the current conditions of the network.
    #[must_use]
    pub fn conditions(&self) -> Conditions {
        self.state.borrow().conditions
    }

    /// Sets the conditions of the network from now on, for open connections and new ones.
    pub fn set(&self, conditions: Conditions) {
        self.state.send_modify(|state| state.conditions = conditions);
    }

    /// Changes a part of the conditions of the network.
    pub fn change(&self, change: impl FnOnce(&mut Conditions)) {
        self.state.send_modify(|state| change(&mut state.conditions));
    }

    /// Breaks every open connection, with RST on both ends.
    pub fn cut(&self) {
        self.state.send_modify(|state| state.cuts += 1);
    }

    /// Breaks every open connection and refuses new ones, until [`heal`](Self::heal).
    pub fn down(&self) {
        self.state.send_modify(|state| {
            state.conditions.refuse = true;
            state.cuts += 1;
        });
    }

    /// Removes one end of every open connection. The other end does not notice until
    /// [`heal`](Self::heal). New connections are not affected.
    pub fn abandon(&self, gone: End) {
        self.state.send_modify(|state| state.abandoned = (state.abandoned.0 + 1, gone));
    }

    /// Resets the connections whose other end [`abandon`](Self::abandon) removed.
    pub fn end_abandonment(&self) {
        self.state.send_modify(|state| state.heals += 1);
    }

    /// Heals the network. Connections that lost bytes or an end are reset.
    pub fn heal(&self) {
        self.set(Conditions::default());
        self.end_abandonment();
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counters.read()
    }
}

async fn accept(
    listener: TcpListener,
    upstream: watch::Receiver<Arc<str>>,
    state: watch::Receiver<State>,
    counters: Arc<Counters>,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            // An error of `accept` concerns a single client, or is a temporary lack of file
            // descriptors.
            accepted = listener.accept() => if let Ok((client, _)) = accepted {
                let upstream = Arc::clone(&upstream.borrow());
                let (state, counters) = (state.clone(), Arc::clone(&counters));
                connections.spawn(async move { connection::serve(client, &upstream, state, &counters).await });
            },
            Some(_) = connections.join_next() => {}
        }
    }
}
