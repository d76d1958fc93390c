//! Tests that show that every fault happens, and is over once it is healed.

mod database;
mod disk;
mod http;
mod kafka;
mod mock;
mod processes;
mod rabbitmq;
mod scene;
mod servers;
mod sqlite;
mod sqs;
mod wires;

use std::process::ExitCode;

fn main() -> ExitCode {
    let groups = [
        database::trials(),
        disk::trials(),
        http::trials(),
        kafka::trials(),
        mock::trials(),
        processes::trials(),
        rabbitmq::trials(),
        servers::trials(),
        sqlite::trials(),
        sqs::trials(),
        wires::trials(),
    ];
    tests::run(tests::trial::at_night(groups.into_iter().flatten().collect()))
}
