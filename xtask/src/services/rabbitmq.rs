//! RabbitMQ, separate from the system-wide instance that the Debian package may start.

use super::{
    Installed, Secure, Service,
    certificates::Certificates,
    fault::{Doing, Fault},
    home::Home,
    install, probe,
    process::which,
    settings::{Port, RABBITMQ_COOKIE, RABBITMQ_JOINS, RABBITMQ_NODE, RABBITMQ_OAUTH_KEY, rabbitmq_word},
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

pub(crate) struct Rabbitmq;

static PORT: Port = Port { variable: "OUTBOX_RABBITMQ_PORT", default: 15673 };
/// Erlang distribution, and Erlang's name server: private, so that neither node sees the other.
/// Below 32768: Linux assigns ports above that to any process that connects or asks for any port.
static OTHERS: [Port; 2] = [
    Port { variable: "OUTBOX_RABBITMQ_DIST_PORT", default: 15676 },
    Port { variable: "OUTBOX_RABBITMQ_EPMD_PORT", default: 14369 },
];
static TLS: Port = Port { variable: "OUTBOX_RABBITMQ_TLS_PORT", default: 15674 };

/// The management API, which reports the settings of queues.
static MANAGEMENT: Port = Port { variable: "OUTBOX_RABBITMQ_MANAGEMENT_PORT", default: 15675 };

const DEBIAN_HOME: &str = "/usr/lib/rabbitmq";

/// The name of a node, unless a variable chooses another.
const NODE: &str = "outbox";

/// Accepts tokens beside the passwords of the broker's own users.
const TOKENS: &str = "auth_backends.1 = rabbit_auth_backend_oauth2
auth_backends.2 = internal
auth_oauth2.resource_server_id = rabbitmq
";

impl Service for Rabbitmq {
    fn client_port(&self) -> &'static Port {
        &PORT
    }

    fn other_ports(&self) -> &'static [Port] {
        // The nodes of a cluster have one name server.
        if std::env::var_os(RABBITMQ_JOINS).is_some() { &OTHERS[..1] } else { &OTHERS }
    }

    fn url(&self, port: u16) -> String {
        format!("amqp://guest:guest@127.0.0.1:{port}/%2f")
    }

    fn secure(&self) -> Result<Vec<Secure>, Fault> {
        let secure = |port| Secure {
            variable: "OUTBOX_RABBITMQ_TLS_URL",
            port_variable: Some(TLS.variable),
            port,
            url: self.url(port).replacen("amqp", "amqps", 1),
            offered: probe::listens,
        };
        let management = |port| Secure {
            variable: "OUTBOX_RABBITMQ_MANAGEMENT_URL",
            port_variable: Some(MANAGEMENT.variable),
            port,
            url: format!("http://127.0.0.1:{port}"),
            offered: probe::listens,
        };
        let management = MANAGEMENT.beside(&PORT)?.map(management);
        Ok(TLS.beside(&PORT)?.map(secure).into_iter().chain(management).collect())
    }

    fn install(&self, _home: &Home, phase: &dyn Fn(&str)) -> Result<Installed, Fault> {
        install::found(&["rabbitmq-server"], find, phase)
    }

    fn prepare(&self, home: &Home, installed: &Installed) -> Result<Command, Fault> {
        let data = self.data(home)?;
        fs::create_dir_all(&data).doing(format_args!("cannot create {}", data.display()))?;
        let [distribution, name_server] = &OTHERS;
        let mut configuration = configuration(PORT.number()?);
        if let Some(port) = TLS.beside(&PORT)? {
            configuration.push_str(&tls(port, &Certificates::made()?));
        }
        let mut plugins = String::from("rabbitmq_auth_mechanism_ssl");
        if let Some(port) = MANAGEMENT.beside(&PORT)? {
            configuration.push_str(&format!("management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {port}\n"));
            plugins.push_str(", rabbitmq_management");
        }
        let name = rabbitmq_word(RABBITMQ_NODE)?.unwrap_or_else(|| String::from(NODE));
        if let Some(other) = rabbitmq_word(RABBITMQ_JOINS)? {
            configuration.push_str(&cluster(&other, &name));
        }
        if let Some(key) = rabbitmq_word(RABBITMQ_OAUTH_KEY)? {
            configuration.push_str(TOKENS);
            home.write("advanced.config", &signed_with(&key))?;
            plugins.push_str(", rabbitmq_auth_backend_oauth2");
        }
        let mut arguments = String::from("-noinput -kernel inet_dist_use_interface {127,0,0,1}");
        if let Some(cookie) = rabbitmq_word(RABBITMQ_COOKIE)? {
            arguments.push_str(&format!(" -setcookie {cookie}"));
        }
        let configuration = home.write("rabbitmq.conf", &configuration)?;
        let plugins = home.write("enabled_plugins", &format!("[{plugins}].\n"))?;
        // An empty file instead of /etc/rabbitmq/rabbitmq-env.conf.
        let environment = home.write("rabbitmq-env.conf", "")?;
        let mut command = Command::new(installed.programs.join("rabbitmq-server"));
        command
            .current_dir(&home.dir)
            .env("HOME", &home.dir) // the Erlang cookie is made here
            .env("ERL_EPMD_PORT", name_server.number()?.to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_DIST_PORT", distribution.number()?.to_string())
            .env("RABBITMQ_NODENAME", format!("{name}@localhost"))
            .env("RABBITMQ_MNESIA_BASE", &data)
            .env("RABBITMQ_LOG_BASE", home.dir.join("logs"))
            .env("RABBITMQ_LOGS", "-")
            .env("RABBITMQ_CONFIG_FILE", configuration)
            .env("RABBITMQ_ADVANCED_CONFIG_FILE", home.dir.join("advanced.config"))
            .env("RABBITMQ_CONF_ENV_FILE", environment)
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", plugins)
            .env("RABBITMQ_GENERATED_CONFIG_DIR", home.dir.join("generated"))
            .env("RABBITMQ_PID_FILE", home.dir.join("rabbitmq.pid"))
            // With "input allowed" the script becomes the server instead of waiting for it, so that
            // our pid is the server's; -noinput then forbids the input.
            .env("RABBITMQ_ALLOW_INPUT", "1")
            .env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", arguments)
            // No busy waiting: the cores are shared.
            .env("ERL_AFLAGS", "+sbwt none +sbwtdcpu none +sbwtdio none");
        Ok(command)
    }

    /// Sends the protocol header. The broker answers with a method frame on channel 0 with
    /// Connection.Start (10, 10).
    fn probe(&self, port: u16) -> Result<(), String> {
        let answer: [u8; 11] = probe::ask(port, b"AMQP\0\0\x09\x01")?;
        let (frame, method) = (&answer[..3], &answer[7..]);
        if frame == b"\x01\0\0" && method == b"\0\x0a\0\x0a" {
            Ok(())
        } else {
            Err(probe::unexpected(&answer))
        }
    }

    /// Stops Erlang's name server, a separate daemon. It refuses to stop while a node is
    /// registered.
    fn after_stop(&self, _home: &Home) -> Result<(), Fault> {
        let Some(epmd) = which("epmd") else { return Ok(()) };
        let [_, name_server] = &OTHERS;
        Command::new(epmd)
            .args(["-port", &name_server.number()?.to_string(), "-kill"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .map(drop) // none running is fine
            .doing("cannot run epmd")
    }
}

/// Finds the programs. Debian's scripts in `/usr/sbin` change to the user of the system-wide
/// instance, so the ones behind them are used.
fn find() -> Option<Installed> {
    let debian = Path::new(DEBIAN_HOME).join("bin");
    if debian.join("rabbitmq-server").is_file() {
        return Some(Installed {
            version: debian_version().unwrap_or_else(|| "unknown".to_owned()),
            programs: debian,
        });
    }
    let programs: PathBuf = which("rabbitmq-server")?.canonicalize().ok()?.parent()?.to_path_buf();
    let version = programs.parent()?.file_name()?.to_string_lossy().replace("rabbitmq_server-", "");
    Some(Installed { version, programs })
}

/// Reads the version from the server's folder, `rabbitmq_server-3.10.8`; asking the program takes
/// seconds.
fn debian_version() -> Option<String> {
    fs::read_dir(Path::new(DEBIAN_HOME).join("lib"))
        .ok()?
        .flatten()
        .find_map(|entry| Some(entry.file_name().to_str()?.strip_prefix("rabbitmq_server-")?.to_owned()))
}

fn configuration(port: u16) -> String {
    format!(
        "listeners.tcp.1 = 127.0.0.1:{port}
log.console.level = info
disk_free_limit.absolute = 64MB
vm_memory_high_watermark.relative = 0.2
"
    )
}

/// Lets a new node join the cluster of another one.
fn cluster(other: &str, name: &str) -> String {
    format!(
        "cluster_formation.peer_discovery_backend = classic_config
cluster_formation.classic_config.nodes.1 = {other}@localhost
cluster_formation.classic_config.nodes.2 = {name}@localhost
"
    )
}

/// Returns the settings of tokens that are signed with a key in base64url.
fn signed_with(key: &str) -> String {
    format!(
        "[{{rabbitmq_auth_backend_oauth2, [{{key_config, [{{default_key, <<\"tests\">>}},
    {{signing_keys, #{{<<\"tests\">> => {{map, #{{<<\"kty\">> => <<\"oct\">>, <<\"alg\">> => <<\"HS256\">>,
        <<\"k\">> => <<\"{key}\">>}}}}}}}}]}}]}}].
"
    )
}

/// Returns a listener whose clients present a password, or a certificate that names their user.
fn tls(port: u16, certificates: &Certificates) -> String {
    let file = |name| certificates.file(name).display().to_string();
    let (authority, certificate, key) = (file("ca.pem"), file("server.pem"), file("server.key"));
    format!(
        "listeners.ssl.1 = 127.0.0.1:{port}
ssl_options.cacertfile = {authority}
ssl_options.certfile = {certificate}
ssl_options.keyfile = {key}
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = false
ssl_cert_login_from = common_name
auth_mechanisms.1 = PLAIN
auth_mechanisms.2 = AMQPLAIN
auth_mechanisms.3 = EXTERNAL
"
    )
}
