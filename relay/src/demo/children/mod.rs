//! Relays and consumers in processes of their own, so that they can be killed.
//!
//! A child reads its task as one line of JSON from standard input (not from its arguments: the task may hold a
//! password), tells its progress on standard output, logs to standard error, and stops in order when standard input
//! ends, which also happens when its parent dies.
//!
//! | file | what it holds |
//! |---|---|
//! | `relay.rs` | a relay |
//! | `consumer.rs` | a consumer |
//! | `journal.rs` | what a consumer received and settled, written down beside its inbox |

mod consumer;
mod journal;
mod relay;

use std::io::{BufRead, Write};
use std::thread;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

use super::error::DemoError;

pub use consumer::run_consumer;
pub(crate) use consumer::{CONSUMER_COMMAND, ConsumerTask};
pub(crate) use journal::{Journals, read_journals};
pub use relay::run_relay;
pub(crate) use relay::{RELAY_COMMAND, RelayEvent, RelayTask};

/// How long an orderly stop may take; the parent waits a little longer.
const STOP: Duration = Duration::from_secs(10);

/// Reads the task; the token is cancelled when standard input ends.
fn receive_task<T: DeserializeOwned>() -> Result<(T, CancellationToken), DemoError> {
    let filter = EnvFilter::new("info,lapin=error,aws=warn,rdkafka=error");
    // A second subscriber, when the program has set one already, is not needed.
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
    let what = "read the task of a demo process from standard input";
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).map_err(DemoError::during(what))?;
    let task = serde_json::from_str(&line).map_err(DemoError::during(what))?;
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    // A thread of its own: a blocked read must not keep the runtime from ending.
    let watch = move || {
        let mut rest = String::new();
        // Whatever it says, nothing more comes.
        let _ = std::io::stdin().lock().read_line(&mut rest);
        stopped.cancel();
        // With its parent, the broker inside it may be gone as well: nothing to wait for.
        thread::sleep(STOP);
        std::process::exit(1);
    };
    thread::Builder::new().name(String::from("stdin")).spawn(watch).map_err(DemoError::during(what))?;
    Ok((task, stop))
}

/// Tells the parent something. When it is gone, nobody listens, and standard input ends as well.
fn tell(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
