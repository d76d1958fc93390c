//! One client and its server, until either ends or the network says so.

use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::conditions::{End, Way};
use crate::counts::{Counters, count};
use crate::pump::{Ended, Pump};
use crate::server::State;

/// How a connection ends.
enum Ending {
    /// Its ends finished it, or the proxy itself ends.
    Closed,
    /// One end broke it: the other one learns it the same way.
    Lost,
    /// The network breaks it.
    Cut,
    /// One end has gone; the other one is not told.
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
    // Latency as without a proxy; a refusal changes nothing else.
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

/// Carries bytes both ways until that ends.
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

/// Waits for the next order that concerns a connection of this beginning.
async fn ordered(begun: State, mut state: watch::Receiver<State>) -> Ending {
    let changed = |state: &State| state.cuts != begun.cuts || state.abandoned != begun.abandoned;
    match state.wait_for(changed).await {
        Err(_) => Ending::Closed,
        Ok(state) if state.cuts != begun.cuts => Ending::Cut,
        Ok(state) => Ending::Abandoned(state.abandoned.1),
    }
}

/// Takes what this end still says, answers nothing, and breaks the connection once the network
/// heals.
async fn leave_waiting(mut end: TcpStream, begun: State, mut state: watch::Receiver<State>) {
    let mut said = vec![0; 4 << 10];
    let listening = async { while end.read(&mut said).await.is_ok_and(|count| count > 0) {} };
    tokio::select! {
        () = listening => {}
        _ = state.wait_for(|state| state.heals != begun.heals || state.cuts != begun.cuts) => {}
    }
    reset(end);
}

/// Closes with RST instead of FIN.
fn reset(end: TcpStream) {
    // Without it the end is closed politely, which its peer has to bear as well.
    let _ = end.set_zero_linger();
}
