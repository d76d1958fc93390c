//! Explores the models and prints what was found: `cargo run --release -p model -- --large`.

use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use comfy_table::{Table, presets::UTF8_FULL_CONDENSED};
use model::{Explored, consumers, explore, relays};
use serde::Serialize;

/// Explores every interleaving of the protocol within bounds.
#[derive(Debug, Parser)]
struct Arguments {
    /// Larger bounds: minutes instead of seconds.
    #[arg(long)]
    large: bool,
    /// Also explore the models with one rule left out at a time; each must be found.
    #[arg(long)]
    breakages: bool,
    /// How to print what was found.
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
    /// Whether a broken promise is what is expected.
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
    for (name, is_pipelined) in [("relays, one in flight per key", false), ("relays, pipelined", true)] {
        let bounds = if arguments.large { relays::Relays::large } else { relays::Relays::small };
        eprintln!("exploring: {name}");
        lines.push(Line { model: name.into(), is_breakage: false, found: explore(bounds(is_pipelined)) });
    }
    let bounds = if arguments.large { consumers::Consumers::large() } else { consumers::Consumers::small() };
    eprintln!("exploring: consumers");
    lines.push(Line { model: "consumers".into(), is_breakage: false, found: explore(bounds) });
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
    relays.chain(consumers).collect()
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
