//! One client and its server, until either of them or the network ends the connection.

use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::conditions::{End, Way};
use crate::counts::{Counters, count};
use crate::pump::{Ended, Pump};
use crate::server::State;

/// The end of a connection.
enum Ending {
    /// Both ends finished the connection, or the proxy itself ends.
    Closed,
    /// One end broke the connection, so the other end is reset as well.
    Lost,
    /// The network breaks the connection.
    Cut,
    /// One end has disappeared, but the other end does not notice.
    Abandoned(End),
}

/// Connects a client to the server and carries bytes between them.
pub(crate) async fn serve(
    mut client: TcpStream,
    upstream: &str,
    state: watch::Receiver<State>,
    counters: &Counters,
) {
    let begun = *state.borrow();
    if begun.conditions.refuse {
        count(&counters.refused);
        return reset(client);
    }
    let Ok(mut server) = TcpStream::connect(upstream).await else {
        count(&counters.refused);
        return reset(client);
    };
    count(&counters.connected);
    // The proxy should add no latency. If the option is refused, everything else still works.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let fate = tokio::select! {
        fate = carry(&mut client, &mut server, &state, counters) => fate,
        fate = ordered(begun, state.clone()) => fate,
    };
    if matches!(fate, Ending::Cut | Ending::Abandoned(_)) {
        count(&counters.reset);
    }
    match fate {
        Ending::Closed => {}
        Ending::Lost | Ending::Cut => {
            reset(client);
            reset(server);
        }
        Ending::Abandoned(End::Client) => {
            reset(client);
            leave_waiting(server, begun, state).await;
        }
        Ending::Abandoned(End::Server) => {
            reset(server);
            leave_waiting(client, begun, state).await;
        }
    }
}

/// Carries bytes both ways until the connection ends.
async fn carry(
    client: &mut TcpStream,
    server: &mut TcpStream,
    state: &watch::Receiver<State>,
    counters: &Counters,
) -> Ending {
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    let pump = |way| Pump { way, state: state.clone(), counters };
    let fate = |ended| match ended {
        Ok(Ended::Finished) => Ok(()),
        Ok(Ended::Broken) => Err(Ending::Cut),
        Err(_) => Err(Ending::Lost),
    };
    let requests = async { fate(pump(Way::Requests).run(from_client, to_server).await) };
    let answers = async { fate(pump(Way::Answers).run(from_server, to_client).await) };
    match tokio::try_join!(requests, answers) {
        Ok(_) => Ending::Closed,
        Err(fate) => fate,
    }
}

/// Waits for the next command after `begun` that ends the connection.
async fn ordered(begun: State, mut state: watch::Receiver<State>) -> Ending {
    let changed = |state: &State| state.cuts != begun.cuts || state.abandoned != begun.abandoned;
    match state.wait_for(changed).await {
        Err(_) => Ending::Closed,
        Ok(state) if state.cuts != begun.cuts => Ending::Cut,
        Ok(state) => Ending::Abandoned(state.abandoned.1),
    }
}

/// Reads the remaining bytes of this end, answers nothing, and resets the connection once the
/// network heals.
async fn leave_waiting(mut end: TcpStream, begun: State, mut state: watch::Receiver<State>) {
    let mut said = vec![0; 4 << 10];
    let listening = async { while end.read(&mut said).await.is_ok_and(|count| count > 0) {} };
    tokio::select! {
        () = listening => {}
        _ = state.wait_for(|state| state.heals != begun.heals || state.cuts != begun.cuts) => {}
    }
    reset(end);
}

/// Closes a connection with RST instead of FIN.
fn reset(end: TcpStream) {
    // If this fails, the connection ends with FIN, which the peer must handle as well.
    let _ = end.set_zero_linger();
}
