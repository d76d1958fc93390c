//! Explores the models and prints the findings: `cargo run --release -p model -- --large`.

use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use comfy_table::{Table, presets::UTF8_FULL_CONDENSED};
use model::{Explored, consumers, explore, pending, relays, sagas, transactions};
use serde::Serialize;

/// Explores every interleaving of the protocol within bounds.
#[derive(Debug, Parser)]
struct Arguments {
    /// Larger bounds: minutes instead of seconds.
    #[arg(long)]
    large: bool,
    /// Also explore the models with one rule left out at a time; each absence must be found.
    #[arg(long)]
    breakages: bool,
    /// The format of the findings.
    #[arg(long, value_enum, default_value = "table")]
    output: Output,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Output {
    Table,
    Json,
}

#[derive(Debug, Serialize)]
struct Line {
    model: String,
    /// Whether a broken promise is expected.
    is_breakage: bool,
    #[serde(flatten)]
    found: Explored,
}

impl Line {
    fn is_as_expected(&self) -> bool {
        if self.is_breakage { !self.found.broken.is_empty() } else { self.found.holds() }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut lines = Vec::new();
    for (kind, is_pipelined) in [("one in flight per key", false), ("pipelined", true)] {
        let small = relays::Relays::small(is_pipelined);
        let larger = if arguments.large { relays::Relays::large(is_pipelined) } else { Vec::new() };
        for bounds in std::iter::once(small).chain(larger) {
            let model = format!(
                "relays, {kind}: keys {:?}, {} grants, {} messages, {} faults",
                bounds.keys, bounds.epochs_max, bounds.log_max, bounds.faults_max
            );
            lines.push(line(model, bounds));
        }
    }
    lines.push(line("consumers: small".into(), consumers::Consumers::small()));
    if arguments.large {
        lines.push(line("consumers: large".into(), consumers::Consumers::large()));
    }
    let larger = if arguments.large { pending::Pending::large() } else { Vec::new() };
    for bounds in pending::Pending::small().into_iter().chain(larger) {
        let model = format!(
            "pending{}: keys {:?}, {} grants, {} faults",
            if bounds.has_gaps { ", views with gaps" } else { "" },
            bounds.keys,
            bounds.epochs_max,
            bounds.faults_max
        );
        lines.push(line(model, bounds));
    }
    lines.push(line("sagas: small".into(), sagas::Sagas::small()));
    if arguments.large {
        lines.push(line("sagas: large".into(), sagas::Sagas::large()));
    }
    lines.push(line("transactions: small".into(), transactions::Transactions::small()));
    if arguments.large {
        lines.push(line("transactions: large".into(), transactions::Transactions::large()));
    }
    if arguments.breakages {
        lines.extend(breakages());
    }
    match arguments.output {
        Output::Table => println!("{}", table(&lines)),
        Output::Json => match serde_json::to_string_pretty(&lines) {
            Ok(text) => println!("{text}"),
            Err(error) => eprintln!("cannot write JSON: {error}"),
        },
    }
    let is_good = lines.iter().all(Line::is_as_expected);
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Explores a model that keeps every rule.
fn line<M>(model: String, bounds: M) -> Line
where
    M: stateright::Model + Send + Sync + 'static,
    M::State: Clone + std::fmt::Debug + std::hash::Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + std::fmt::Debug + PartialEq + Send + Sync + 'static,
{
    eprintln!("exploring {model}");
    let found = explore(bounds);
    eprintln!("  {} states in {:.1} s", found.states, found.took.as_secs_f64());
    Line { model, is_breakage: false, found }
}

fn breakages() -> Vec<Line> {
    let relays = relays::Breakage::ALL.into_iter().map(|breakage| Line {
        model: format!("relays without: {breakage:?}"),
        is_breakage: true,
        found: explore(relays::Relays::without(breakage)),
    });
    let consumers = consumers::Breakage::ALL.into_iter().map(|breakage| Line {
        model: format!("consumers without: {breakage:?}"),
        is_breakage: true,
        found: explore(consumers::Consumers::without(breakage)),
    });
    let pending = pending::Breakage::ALL.into_iter().map(|breakage| Line {
        model: format!("pending without: {breakage:?}"),
        is_breakage: true,
        found: explore(pending::Pending::without(breakage)),
    });
    let sagas = sagas::Breakage::ALL.into_iter().map(|breakage| Line {
        model: format!("sagas without: {breakage:?}"),
        is_breakage: true,
        found: explore(sagas::Sagas::without(breakage)),
    });
    let transactions = transactions::Breakage::ALL.into_iter().map(|breakage| Line {
        model: format!("transactions without: {breakage:?}"),
        is_breakage: true,
        found: explore(transactions::Transactions::without(breakage)),
    });
    relays.chain(consumers).chain(pending).chain(sagas).chain(transactions).collect()
}

fn table(lines: &[Line]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED).set_header(["model", "states", "depth", "seconds", "found"]);
    for Line { model, is_breakage, found } in lines {
        let mut what: Vec<String> = found
            .broken
            .iter()
            .map(|broken| format!("breaks {:?} in {} steps", broken.promise, broken.steps.len()))
            .collect();
        if !is_breakage {
            what.extend(found.unreachable.iter().map(|name| format!("never reached: {name}")));
        }
        if what.is_empty() {
            what.push("every promise holds".into());
        }
        let seconds = format!("{:.1}", found.took.as_secs_f64());
        table.add_row([
            model.clone(),
            found.states.to_string(),
            found.depth.to_string(),
            seconds,
            what.join("\n"),
        ]);
    }
    table
}
