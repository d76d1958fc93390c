//! The clients in other languages: their form, their tests, and one pipeline through all of them.
//!
//! | module | what it does |
//! |---|---|
//! | [`names`] | the cases that every client has, and the promises of the pipeline |
//! | [`reports`] | reads which tests passed from what the test programs print |
//! | [`toolchains`] | finds the languages, or says which are missing |

mod names;
mod reports;
mod toolchains;

use crate::{backends::Backends, cargo, cargo::cargo, workspace};
pub(crate) use names::Tally;
use reports::Trial;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

/// The folders of a run.
struct Folders {
    /// The sources of all clients.
    sources: PathBuf,
    /// Programs, environments and logs.
    build: PathBuf,
    /// The program of the relay.
    relay: PathBuf,
}

/// Runs the tests of every client, then the pipeline. Needs PostgreSQL and RabbitMQ. A language
/// that is missing is an error, because a client without its tests proves nothing.
pub(crate) fn check(backends: &Backends) -> Result<Tally, String> {
    toolchains::require()?;
    let folders = prepare()?;
    let python = environment(&folders)?;
    let mut trials = Vec::new();
    let runs: [Run; 4] = [of_python, of_typescript, of_go, of_java];
    let names = ["python", "typescript", "go", "java"];
    for (name, run) in names.into_iter().zip(runs) {
        let mut create = in_folder(&folders, "pipeline", &python, &["pipeline.py", "databases", name]);
        backends.hand_over(&mut create)?;
        printed(&format!("{name}: a database"), &mut create)?;
        trials.extend(run(&Client { name, folders: &folders, backends, python: &python })?);
    }
    let mut pipeline = in_folder(&folders, "pipeline", &python, &["pipeline.py", "run"]);
    backends.hand_over(&mut pipeline)?;
    trials.extend(reports::of_pipeline(&output("the pipeline", &mut pipeline)?.text));
    Ok(names::tally(&trials))
}

/// Runs the tests of a client.
type Run = fn(&Client<'_>) -> Result<Vec<Trial>, String>;

/// A client and the environment of its tests.
struct Client<'a> {
    /// Its folder, and the end of the name of its database.
    name: &'a str,
    folders: &'a Folders,
    backends: &'a Backends,
    python: &'a Path,
}

impl Client<'_> {
    /// Returns a command in its folder.
    fn command(&self, program: impl AsRef<Path>, arguments: &[&str]) -> Command {
        in_folder(self.folders, self.name, program, arguments)
    }

    /// Runs a step that prepares the tests.
    fn step(&self, what: &str, program: impl AsRef<Path>, arguments: &[&str]) -> Result<String, String> {
        printed(&format!("{}: {what}", self.name), &mut self.command(program, arguments))
    }

    /// Runs the tests. Returns their output, whether they succeed or not.
    fn tests(&self, program: impl AsRef<Path>, arguments: &[&str]) -> Result<String, String> {
        let mut command = self.command(program, arguments);
        self.backends.hand_over(&mut command)?;
        let url = database_url(&command, self.name)?;
        Ok(output(&format!("{}: tests", self.name), command.env("DATABASE_URL", url))?.text)
    }
}

fn prepare() -> Result<Folders, String> {
    let mut build = cargo(["build", "--package", "outbox-toolkit-relay", "--bin", "relay"])?;
    cargo::step("building the relay", build.args(cargo::SHARED))?;
    let folder = workspace::target()?.join("clients");
    fs::create_dir_all(&folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    let relay = cargo::programs(false)?.join("relay");
    Ok(Folders { sources: workspace::root()?.join("examples/clients"), build: folder, relay })
}

/// Returns a Python that has the packages of the client.
fn environment(folders: &Folders) -> Result<PathBuf, String> {
    let environment = folders.build.join("python");
    let python = environment.join("bin/python");
    if !python.exists() {
        let mut make = in_folder(folders, "python", "python3", &["-m", "venv"]);
        printed("python: an environment", make.arg(&environment))?;
    }
    let packages = ["-m", "pip", "install", "--quiet", "--requirement", "requirements.txt"];
    printed("python: packages", &mut in_folder(folders, "python", &python, &packages))?;
    Ok(python)
}

fn of_python(client: &Client<'_>) -> Result<Vec<Trial>, String> {
    let ruff = ["-m", "ruff", "--config", "pyproject.toml"];
    let sources = [".", "../pipeline"];
    client.step("form", client.python, &[&ruff[..], &["format", "--check"], &sources].concat())?;
    client.step("lints", client.python, &[&ruff[..], &["check"], &sources].concat())?;
    client.step("types", client.python, &[&["-m", "mypy"][..], &sources].concat())?;
    let text = client.tests(client.python, &["-m", "pytest", "-v", "--color=no"])?;
    Ok(reports::of_pytest(&text))
}

fn of_typescript(client: &Client<'_>) -> Result<Vec<Trial>, String> {
    client.step("packages", "npm", &["ci", "--no-audit", "--no-fund"])?;
    client.step("form", "npm", &["run", "format"])?;
    client.step("types", "npm", &["run", "build"])?;
    Ok(reports::of_tap(client.name, &client.tests("npm", &["test"])?))
}

fn of_go(client: &Client<'_>) -> Result<Vec<Trial>, String> {
    let unformatted = client.step("form", "gofmt", &["-l", "."])?;
    if !unformatted.trim().is_empty() {
        return Err(format!("run gofmt -w on {}", unformatted.trim()));
    }
    client.step("lints", "go", &["vet", "."])?;
    let program = client.folders.build.join("billing-go");
    printed("go: program", client.command("go", &["build", "-o"]).arg(program).arg("."))?;
    Ok(reports::of_go(client.name, &client.tests("go", &["test", "-v", "-count=1", "."])?))
}

fn of_java(client: &Client<'_>) -> Result<Vec<Trial>, String> {
    let reports = client.folders.sources.join("java/target/surefire-reports");
    // An earlier run may have left some.
    if reports.exists() {
        fs::remove_dir_all(&reports)
            .map_err(|error| format!("cannot remove {}: {error}", reports.display()))?;
    }
    client.tests("mvn", &["--batch-mode", "--quiet", "test"])?;
    reports::of_surefire(&reports)
}

fn in_folder(folders: &Folders, folder: &str, program: impl AsRef<Path>, arguments: &[&str]) -> Command {
    let mut command = Command::new(program.as_ref());
    command.args(arguments).current_dir(folders.sources.join(folder)).stdin(Stdio::null());
    command.env("CLIENTS_BUILD", &folders.build).env("RELAY", &folders.relay);
    // Caches of the tools stay out of the sources.
    command.env("PYTHONDONTWRITEBYTECODE", "1").env("MYPYPATH", folders.sources.join("python"));
    command.env("MYPY_CACHE_DIR", folders.build.join("mypy")).env("RUFF_NO_CACHE", "true");
    command
}

/// Returns the address of a client's database, beside the one that the services have.
fn database_url(command: &Command, name: &str) -> Result<String, String> {
    let url = command.get_envs().find(|(variable, _)| *variable == "OUTBOX_POSTGRES_URL");
    let url = url.and_then(|(_, value)| value?.to_str()).ok_or("PostgreSQL has no address")?;
    let (server, _) = url.rsplit_once('/').ok_or("the address of PostgreSQL names no database")?;
    Ok(format!("{server}/clients_{name}"))
}

/// Runs a command with a headline. Returns what it printed.
fn printed(what: &str, command: &mut Command) -> Result<String, String> {
    let printed = output(what, command)?;
    if printed.is_success { Ok(printed.text) } else { Err(format!("{what} failed")) }
}

/// The result of a command.
struct Printed {
    text: String,
    is_success: bool,
}

/// Runs a command with a headline, to its end.
fn output(what: &str, command: &mut Command) -> Result<Printed, String> {
    println!("\n── {what}");
    let begun = Instant::now();
    let run = command.stderr(Stdio::inherit()).output();
    let output = run.map_err(|error| format!("{what}: cannot run {command:?}: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    print!("{text}");
    println!("── {what}: {:.0} s", begun.elapsed().as_secs_f64());
    Ok(Printed { text, is_success: output.status.success() })
}
