//! The task runner of laptop and CI: `cargo xtask <task>`.

mod report;
mod require;
mod services;
mod workspace;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about = "Tasks for laptop and CI", version)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    #[command(subcommand)]
    Services(services::Command),
}

fn main() -> ExitCode {
    let result = match Cli::parse().task {
        Task::Services(command) => services::run(&command),
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::FAILURE
    })
}
