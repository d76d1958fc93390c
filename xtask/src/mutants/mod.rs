//! `cargo xtask mutants`: breaks the code on purpose, one rule at a time, and requires that each
//! breakage is found.
//!
//! A finder's output is shown only when its verdict is not the expected one.
//!
//! | file | what it holds |
//! |---|---|
//! | `patch.rs` | one breakage: a patch below `tests/mutations/`, its effect and its finder |
//! | `finder.rs` | the programs that can find a breakage, and their commands |
//! | `copy.rs` | the copy of the checkout in which the code is broken |

mod copy;
mod finder;
mod patch;

use crate::{
    backends::{Backends, Extent},
    part::Part,
    report,
};
use clap::Args;
use copy::Copy;
use finder::{Finder, Look, Verdict};
use patch::Patch;
use serde_json::json;
use std::{collections::BTreeSet, process::ExitCode};

/// Break the code on purpose, one patch of `tests/mutations/` after the other, and require that
/// each breakage is found.
///
/// Works in a copy below the build folder. A finder must pass on the unbroken copy first. A
/// breakage that does not compile counts as not found.
#[derive(Debug, Args)]
pub(crate) struct Mutants {
    /// Only patches whose file name contains one of these.
    names: Vec<String>,
    /// Only patches that this finder finds.
    #[arg(long)]
    finder: Vec<String>,
    /// Only a part of the patches, such as 2/4.
    #[arg(long, value_name = "K/N")]
    part: Option<Part>,
    /// Only check that the patches still apply.
    #[arg(long)]
    check: bool,
    /// How to print the result.
    #[arg(long, value_enum, default_value_t)]
    output: report::Output,
}

impl Mutants {
    /// Selects every breakage.
    pub(crate) fn all() -> Self {
        let output = report::Output::Table;
        Self { names: Vec::new(), finder: Vec::new(), part: None, check: false, output }
    }

    /// Selects only the check that every patch still applies.
    pub(crate) fn applied() -> Self {
        Self { check: true, ..Self::all() }
    }

    fn wants(&self, patch: &Patch) -> bool {
        let is_named = self.names.is_empty() || self.names.iter().any(|name| patch.name.contains(name));
        is_named && (self.finder.is_empty() || self.finder.iter().any(|word| word == patch.finder.word()))
    }
}

/// One breakage, and the outcome of the search for it.
struct Line {
    patch: Patch,
    look: Look,
}

pub(crate) fn run(options: &Mutants) -> Result<ExitCode, String> {
    let lines = execute(options)?;
    match options.output {
        report::Output::Json => {
            report::json(&json!(lines.iter().map(|line| line.json(options.check)).collect::<Vec<_>>()));
        }
        report::Output::Table => println!("{}", table(&lines, options.check)),
    }
    let is_good = lines.iter().all(|line| line.is_good(options.check));
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the breakages as a check of CI.
pub(crate) fn check(options: &Mutants) -> Result<(), String> {
    let lines = execute(options)?;
    println!("{}", table(&lines, options.check));
    let missed: Vec<&str> = lines
        .iter()
        .filter(|line| !line.is_good(options.check))
        .map(|line| line.patch.name.as_str())
        .collect();
    if missed.is_empty() { Ok(()) } else { Err(format!("not found: {}", missed.join(", "))) }
}

fn execute(options: &Mutants) -> Result<Vec<Line>, String> {
    let copy = Copy::new()?;
    // All patches must apply, whichever are run: an outdated patch is noticed at the next change.
    let patches = patch::all()?;
    for patch in &patches {
        copy.applies(patch)?;
    }
    let mut patches: Vec<Patch> = patches.into_iter().filter(|patch| options.wants(patch)).collect();
    if let Some(part) = options.part {
        patches = part.take(patches);
        eprintln!("part {part}: {} breakages; all of them without --part", patches.len());
    }
    if patches.is_empty() {
        return Err("no patch below tests/mutations/ has such a name and finder".into());
    }
    if options.check {
        let line = |patch| Line { patch, look: Look::default() };
        return Ok(patches.into_iter().map(line).collect());
    }
    let backends = if patches.iter().any(|patch| patch.finder.needs_services()) {
        Some(Backends::up(Extent::Everything)?)
    } else {
        None
    };
    let lines = find(&copy, patches, backends.as_ref());
    if let Some(backends) = backends {
        backends.release();
    }
    lines
}

fn find(copy: &Copy, mut patches: Vec<Patch>, backends: Option<&Backends>) -> Result<Vec<Line>, String> {
    // This comes before anything is broken, so that the good code is built once for all of them.
    let finders: BTreeSet<Finder> = patches.iter().map(|patch| patch.finder.clone()).collect();
    let mut passing = BTreeSet::new();
    for finder in &finders {
        if passes(finder, copy, backends)? {
            passing.insert(finder.clone());
        }
    }
    // Grouped by crate, so that removing one patch and applying the next rebuilds the same crate.
    patches.sort_by(|a, b| (&a.place, &a.finder).cmp(&(&b.place, &b.finder)));
    let mut lines = Vec::new();
    for patch in patches {
        eprintln!("broken:   {} ({})", patch.name, patch.finder);
        if !passing.contains(&patch.finder) {
            eprintln!("          not looked for: its finder does not pass on the unbroken code");
            lines.push(Line { patch, look: Look::default() });
            continue;
        }
        copy.apply(&patch)?;
        let looked = patch.finder.look(copy, backends);
        copy.revert(&patch)?;
        let look = looked?;
        if look.verdict != Verdict::Found {
            eprintln!("{}", look.printed);
        }
        let [built, took] = [look.built, look.took].map(|time| time.as_secs_f64());
        eprintln!("          {} after {took:.1} s, built in {built:.1} s", look.verdict);
        lines.push(Line { patch, look });
    }
    // A server that had died in between would have made every later search fail.
    if let Some(last) = passing.iter().rfind(|finder| finder.needs_services())
        && !passes(last, copy, backends)?
    {
        return Err(format!("{last} passed at the start, and no longer does on the unbroken code"));
    }
    lines.sort_by(|a, b| a.patch.name.cmp(&b.patch.name));
    Ok(lines)
}

/// Whether a finder finds nothing in the unbroken code.
fn passes(finder: &Finder, copy: &Copy, backends: Option<&Backends>) -> Result<bool, String> {
    eprintln!("unbroken: {finder}");
    let Look { verdict, printed, .. } = finder.look(copy, backends)?;
    if verdict != Verdict::Quiet {
        eprintln!("{printed}\n{finder} does not pass on the unbroken code: {verdict}");
    }
    Ok(verdict == Verdict::Quiet)
}

impl Line {
    fn is_good(&self, only_applied: bool) -> bool {
        only_applied || self.look.verdict == Verdict::Found
    }

    fn json(&self, only_applied: bool) -> serde_json::Value {
        json!({
            "name": self.patch.name,
            "breaks": self.patch.breaks,
            "finder": self.patch.finder.to_string(),
            "verdict": if only_applied { "applies".to_owned() } else { self.look.verdict.to_string() },
            "schedules": self.look.schedules,
            "build_seconds": self.look.built.as_secs_f64(),
            "seconds": self.look.took.as_secs_f64(),
        })
    }
}

fn table(lines: &[Line], only_applied: bool) -> String {
    let rows = lines.iter().map(|line| {
        let Look { verdict, built, took, schedules, .. } = line.look;
        let verdict = if only_applied { "applies".to_owned() } else { verdict.to_string() };
        let [built, took] = [built, took].map(|time| format!("{:.1}", time.as_secs_f64()));
        let schedules = schedules.map(|schedules| schedules.to_string()).unwrap_or_default();
        let Patch { name, breaks, finder, .. } = &line.patch;
        [name.clone(), breaks.clone(), finder.to_string(), verdict, schedules, built, took]
    });
    let heads = ["breakage", "breaks", "found by", "result", "schedules", "built in", "seconds"];
    report::wrapped_table(heads, rows)
}
