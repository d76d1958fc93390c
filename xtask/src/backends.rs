//! The services that tests and benches run against: started beforehand, passed on as variables.

use crate::{
    report,
    require::Require,
    services::{self, DIR_VARIABLE, Name, Outcome, TLS_DIR_VARIABLE, UpReport},
    workspace,
};
use std::{path::PathBuf, process::Command};

/// Path of this program, for tests that stop, crash and restart services.
const XTASK_VARIABLE: &str = "OUTBOX_XTASK";

/// Files and jars that some tests need besides the services.
const TOOLS: [ToolKind; 6] = [
    ToolKind {
        name: "libfaketime",
        gives: "clock jumps",
        variable: "OUTBOX_FAKETIME",
        get: services::faketime::library,
    },
    ToolKind {
        name: "promtool",
        gives: "alert rules",
        variable: "OUTBOX_PROMTOOL",
        get: services::promtool::program,
    },
    ToolKind {
        name: "chromedriver",
        gives: "browser",
        variable: "OUTBOX_CHROMEDRIVER",
        get: services::chromium::driver,
    },
    ToolKind { name: "axe-core", gives: "accessibility", variable: "OUTBOX_AXE", get: services::axe::script },
    ToolKind { name: "python3", gives: "Python", variable: "OUTBOX_PYTHON", get: services::python::program },
    ToolKind {
        name: "debezium",
        gives: "Debezium",
        variable: services::debezium::JARS_VARIABLE,
        get: services::debezium::install,
    },
];

/// Something that is downloaded or installed: a file or a folder.
struct ToolKind {
    name: &'static str,
    /// The use that tests make of it.
    gives: &'static str,
    variable: &'static str,
    get: Get,
}

/// A function that finds the file, and reports its progress.
type Get = fn(&dyn Fn(&str)) -> Result<PathBuf, services::Fault>;

/// A file, or the reason why it is missing.
struct Tool {
    kind: &'static ToolKind,
    file: Result<PathBuf, String>,
}

/// The extent of a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// The servers that the clients in other languages and the examples with other drivers use.
    Clients,
    /// The servers that the gate tests against.
    Services,
    /// Every service and every tool that any test needs.
    Everything,
}

impl Extent {
    fn services(self) -> &'static [Name] {
        match self {
            Self::Clients => &[Name::Postgres, Name::Rabbitmq],
            Self::Services => &[Name::Postgres, Name::Kafka, Name::Rabbitmq, Name::Sqs],
            Self::Everything => &Name::ALL,
        }
    }

    fn tools(self) -> &'static [ToolKind] {
        match self {
            Self::Clients | Self::Services => &[],
            Self::Everything => &TOOLS,
        }
    }
}

/// A component, and how tests reach it.
struct Backend {
    name: Name,
    /// Its address, or the reason why it is ignored.
    address: Result<String, String>,
    started_by_us: bool,
    /// Run by another party: tests must not stop it.
    external: bool,
}

pub(crate) struct Backends {
    all: Vec<Backend>,
    tools: Vec<Tool>,
    /// Looked up before anything is built: building the workspace replaces the file, and then the
    /// path of this process's own program leads to a deleted file.
    xtask: PathBuf,
}

impl Backends {
    /// Starts everything that is not running.
    pub(crate) fn up(extent: Extent) -> Result<Self, String> {
        let xtask = own_program()?;
        let all = services::up(extent.services()).into_iter().map(Backend::from).collect();
        let get = |kind: &'static ToolKind| {
            let file = (kind.get)(&|phase| eprintln!("{}: {phase}", kind.name));
            Tool { kind, file: file.map_err(|fault| fault.to_string()) }
        };
        Ok(Self { all, tools: extent.tools().iter().map(get).collect(), xtask })
    }

    /// Starts nothing, for tests without services.
    pub(crate) fn none() -> Result<Self, String> {
        Ok(Self { all: Vec::new(), tools: Vec::new(), xtask: own_program()? })
    }

    pub(crate) fn table(&self) -> String {
        let row = |backend: &Backend| match &backend.address {
            Ok(address) => [backend.name.to_string(), "real".to_owned(), report::without_password(address)],
            Err(why) => {
                // The rest, such as the end of a log, was shown on stderr.
                let first_line = why.lines().next().unwrap_or_default().to_owned();
                [backend.name.to_string(), "ignored".to_owned(), first_line]
            }
        };
        let restarts = match self.externals().as_slice() {
            [] => ["restarts".to_owned(), "real".to_owned(), "cargo xtask services restart".to_owned()],
            names => {
                let why = format!("not ours to stop: {}", names.join(", "));
                ["restarts".to_owned(), "ignored".to_owned(), why]
            }
        };
        let tools = self.tools.iter().map(|tool| match &tool.file {
            Ok(file) => [tool.kind.gives.to_owned(), "real".to_owned(), file.display().to_string()],
            Err(why) => [tool.kind.gives.to_owned(), "ignored".to_owned(), why.lines().take(1).collect()],
        });
        let rows = self.all.iter().map(row).chain([restarts]).chain(tools);
        report::table(["backend", "tests", "address or reason"], rows)
    }

    fn externals(&self) -> Vec<&'static str> {
        self.all.iter().filter(|backend| backend.external).map(|backend| backend.name.as_str()).collect()
    }

    /// Fails when a required service is missing.
    pub(crate) fn require(&self, require: &Require) -> Result<(), String> {
        let tools = self.tools.iter().filter(|_| *require == Require::All).filter_map(|tool| {
            Some(format!("{} is required: {}", tool.kind.name, tool.file.as_ref().err()?))
        });
        let missing: Vec<String> = self
            .all
            .iter()
            .filter(|backend| require.includes(backend.name))
            .filter_map(|backend| {
                Some(format!("{} is required: {}", backend.name, backend.address.as_ref().err()?))
            })
            .chain(tools)
            .collect();
        if missing.is_empty() { Ok(()) } else { Err(missing.join("\n")) }
    }

    /// Gives a command the addresses, and removes variables whose address leads nowhere.
    pub(crate) fn hand_over(&self, command: &mut Command) -> Result<(), String> {
        for backend in &self.all {
            match &backend.address {
                Ok(address) => {
                    if !backend.external {
                        command.envs(
                            services::secure_addresses(backend.name).map_err(|fault| fault.to_string())?,
                        );
                    }
                    command.env(backend.name.variable(), address)
                }
                Err(_) => command.env_remove(backend.name.variable()),
            };
        }
        // Tests that crash services would use an external instance, but stop a private one.
        if self.externals().is_empty() {
            command.env(XTASK_VARIABLE, &self.xtask);
        } else {
            command.env_remove(XTASK_VARIABLE);
        }
        for Tool { kind, file } in &self.tools {
            match file {
                Ok(file) => command.env(kind.variable, file),
                Err(_) => command.env_remove(kind.variable),
            };
        }
        let folder = services::services_dir().map_err(|fault| fault.to_string())?;
        if !self.all.iter().any(|backend| backend.external) {
            command.env(TLS_DIR_VARIABLE, folder.join("tls"));
        }
        command.env(DIR_VARIABLE, folder);
        Ok(())
    }

    /// Returns name and version of the services that are ours.
    pub(crate) fn versions(&self) -> String {
        let version = |backend: &Backend| {
            let version = services::version(backend.name).ok().flatten().filter(|_| !backend.external)?;
            Some(format!("{} {version}", backend.name))
        };
        self.all.iter().filter_map(version).collect::<Vec<_>>().join(", ")
    }

    /// Stops, in CI, the services that were started here. On a laptop they keep running for a fast
    /// second run.
    pub(crate) fn release(&self) {
        let ours: Vec<Name> =
            self.all.iter().filter(|backend| backend.started_by_us).map(|backend| backend.name).collect();
        if ours.is_empty() {
            return;
        }
        if !workspace::is_ci() {
            eprintln!("Services keep running for the next time; stop them with `cargo xtask services down`.");
            return;
        }
        for (name, result) in services::down(&ours, false) {
            if let Err(fault) = result {
                eprintln!("{name}: {fault}");
            }
        }
    }
}

fn own_program() -> Result<PathBuf, String> {
    std::env::current_exe().map_err(|error| format!("cannot find xtask's own program: {error}"))
}

impl From<UpReport> for Backend {
    fn from(report: UpReport) -> Self {
        let external = matches!(report.outcome, Outcome::External(_));
        let address = match &report.outcome {
            Outcome::Missing(fault) => {
                eprintln!("{}: {fault}", report.name);
                Err(fault.to_string())
            }
            _ => report.address().ok_or_else(|| "no address".to_owned()),
        };
        Self {
            name: report.name,
            address,
            started_by_us: matches!(report.outcome, Outcome::Started),
            external,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;

    fn backends(external: bool) -> Backends {
        let backend = |name, address| Backend { name, address, started_by_us: false, external };
        let all = vec![
            backend(Name::Kafka, Err("no java".to_owned())),
            backend(Name::Sqs, Ok("http://127.0.0.1:1".to_owned())),
        ];
        let tool = |kind: &'static ToolKind| Tool { kind, file: Ok(PathBuf::from("/lib").join(kind.name)) };
        let tools = TOOLS.iter().map(tool).collect();
        Backends { all, tools, xtask: PathBuf::from("/bin/xtask") }
    }

    fn handed_over(backends: &Backends, key: &str) -> Option<Option<OsString>> {
        let mut command = Command::new("true");
        backends.hand_over(&mut command).expect("handed over");
        command.get_envs().find(|(name, _)| *name == key).map(|(_, value)| value.map(ToOwned::to_owned))
    }

    #[test]
    fn a_missing_service_counts_only_when_required() {
        assert_eq!(backends(false).require(&Require::None), Ok(()));
        assert_eq!(backends(false).require(&Require::These(vec![Name::Sqs])), Ok(()));
        assert_eq!(backends(false).require(&Require::All), Err("kafka is required: no java".to_owned()));
    }

    #[test]
    fn the_command_gets_addresses_and_loses_dead_ones() {
        let backends = backends(false);
        assert_eq!(handed_over(&backends, "OUTBOX_SQS_ENDPOINT"), Some(Some("http://127.0.0.1:1".into())));
        assert_eq!(handed_over(&backends, "OUTBOX_KAFKA_BROKERS"), Some(None), "removed");
        assert_eq!(handed_over(&backends, XTASK_VARIABLE), Some(Some("/bin/xtask".into())));
        assert_eq!(handed_over(&backends, "OUTBOX_FAKETIME"), Some(Some("/lib/libfaketime".into())));
    }

    #[test]
    fn a_missing_tool_counts_only_when_all_is_required() {
        let mut backends = Backends { all: Vec::new(), ..backends(false) };
        backends.tools[0].file = Err("no apt".to_owned());
        assert_eq!(backends.require(&Require::None), Ok(()));
        assert_eq!(backends.require(&Require::All), Err("libfaketime is required: no apt".to_owned()));
        assert_eq!(handed_over(&backends, "OUTBOX_FAKETIME"), Some(None), "removed");
    }

    #[test]
    fn nobody_elses_service_is_restarted() {
        assert_eq!(handed_over(&backends(true), XTASK_VARIABLE), Some(None));
    }
}
