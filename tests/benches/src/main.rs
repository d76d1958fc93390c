//! Benchmarks on real services. Each compares the toolkit with its bare parts or its peers in the
//! same run, interleaved, and reports ratios with their spread: absolute figures depend on the
//! machine and its neighbours.

mod cli;
mod enqueue;
mod environment;
mod idempotency;
mod inbox_guard;
mod latency;
mod peers;
mod plot;
mod relay_drain;
mod relay_flat;
mod relay_handover;
mod relay_idle;
mod relay_memory;
mod relay_metrics;
mod relay_parked;
mod relay_transactions;
mod report;
mod retention;
mod rig;
mod saga_steps;
mod target;

use std::process::ExitCode;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> ExitCode {
    match cli::run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}
