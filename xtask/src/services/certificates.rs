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

/// The id of the key that signs access tokens.
const TOKEN_KEY: &str = "outbox-toolkit-tests";

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
        // This is the last file of the issuer.
        if !made.file("jwks.json").exists() {
            make_issuer(&made)?;
        }
        Ok(made)
    }

    /// Returns the folder and makes nothing, for callers that only read.
    pub(crate) fn folder() -> Result<PathBuf, Fault> {
        Ok(settings::services_dir()?.join("tls"))
    }

    /// Returns the path of a file: `ca.pem`; `server.pem`, `server.key` and both together in
    /// `server-keystore.pem`; `client.pem`, `client.key`; `token.key`, which signs access tokens
    /// (ES256), and its public half as a JSON Web Key Set in `jwks.json`.
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

/// Makes the key of an issuer of access tokens. Tests are that issuer; Kafka reads the public half.
fn make_issuer(files: &Certificates) -> Result<(), Fault> {
    let (key, public) = (files.file("token.key"), files.file("token.der"));
    let mut openssl = Command::new("openssl");
    openssl
        .args(["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-out"])
        .arg(&key);
    run(&mut openssl, "openssl genpkey")?;
    let mut openssl = Command::new("openssl");
    openssl.args(["pkey", "-pubout", "-outform", "DER", "-in"]).arg(&key).arg("-out").arg(&public);
    run(&mut openssl, "openssl pkey")?;
    let public = fs::read(&public).doing(format_args!("cannot read {}", public.display()))?;
    // The key ends with the point: 4, then the two coordinates of 32 bytes each.
    let (x, y) = public
        .split_last_chunk::<64>()
        .map(|(_, point)| point.split_at(32))
        .ok_or_else(|| Fault::Failed(format!("openssl wrote a public key of only {} bytes", public.len())))?;
    let (x, y) = (base64url(x), base64url(y));
    files.write(
        "jwks.json",
        &format!(
            "{{\"keys\":[{{\"kty\":\"EC\",\"crv\":\"P-256\",\"alg\":\"ES256\",\"use\":\"sig\",\
             \"kid\":\"{TOKEN_KEY}\",\"x\":\"{x}\",\"y\":\"{y}\"}}]}}\n"
        ),
    )
}

/// Encodes in Base64 for URLs without padding (RFC 4648, section 5).
fn base64url(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for part in bytes.chunks(3) {
        let number = part.iter().chain(&[0, 0]).take(3).fold(0, |sum, byte| sum << 8 | u32::from(*byte));
        for digit in 0..=part.len() {
            let index = number >> (18 - 6 * digit) & 63;
            text.push(char::from(DIGITS[index as usize]));
        }
    }
    text
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_for_urls_has_no_padding() {
        for (bytes, text) in [
            (&b""[..], ""),
            (b"f", "Zg"),
            (b"fo", "Zm8"),
            (b"foo", "Zm9v"),
            (&[0xfb, 0xff, 0xfe, 0xfd], "-__-_Q"),
        ] {
            assert_eq!(base64url(bytes), text);
        }
    }
}
