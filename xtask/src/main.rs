//! The task runner of laptop and CI: `cargo xtask <task>`.

mod backends;
mod bench;
mod cargo;
mod cargo_output;
mod checks;
mod child;
mod clients;
mod demo;
mod deny;
mod features;
mod fuzz;
mod git;
mod mutants;
mod outside;
mod package;
mod part;
mod report;
mod require;
mod services;
mod storm;
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
    Test(checks::gate::Test),
    Night(checks::night::Night),
    Check(checks::single::Single),
    Bench(bench::Bench),
    Demo(demo::Demo),
    Storm(storm::Storm),
    Mutants(mutants::Mutants),
    Fuzz(fuzz::Fuzz),
}

fn main() -> ExitCode {
    let result = match Cli::parse().task {
        Task::Services(command) => services::run(&command),
        Task::Test(options) => checks::gate::run(&options),
        Task::Night(options) => checks::night::run(&options),
        Task::Check(options) => checks::single::run(&options),
        Task::Bench(options) => bench::run(&options),
        Task::Demo(options) => demo::run(&options),
        Task::Storm(options) => storm::run(&options),
        Task::Mutants(options) => mutants::run(&options),
        Task::Fuzz(options) => fuzz::run(&options),
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::FAILURE
    })
}
