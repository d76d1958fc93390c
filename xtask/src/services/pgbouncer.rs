//! `PgBouncer` beside PostgreSQL: many clients over few connections.

use super::{
    Installed, Service,
    fault::{Doing, Fault},
    home::Home,
    install,
    postgres::{self, PASSWORD, USER},
    process::{run, which},
    settings::{self, Port},
    unprivileged,
};
use std::{
    fs,
    os::unix::{fs::chown, process::CommandExt},
    path::{Path, PathBuf},
    process::Command,
};

pub(crate) struct Pgbouncer;

static PORT: Port = Port { variable: "OUTBOX_PGBOUNCER_PORT", default: 16432 };

const PACKAGE: &str = "pgbouncer";

impl Service for Pgbouncer {
    fn client_port(&self) -> &'static Port {
        &PORT
    }

    fn url(&self, port: u16) -> String {
        postgres::Postgres.url(port)
    }

    fn data(&self, home: &Home) -> Result<PathBuf, Fault> {
        Ok(unprivileged::folder(home).join("configuration"))
    }

    fn install(&self, _home: &Home, phase: &dyn Fn(&str)) -> Result<Installed, Fault> {
        install::found(&[PACKAGE], find, phase)
    }

    fn prepare(&self, home: &Home, installed: &Installed) -> Result<Command, Fault> {
        let folder = self.data(home)?;
        fs::create_dir_all(&folder).doing(format_args!("cannot create {}", folder.display()))?;
        let server = match settings::pgbouncer_server()? {
            Some(server) => server,
            None => ("127.0.0.1".to_owned(), postgres::Postgres.client_port().number()?),
        };
        let owner = unprivileged::owner()?;
        let users = folder.join("users.txt");
        let file = folder.join("pgbouncer.ini");
        let mut text = configuration(PORT.number()?, &server, settings::pgbouncer_mode()?, &users);
        // Releases differ in their default. Releases before 1.21 had no such setting.
        let prepared = settings::pgbouncer_prepared()?.or(prepares(&installed.version).then_some(0));
        if let Some(prepared) = prepared {
            text.push_str(&format!("max_prepared_statements = {prepared}\n"));
        }
        for (path, text) in [(&users, format!("\"{USER}\" \"{PASSWORD}\"\n")), (&file, text)] {
            fs::write(path, text).doing(format_args!("cannot write {}", path.display()))?;
            if let Some((uid, gid)) = owner {
                chown(path, Some(uid), Some(gid))
                    .doing(format_args!("cannot hand over {}", path.display()))?;
            }
        }
        let mut command = Command::new(installed.programs.join(PACKAGE));
        command.current_dir("/").arg(file);
        if let Some((uid, gid)) = owner {
            command.uid(uid).gid(gid);
        }
        Ok(command)
    }

    /// Probes `PgBouncer`, which asks for a password itself, whether or not the server answers.
    fn probe(&self, port: u16) -> Result<(), String> {
        postgres::Postgres.probe(port)
    }
}

fn find() -> Option<Installed> {
    let program = which(PACKAGE)?;
    let text = run(Command::new(&program).arg("--version"), "pgbouncer --version").ok()?;
    // PgBouncer 1.18.0
    let version = text.split_ascii_whitespace().nth(1)?.to_owned();
    Some(Installed { version, programs: program.parent()?.to_owned() })
}

/// Whether this version can keep prepared statements in transaction mode.
fn prepares(version: &str) -> bool {
    let mut numbers = version.split('.').map_while(|number| number.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(1), Some(21))
}

/// Users are looked up in the server, so that users created by tests can log in as well. A server
/// that is down is asked again at once: tests wait for it.
fn configuration(port: u16, (host, server_port): &(String, u16), mode: &str, users: &Path) -> String {
    let users = users.display();
    format!(
        "[databases]
* = host={host} port={server_port}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {users}
auth_user = {USER}
auth_query = SELECT usename, passwd FROM pg_shadow WHERE usename = $1
admin_users = {USER}
pool_mode = {mode}
default_pool_size = 20
max_client_conn = 500
server_login_retry = 0.2
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prepared_statements_are_kept_from_1_21_on() {
        let versions = ["1.18.0", "1.20.1", "1.21.0", "1.24.1", "2.0"];
        assert_eq!(versions.map(prepares), [false, false, true, true, true]);
    }

    #[test]
    fn the_configuration_names_the_server_and_the_mode() {
        let text = configuration(1, &("db".to_owned(), 2), "session", Path::new("/users"));
        for line in ["* = host=db port=2", "listen_port = 1", "auth_file = /users", "pool_mode = session"] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
    }
}
