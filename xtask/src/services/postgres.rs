//! PostgreSQL: a cluster of its own, run by an unprivileged user.

use super::{
    Installed, Secure, Service, Stop,
    certificates::Certificates,
    faketime,
    fault::{Doing, Fault},
    home::{Home, remove},
    install, postgres_release, probe,
    process::{Signal, run, which, working_in},
    settings::{self, Port},
    unprivileged,
};
use std::{
    fs,
    os::unix::{
        fs::{MetadataExt, PermissionsExt, chown},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

pub(crate) struct Postgres;

static PORT: Port = Port { variable: "OUTBOX_POSTGRES_PORT", default: 15432 };

/// User, password and database.
const WHO: &str = "outbox";
pub(crate) const USER: &str = WHO;
pub(crate) const PASSWORD: &str = WHO;
/// A socket's path must fit into `sockaddr_un`: 107 bytes, of which the file name takes about 20.
const SOCKET_DIR_BYTES_MAX: usize = 85;

impl Service for Postgres {
    fn client_port(&self) -> &'static Port {
        &PORT
    }

    fn url(&self, port: u16) -> String {
        format!("postgres://{WHO}:{WHO}@127.0.0.1:{port}/{WHO}")
    }

    /// TLS is on the same port: a client asks for it before anything else.
    fn secure(&self) -> Result<Vec<Secure>, Fault> {
        // The request for TLS: length and the number that asks for it.
        let offered = |port| probe::ask::<1>(port, &[0, 0, 0, 8, 4, 210, 22, 47]) == Ok([b'S']);
        let port = PORT.number()?;
        let (variable, url) = ("OUTBOX_POSTGRES_TLS_URL", self.url(port));
        Ok(vec![Secure { variable, port_variable: None, port, url, offered }])
    }

    /// Returns a folder in the home, unless we are root and the server's user cannot get there.
    fn data(&self, home: &Home) -> Result<PathBuf, Fault> {
        Ok(unprivileged::folder(home).join("data"))
    }

    fn install(&self, home: &Home, phase: &dyn Fn(&str)) -> Result<Installed, Fault> {
        if settings::postgres_is_release()? {
            return postgres_release::install(home, phase);
        }
        install::found(&["postgresql"], find, phase)
    }

    fn prepare(&self, home: &Home, installed: &Installed) -> Result<Command, Fault> {
        let data = self.data(home)?;
        let server = Server { programs: &installed.programs, data: &data, owner: unprivileged::owner()? };
        if data.join("PG_VERSION").exists() {
            server.check_version(&installed.version)?;
            server.clear_leftovers()?;
        } else {
            server.create()?;
        }
        server.certify(&Certificates::made()?)?;
        let sockets = if data.as_os_str().len() <= SOCKET_DIR_BYTES_MAX {
            data.display().to_string()
        } else {
            String::new()
        };
        let wal_level = if settings::wal_is_logical()? { "logical" } else { "replica" };
        let mut command = server.command("postgres");
        command.arg("-D").arg(&data);
        for (name, value) in [
            ("port", PORT.number()?.to_string().as_str()),
            ("listen_addresses", "127.0.0.1"),
            ("unix_socket_directories", &sockets),
            ("max_connections", "200"),
            ("max_prepared_transactions", "20"),
            ("fsync", "on"),
            ("wal_level", wal_level),
            ("log_timezone", "UTC"),
            ("timezone", "UTC"),
            ("ssl", "on"),
            ("ssl_cert_file", "outbox-server.pem"),
            ("ssl_key_file", "outbox-server.key"),
        ] {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        if let Some(clock) = std::env::var_os(settings::POSTGRES_CLOCK) {
            command.envs(faketime::variables(&faketime::library(&|_| ())?, Path::new(&clock)));
        }
        Ok(command)
    }

    /// Sends a start-up message. The server asks for a password (`R`) only once it takes
    /// connections, and answers with an error (`E`) while it starts, recovers or stops.
    fn probe(&self, port: u16) -> Result<(), String> {
        let parameters = format!("user\0{WHO}\0database\0{WHO}\0\0");
        let mut message = Vec::from(u32::to_be_bytes(8 + u32::try_from(parameters.len()).unwrap_or(0)));
        message.extend(196_608_u32.to_be_bytes()); // protocol 3.0
        message.extend(parameters.as_bytes());
        match probe::ask::<1>(port, &message)? {
            [b'R'] => Ok(()),
            [b'E'] => Err("not accepting connections yet".to_owned()),
            other => Err(probe::unexpected(&other)),
        }
    }

    /// Returns INT, because TERM would wait for every client to leave. For a crash it returns QUIT,
    /// which ends all backends without a checkpoint, so that the next start goes through crash
    /// recovery; KILL would leave orphans in the data folder.
    fn signal(&self, stop: Stop) -> Signal {
        match stop {
            Stop::Gracefully => Signal::Int,
            Stop::Immediately => Signal::Quit,
        }
    }
}

/// One cluster, and the user who runs it.
struct Server<'a> {
    programs: &'a Path,
    data: &'a Path,
    /// The user to change to (uid, gid), when we are root.
    owner: Option<(u32, u32)>,
}

impl Server<'_> {
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command.current_dir("/").env("LC_ALL", "C.UTF-8");
        if let Some((uid, gid)) = self.owner {
            command.uid(uid).gid(gid);
        }
        command
    }

    /// Creates a cluster with our superuser and our database. It is built elsewhere and renamed, so
    /// that an interrupted attempt is not taken for a cluster.
    fn create(&self) -> Result<(), Fault> {
        let aside = self.data.with_extension("partial");
        remove(&aside)?;
        fs::create_dir_all(&aside).doing(format_args!("cannot create {}", aside.display()))?;
        require_own(&aside)?;
        let given = aside.with_extension("password");
        fs::write(&given, WHO).doing(format_args!("cannot write {}", given.display()))?;
        if let Some((uid, gid)) = self.owner {
            for path in [&aside, &given] {
                chown(path, Some(uid), Some(gid))
                    .doing(format_args!("cannot hand over {}", path.display()))?;
            }
        }
        let mut initdb = self.command("initdb");
        initdb.args(["--username", WHO, "--auth", "scram-sha-256", "--encoding", "UTF8", "--no-locale"]);
        if let Some(size) = settings::wal_segment_mb()? {
            initdb.arg(format!("--wal-segsize={size}"));
        }
        initdb.arg("--pwfile").arg(&given).arg("--pgdata").arg(&aside);
        run(&mut initdb, "initdb")?;
        fs::remove_file(&given).doing("cannot remove the password file")?;
        self.create_database(&aside)?;
        fs::rename(&aside, self.data)
            .doing(format_args!("cannot move the cluster to {}", self.data.display()))
    }

    /// Creates the database in single-user mode: that needs no client program and no running
    /// server.
    fn create_database(&self, data: &Path) -> Result<(), Fault> {
        let mut single = self.command("postgres");
        single.args(["--single", "-D"]).arg(data).arg("postgres");
        let mut child = single
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .doing("cannot run postgres --single")?;
        if let Some(mut input) = child.stdin.take() {
            use std::io::Write;
            writeln!(input, "CREATE DATABASE {WHO};").doing("cannot write to postgres --single")?;
        }
        let output = child.wait_with_output().doing("cannot run postgres --single")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        if output.status.success() && !errors.contains("ERROR") {
            return Ok(());
        }
        Err(Fault::Failed(format!("creating the database failed ({}):\n  {}", output.status, errors.trim())))
    }

    /// Gives the server its certificate, and the key, which only the server's user may read.
    fn certify(&self, certificates: &Certificates) -> Result<(), Fault> {
        for (from, to) in [("server.pem", "outbox-server.pem"), ("server.key", "outbox-server.key")] {
            let (from, to) = (certificates.file(from), self.data.join(to));
            fs::copy(&from, &to).doing(format_args!("cannot copy {}", from.display()))?;
            fs::set_permissions(&to, fs::Permissions::from_mode(0o600))
                .doing(format_args!("cannot protect {}", to.display()))?;
            if let Some((uid, gid)) = self.owner {
                chown(&to, Some(uid), Some(gid)).doing(format_args!("cannot hand over {}", to.display()))?;
            }
        }
        Ok(())
    }

    fn check_version(&self, version: &str) -> Result<(), Fault> {
        let file = self.data.join("PG_VERSION");
        let made = fs::read_to_string(&file).doing(format_args!("cannot read {}", file.display()))?;
        let (made, major) = (made.trim(), version.split('.').next().unwrap_or(version));
        if made == major {
            return Ok(());
        }
        Err(Fault::Failed(format!(
            "{} was made by PostgreSQL {made}, this is {major}: run `cargo xtask services down --purge`",
            self.data.display()
        )))
    }

    /// Cleans up after a crash. Orphaned backends leave by themselves within moments. Then the pid
    /// and socket lock files are stale: their pid may by now be another process or an unreaped
    /// zombie.
    fn clear_leftovers(&self) -> Result<(), Fault> {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let orphans = working_in(self.data);
            if orphans.is_empty() {
                break;
            }
            if Instant::now() >= deadline {
                return Err(Fault::Failed(format!(
                    "processes {orphans:?} still work in {}: stop them first",
                    self.data.display()
                )));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let entries = fs::read_dir(self.data).doing(format_args!("cannot read {}", self.data.display()))?;
        for file in entries.flatten() {
            let name = file.file_name();
            if name == "postmaster.pid" || name.to_string_lossy().starts_with(".s.PGSQL.") {
                let path = file.path();
                fs::remove_file(&path).doing(format_args!("cannot remove {}", path.display()))?;
            }
        }
        Ok(())
    }
}

/// Finds `initdb` on the search path, or the newest of Debian's versions.
fn find() -> Option<Installed> {
    let debian = fs::read_dir("/usr/lib/postgresql").ok().and_then(|entries| {
        let newest =
            entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).max()?;
        Some(PathBuf::from(format!("/usr/lib/postgresql/{newest}/bin")))
    });
    let on_path = which("initdb").and_then(|path| path.canonicalize().ok()?.parent().map(Path::to_path_buf));
    let programs = on_path.into_iter().chain(debian).find(|folder| folder.join("postgres").is_file())?;
    let text = run(Command::new(programs.join("postgres")).arg("--version"), "postgres --version").ok()?;
    // postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)
    let version = text.split_ascii_whitespace().nth(2)?.to_owned();
    Some(Installed { version, programs })
}

/// Checks that the folder around the data is ours: below `/var/tmp` anybody could have made it.
fn require_own(data: &Path) -> Result<(), Fault> {
    let Some(parent) = data.parent() else { return Ok(()) };
    let owner = fs::metadata(parent).doing(format_args!("cannot inspect {}", parent.display()))?.uid();
    let me = fs::metadata("/proc/self").doing("cannot inspect /proc/self")?.uid();
    if owner == me {
        return Ok(());
    }
    Err(Fault::Failed(format!("{} belongs to user {owner}, not to us ({me}): remove it", parent.display())))
}
