//! The faults of a storm: faults that it shares with the demo, and its own.
//!
//! | module | contents |
//! |---|---|
//! | [`crash`] | processes that end at a named place in their code |
//! | [`clock`] | processes whose wall clock jumps |
//! | [`servers`] | servers that stop and come back |
//! | [`pooler`] | a pooler between relays and the database |
//! | [`database`] | rival sessions, and the disk |
//! | [`broker`] | the answers of a broker |

pub mod broker;
pub mod clock;
pub mod crash;
pub mod database;
pub mod pooler;
pub mod servers;

use harness::faults::{Fault, FaultKind, Faults, Injected, Kill, Pause, millis, seconds, tcp};

use crate::pair::{BrokerKind, DatabaseKind, Pair};
use crate::stage::Stage;

/// Returns every fault that suits this pair and that this machine offers.
#[must_use]
pub fn catalogue(pair: Pair) -> Faults<Stage> {
    let mut faults: Faults<Stage> = vec![Box::new(Kill), Box::new(Pause::default())];
    faults.extend(boxed(clock::ClockJump::from_environment()));
    faults.extend(boxed(servers::Server::all(pair)));
    // A file has no connection, and neither does a broker inside this process.
    if pair.database != DatabaseKind::Sqlite || pair.broker != BrokerKind::MockKafka {
        faults.extend(boxed(tcp::Tcp::all()));
    }
    faults.extend(database::all(pair.database));
    if pair.database == DatabaseKind::Postgres {
        faults.extend(boxed(pooler::Pooler::from_environment().into_iter().flatten()));
    }
    faults.extend(broker::all(pair.broker));
    faults
}

fn boxed<F: Fault<Stage> + 'static>(
    faults: impl IntoIterator<Item = F>,
) -> impl Iterator<Item = Box<dyn Fault<Stage>>> {
    faults.into_iter().map(|fault| Box::new(fault) as Box<dyn Fault<Stage>>)
}

/// Returns the faults that this machine does not offer, with the reasons. A report names them; CI
/// requires that there are none.
#[must_use]
pub fn missing() -> Vec<(&'static str, String)> {
    clock::ClockJump::from_environment().err().map(|why| (clock::NAME, why)).into_iter().collect()
}
