//! The table of all checks: where each one runs, and why.

use super::{
    outcome::Outcome,
    programs,
    suites::{self, Cases},
};
use crate::{
    backends::{Backends, Extent as Backing},
    bench,
    cargo::{cargo, step},
    clients, demo, deny, features, fuzz, mutants, outside, package,
    require::Require,
    services::Name,
    storm, workspace,
};

/// The run that a check belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// With every change.
    Gate,
    /// Before a larger piece of work counts as done, and every night.
    Night,
}

impl Place {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Gate => "gate",
            Self::Night => "night",
        }
    }
}

/// The needs of a check besides the workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Needs {
    Nothing,
    /// The test programs.
    Programs,
    /// The test programs, PostgreSQL, Kafka, RabbitMQ and SQS.
    Services,
    /// All services, the browser, Debezium and everything else that any test needs.
    Everything,
}

/// The instructions for a check.
#[derive(Clone, Debug)]
pub(super) struct Told {
    pub(super) require: Require,
    pub(super) place: Place,
}

/// One check.
#[derive(Debug)]
pub(super) struct Check {
    pub(super) name: &'static str,
    pub(super) place: Place,
    /// Its purpose, and why it runs where it does.
    pub(super) why: &'static str,
    pub(super) needs: Needs,
    pub(super) run: fn(&Told) -> Result<Outcome, String>,
}

/// In the order in which they are listed; quick failures first.
pub(super) const ALL: [Check; 33] = [
    Check {
        name: "fmt",
        place: Place::Gate,
        why: "the form of every Rust file: a second",
        needs: Needs::Nothing,
        run: |_| {
            step("formatting", &mut cargo(["fmt", "--all", "--check"])?)?;
            for example in outside::ALL {
                let what = format!("formatting of examples/{example}");
                step(&what, &mut outside::cargo(example, ["fmt", "--check"])?)?;
            }
            Ok(Outcome::passed())
        },
    },
    Check {
        name: "clippy",
        place: Place::Gate,
        why: "lints of the whole workspace, once, with its default features: warnings are errors",
        needs: Needs::Nothing,
        run: |_| {
            let lints = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
            Ok(step("lints", &mut cargo(lints)?).into())
        },
    },
    Check {
        name: "patches",
        place: Place::Gate,
        why: "every planted breakage still applies: seconds, and one that rots proves nothing",
        needs: Needs::Nothing,
        run: |_| Ok(mutants::check(&mutants::Mutants::applied()).into()),
    },
    Check {
        name: "unit",
        place: Place::Gate,
        why: "decisions and parsers of every crate of the product, and the documents: no service, minutes",
        needs: Needs::Programs,
        run: |told| unit(told),
    },
    Check {
        name: "simulation",
        place: Place::Gate,
        why: "relay and consumer under virtual time, 250 schedules, and every planted breakage: a minute",
        needs: Needs::Programs,
        run: |told| suite(told, "simulation", "schedules", Needs::Programs),
    },
    Check {
        name: "conformance",
        place: Place::Gate,
        why: "both seams of the databases: finds most broken promises",
        needs: Needs::Services,
        run: |told| suite(told, "tests", "conformance", Needs::Services),
    },
    Check {
        name: "brokers",
        place: Place::Gate,
        why: "the contract of every adapter on its real broker",
        needs: Needs::Services,
        run: |told| suite(told, "tests", "brokers", Needs::Services),
    },
    Check {
        name: "tls",
        place: Place::Gate,
        why: "whom connections trust: two minutes, and a mistake is a hole",
        needs: Needs::Services,
        run: |told| suite(told, "tests", "tls", Needs::Services),
    },
    Check {
        name: "canary",
        place: Place::Gate,
        why: "no secret and no payload is logged: a minute, and a mistake is a leak",
        needs: Needs::Services,
        run: |told| suite(told, "tests", "canary", Needs::Services),
    },
    Check {
        name: "end-to-end",
        place: Place::Gate,
        why: "the real program between producer and consumer, over every broker: delivery, crashes, leadership, holding, set-up",
        needs: Needs::Services,
        run: |told| suite(told, "tests", "end_to_end", Needs::Services),
    },
    Check {
        name: "doc-tests",
        place: Place::Night,
        why: "the examples in the documentation compile and run: each is a program of its own to link",
        needs: Needs::Nothing,
        run: |_| suites::doc_tests(),
    },
    Check {
        name: "documentation",
        place: Place::Night,
        why: "rustdoc without a warning: a third compilation of everything",
        needs: Needs::Nothing,
        run: |_| {
            let mut doc = cargo(["doc", "--workspace", "--no-deps"])?;
            Ok(step("documentation", doc.env("RUSTDOCFLAGS", "-D warnings")).into())
        },
    },
    Check {
        name: "features",
        place: Place::Night,
        why: "23 selections of features, compiled and documented: minutes",
        needs: Needs::Nothing,
        run: |_| Ok(features::check().into()),
    },
    Check {
        name: "adapter",
        place: Place::Night,
        why: "an adapter outside the workspace passes the conformance kit: a workspace of its own to build",
        needs: Needs::Nothing,
        run: |_| {
            step("lints of the adapter", &mut outside::cargo(outside::ADAPTER, LINTS)?)?;
            suites::outside(outside::ADAPTER, &Backends::none()?)
        },
    },
    Check {
        name: "drivers",
        place: Place::Night,
        why: "Diesel, diesel-async, SeaORM and tokio-postgres, with RabbitMQ: four drivers to build",
        needs: Needs::Services,
        run: |_| drivers(),
    },
    Check {
        name: "package",
        place: Place::Night,
        why: "every published package can be packed: changes with manifests only",
        needs: Needs::Nothing,
        run: |_| Ok(package::check().into()),
    },
    Check {
        name: "deny",
        place: Place::Night,
        why: "licences, bans, sources, advisories: changes with Cargo.lock and with the world",
        needs: Needs::Nothing,
        run: |_| match deny::run()? {
            None => Ok(Outcome::passed()),
            // A job that watches for advisories must not be green without them.
            Some(why) if workspace::is_ci() => Err(why),
            Some(why) => Ok(Outcome::passed_but_for(format!("advisories: {why}"))),
        },
    },
    Check {
        name: "alerts",
        place: Place::Night,
        why: "the alert rules in promtool: needs Prometheus",
        needs: Needs::Everything,
        run: |told| alerts(told),
    },
    Check {
        name: "model",
        place: Place::Night,
        why: "the protocol as a finite model: changes rarely",
        needs: Needs::Programs,
        run: |told| suite(told, "model", "model", Needs::Programs),
    },
    Check {
        name: "unit-whole",
        place: Place::Night,
        why: "unit tests of benchmarks, examples, fuzz targets and storm, whose packages the gate does not build",
        needs: Needs::Programs,
        run: |told| unit_of_the_night(told),
    },
    Check {
        name: "conformance-whole",
        place: Place::Night,
        why: "cases of the suite on servers of their own, or that measure times or wait for a clock",
        needs: Needs::Everything,
        run: |told| suite(told, "tests", "conformance", Needs::Everything),
    },
    Check {
        name: "brokers-whole",
        place: Place::Night,
        why: "cases of the suite that crash relays or wait for a broker's clock",
        needs: Needs::Everything,
        run: |told| suite(told, "tests", "brokers", Needs::Everything),
    },
    Check {
        name: "tls-whole",
        place: Place::Night,
        why: "certificates that are renewed: a Kafka server of its own, and queues that wait for a visibility timeout",
        needs: Needs::Everything,
        run: |told| suite(told, "tests", "tls", Needs::Everything),
    },
    Check {
        name: "end-to-end-whole",
        place: Place::Night,
        why: "every command, the page in a browser, adoption from Debezium: needs Chromium and jars",
        needs: Needs::Everything,
        run: |told| suite(told, "tests", "end_to_end", Needs::Everything),
    },
    Check {
        name: "examples",
        place: Place::Night,
        why: "the examples and the quick start, run as a user runs them: built apart",
        needs: Needs::Everything,
        run: |told| suite(told, "tests", "examples", Needs::Everything),
    },
    Check {
        name: "clients",
        place: Place::Night,
        why: "clients in Python, TypeScript, Go and Java, and one pipeline through all: needs these languages",
        needs: Needs::Services,
        run: |_| clients(),
    },
    Check {
        name: "disruptive",
        place: Place::Night,
        why: "servers that crash: these cases run alone, one after the other",
        needs: Needs::Everything,
        run: |told| suite(told, "tests", "disruptive", Needs::Everything),
    },
    Check {
        name: "faults",
        place: Place::Night,
        why: "each fault of the storm by itself, against servers that it stops",
        needs: Needs::Everything,
        run: |told| suite(told, "storm", "faults", Needs::Everything),
    },
    Check {
        name: "fuzz",
        place: Place::Night,
        why: "every fuzz target for half a minute: a search, not a judgement",
        needs: Needs::Nothing,
        run: |_| Ok(fuzz::execute(&fuzz::Fuzz::nightly()).into()),
    },
    Check {
        name: "demo",
        place: Place::Night,
        why: "the demo twenty times, each with a seed of its own",
        needs: Needs::Nothing,
        run: |_| Ok(demo::check(&demo::Demo::nightly()).into()),
    },
    Check {
        name: "bench",
        place: Place::Night,
        why: "every benchmark, small and once, so that none can rot",
        needs: Needs::Everything,
        run: |_| Ok(bench::quick().into()),
    },
    Check {
        name: "storm",
        place: Place::Night,
        why: "faults at random over every pair of database and broker",
        needs: Needs::Nothing,
        run: |_| Ok(storm::nightly().into()),
    },
    Check {
        name: "mutants",
        place: Place::Night,
        why: "the code broken on purpose, each breakage found by its test: builds once a breakage",
        needs: Needs::Everything,
        run: |_| Ok(mutants::check(&mutants::Mutants::all()).into()),
    },
];

/// Returns the check with this name.
pub(super) fn find(name: &str) -> Result<&'static Check, String> {
    let found = ALL.iter().find(|check| check.name == name);
    found.ok_or_else(|| {
        let known: Vec<&str> = ALL.iter().map(|check| check.name).collect();
        format!("no check is called {name:?}; known are {}", known.join(", "))
    })
}

/// Returns all checks of a place.
pub(super) fn of(place: Place) -> Vec<&'static Check> {
    ALL.iter().filter(|check| check.place == place).collect()
}

impl Needs {
    /// Returns the backends that are started for a check with these needs.
    pub(super) fn backing(self) -> Option<Backing> {
        match self {
            Self::Nothing | Self::Programs => None,
            Self::Services => Some(Backing::Services),
            Self::Everything => Some(Backing::Everything),
        }
    }
}

/// Runs the unit tests of every crate, and the tests of crates that need no service.
fn unit(told: &Told) -> Result<Outcome, String> {
    // The alert rules are a check of their own: promtool comes with Prometheus.
    let arguments = vec!["--skip".to_owned(), PROMTOOL.to_owned()];
    let options = suites::Options { require: told.require.clone(), cases: Cases::All, arguments };
    suites::run(&options, &Backends::none()?, |program| {
        let is_suite = program.package == "tests" && program.kind == "test";
        let is_apart = (program.package == "simulation" && program.target == "schedules")
            || programs::LEFT_TO_THE_NIGHT.contains(&program.package.as_str());
        !is_suite && !is_apart
    })
}

/// Runs the unit tests of the packages that only the night builds.
fn unit_of_the_night(told: &Told) -> Result<Outcome, String> {
    let options = suites::Options { require: told.require.clone(), cases: Cases::All, arguments: Vec::new() };
    suites::run(&options, &Backends::none()?, |program| {
        let is_a_check = program.package == MODEL || (program.package == STORM && program.kind == "test");
        !is_a_check && programs::LEFT_TO_THE_NIGHT.contains(&program.package.as_str())
    })
}

/// The package whose tests are the check `model`, and the one whose integration tests are `faults`.
const MODEL: &str = "model";
const STORM: &str = "storm";

/// The beginning of the name of the test that needs promtool.
const PROMTOOL: &str = "promtool_";

/// The lints of an example outside the workspace.
const LINTS: [&str; 5] = ["clippy", "--all-targets", "--", "-D", "warnings"];

/// Runs the examples with other drivers. Their services are never optional.
fn drivers() -> Result<Outcome, String> {
    step("lints of the drivers", &mut outside::cargo(outside::DRIVERS, LINTS)?)?;
    let backends = Backends::up(Backing::Clients)?;
    backends.require(&Require::These(vec![Name::Postgres, Name::Rabbitmq]))?;
    suites::outside(outside::DRIVERS, &backends)
}

/// Runs the clients in other languages. Their services are never optional.
fn clients() -> Result<Outcome, String> {
    let backends = Backends::up(Backing::Clients)?;
    backends.require(&Require::These(vec![Name::Postgres, Name::Rabbitmq]))?;
    let clients::Tally { passed, failures } = clients::check(&backends)?;
    Ok(Outcome { passed, failed: failures.len() as u64, failures, ..Outcome::default() })
}

fn alerts(told: &Told) -> Result<Outcome, String> {
    let arguments = vec![PROMTOOL.to_owned()];
    let options = suites::Options { require: told.require.clone(), cases: Cases::All, arguments };
    let backends = Backends::up(Backing::Everything)?;
    suites::run(&options, &backends, |program| program.target == "operations")
}

/// Runs one suite: in the gate its cases of the gate, at night the others.
fn suite(told: &Told, package: &str, target: &str, needs: Needs) -> Result<Outcome, String> {
    let cases = match told.place {
        Place::Gate => Cases::Gate,
        Place::Night => Cases::Night,
    };
    let options = suites::Options { require: told.require.clone(), cases, arguments: Vec::new() };
    let backends = match needs.backing() {
        Some(backing) => Backends::up(backing)?,
        None => Backends::none()?,
    };
    backends.require(&told.require)?;
    suites::run(&options, &backends, |program| program.package == package && program.target == target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_check_has_a_name_of_its_own_and_a_reason() {
        for (nth, check) in ALL.iter().enumerate() {
            assert!(ALL[..nth].iter().all(|other| other.name != check.name), "{}", check.name);
            assert!(!check.why.is_empty(), "{}", check.name);
        }
    }

    /// Returns the names of the suites whose source marks cases as cases of the night.
    fn suites_with_cases_of_the_night() -> Vec<String> {
        let folder = workspace::root().expect("a workspace").join("tests/suites");
        let marks = |folder: &std::path::Path| {
            let mut found = false;
            let mut folders = vec![folder.to_path_buf()];
            while let Some(folder) = folders.pop() {
                for entry in std::fs::read_dir(folder).expect("a folder") {
                    let path = entry.expect("an entry").path();
                    if path.is_dir() {
                        folders.push(path);
                    } else {
                        let text = std::fs::read_to_string(path).expect("a text");
                        found |= text.lines().any(|line| line.trim_start().starts_with("night "));
                    }
                }
            }
            found
        };
        let all = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
        let all = all.filter(|path| marks(path));
        all.filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned())).collect()
    }

    #[test]
    fn every_case_of_the_night_has_its_check() {
        let suites = suites_with_cases_of_the_night();
        assert!(suites.len() > 3, "{suites:?}");
        for suite in suites {
            let name = suite.replace('_', "-");
            let of_the_night = [format!("{name}-whole"), name];
            let found = ALL.iter().find(|check| of_the_night.iter().any(|name| name == check.name));
            assert!(
                ALL.iter()
                    .any(|check| check.place == Place::Night
                        && of_the_night.iter().any(|name| name == check.name)),
                "{suite}: {found:?} is not a check of the night"
            );
        }
    }

    #[test]
    fn an_unknown_check_is_named_with_the_known_ones() {
        let error = find("clipy").expect_err("unknown");
        assert!(error.contains("clipy") && error.contains("clippy"), "{error}");
    }
}
