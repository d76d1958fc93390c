//! A private certificate authority, so that the services offer TLS as real ones do. It is made once
//! and kept beside them.

use super::{
    fault::{Doing, Fault},
    home::lock_file,
    install,
    process::{run, which},
    settings,
};
use std::{fs, path::PathBuf, process::Command};

/// The variable that names the folder, for tests and benches.
pub(crate) const DIR_VARIABLE: &str = "OUTBOX_TLS_DIR";

/// The folder with everything, in PEM.
pub(crate) struct Certificates(PathBuf);

impl Certificates {
    /// Makes the missing files. Several services may call it at once.
    pub(crate) fn made() -> Result<Self, Fault> {
        let folder = settings::services_dir()?.join("tls");
        fs::create_dir_all(&folder).doing(format_args!("cannot create {}", folder.display()))?;
        let _lock = lock_file(&folder.join("lock"))?;
        let made = Self(folder);
        // This file is written last.
        if !made.file("client.pem").exists() {
            make(&made)?;
        }
        Ok(made)
    }

    /// Returns the folder and makes nothing, for callers that only read.
    pub(crate) fn folder() -> Result<PathBuf, Fault> {
        Ok(settings::services_dir()?.join("tls"))
    }

    /// Returns the path of a file: `ca.pem`; `server.pem`, `server.key` and both together in
    /// `server-keystore.pem`; `client.pem`, `client.key`.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn write(&self, name: &str, text: &str) -> Result<(), Fault> {
        let path = self.file(name);
        fs::write(&path, text).doing(format_args!("cannot write {}", path.display()))
    }
}

/// Elliptic curves: every server here supports them, and making a key takes no time.
const NEW_KEY: [&str; 6] = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-sha256"];
/// Ten years: they are never renewed.
const DAYS: &str = "3650";

fn make(files: &Certificates) -> Result<(), Fault> {
    if which("openssl").is_none() {
        let turn = install::turn()?;
        install::packages(&turn, &["openssl"], &|_| ())?;
    }
    files.write("openssl.cnf", CONFIGURATION)?;
    request(files, "ca", "outbox toolkit's own authority", None)?;
    request(files, "server", "localhost", Some("ca"))?;
    let file = |name| {
        let path = files.file(name);
        fs::read_to_string(&path).doing(format_args!("cannot read {}", path.display()))
    };
    files.write("server-keystore.pem", &(file("server.key")? + &file("server.pem")?))?;
    // The user of RabbitMQ with that name.
    request(files, "client", "guest", Some("ca"))
}

/// Makes a key and its certificate, signed by itself or by another one.
fn request(files: &Certificates, name: &str, common_name: &str, signer: Option<&str>) -> Result<(), Fault> {
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-batch", "-days", DAYS, "-config"]).arg(files.file("openssl.cnf"));
    openssl.args(NEW_KEY).args(["-subj", &format!("/CN={common_name}"), "-extensions", name]);
    openssl.arg("-keyout").arg(files.file(&format!("{name}.key")));
    openssl.arg("-out").arg(files.file(&format!("{name}.pem")));
    if let Some(signer) = signer {
        openssl.arg("-CA").arg(files.file(&format!("{signer}.pem")));
        openssl.arg("-CAkey").arg(files.file(&format!("{signer}.key")));
    }
    run(&mut openssl, "openssl req").map(drop)
}

/// The permitted uses of each certificate; the subjects are given with the request.
const CONFIGURATION: &str = "\
[req]
distinguished_name = subject
[subject]
[ca]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign
[server]
subjectAltName = DNS:localhost, IP:127.0.0.1
extendedKeyUsage = serverAuth
[client]
extendedKeyUsage = clientAuth
";
