//! Address, users and transport of the page.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use brokers::{Network, Secret};
use operate::Role;

/// Address and users of the page. `Debug` prints no secret.
#[derive(Debug, Clone)]
pub struct PageConfig {
    /// The address.
    pub listen: SocketAddr,
    /// Names under which browsers reach it, in addition to those of this machine; a port is
    /// optional.
    pub hosts: Vec<String>,
    /// Whether a proxy in front of it terminates TLS.
    pub behind_proxy: bool,
    /// Its certificate.
    pub tls: Option<PageTls>,
    /// The users. Without any, and without a proxy that names people, those on this machine may
    /// view it.
    pub users: Vec<PageUser>,
    /// The proxy that logs people in, if there is one.
    pub proxy_login: Option<ProxyLogin>,
    /// The address of a dashboard about a pipeline, whose name replaces `{pipeline}`.
    pub dashboard_url: Option<String>,
    /// The address of the runbook, to whose sections the page links; by default that of this
    /// version's documentation.
    pub runbook_url: Option<String>,
}

/// The certificate of the page: PEM files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageTls {
    /// The certificate, followed by the intermediate certificates.
    pub cert_file: PathBuf,
    /// Its private key.
    pub key_file: PathBuf,
}

/// A user of the page. `Debug` prints no secret.
#[derive(Debug, Clone)]
pub struct PageUser {
    /// The name, which the audit keeps.
    pub name: String,
    /// The rights.
    pub role: Role,
    /// The credential.
    pub credential: PageCredential,
}

/// A user's credential.
#[derive(Debug, Clone)]
pub enum PageCredential {
    /// Used with the name: HTTP basic authentication, or the form.
    Password(Secret),
    /// Used alone as an HTTP bearer token, or with the name in the form.
    Token(Secret),
}

/// A proxy in front of the page that logs people in, and names them in headers. `Debug` prints no
/// secret.
#[derive(Debug, Clone)]
pub struct ProxyLogin {
    /// The addresses from which its headers are believed. None means any, if there is a secret.
    pub from: Vec<Network>,
    /// The secret that it sends, if it sends one.
    pub secret: Option<Secret>,
    /// The header with that secret, in lower case.
    pub secret_header: String,
    /// The header with the person's name, which the audit keeps, in lower case.
    pub user_header: String,
    /// The header with the person's groups, separated by commas, in lower case.
    pub groups_header: String,
    /// The groups whose members may view; `*` is everybody whom the proxy names.
    pub viewers: Vec<String>,
    /// The groups whose members may also decide; `*` is everybody whom the proxy names.
    pub operators: Vec<String>,
    /// Where the proxy ends its own session: a path, or an address.
    pub logout_url: Option<String>,
}

impl PageConfig {
    /// Returns whether other machines can reach it.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        !self.listen.ip().is_loopback() || self.behind_proxy || self.foreign_host().is_some()
    }

    /// Returns the first configured name that is not this machine's own. Something forwards
    /// requests for that name, even if the configuration names no proxy.
    #[must_use]
    pub fn foreign_host(&self) -> Option<&str> {
        self.hosts.iter().map(String::as_str).find(|host| !is_of_loopback(host))
    }

    /// Returns whether browsers use TLS, to it or to the proxy.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.tls.is_some() || self.behind_proxy
    }
}

/// Returns whether a host is a loopback name or address.
fn is_of_loopback(host: &str) -> bool {
    let is_port = |(_, port): &(&str, &str)| port.bytes().all(|byte| byte.is_ascii_digit());
    let name = match host.rsplit_once(':').filter(is_port) {
        // The last colon of a bare IPv6 address does not begin a port.
        Some((name, _)) if host.parse::<IpAddr>().is_err() => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name == "localhost"
        || name.ends_with(".localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}
