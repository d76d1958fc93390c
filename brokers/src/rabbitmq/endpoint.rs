//! Turns URL, credentials and certificates into connections to a broker.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use lapin::tcp::{RustlsConnector, RustlsConnectorConfig};
use lapin::uri::{AMQPScheme, AMQPUri, SASLMechanism};
use lapin::{AsyncTcpStream, ConnectionProperties};
use message::addresses::{addresses_of, first_to_answer, tried};
use message::loopback::is_loopback;
use secrecy::{ExposeSecret, SecretString};
use tokio::time::Instant;

use super::config::{Auth, Config, invalid};
use super::connection::Connection;
use super::credential::{Credential, Proof, basic};
use super::end::End;
use super::unopened::OpenFailure;
use super::uri::{Uris, parse};
use crate::plaintext;
use crate::settings::InvalidSetting;
use crate::tls::Tls;
use crate::unreachable;

/// Credential and certificates of a login.
pub(super) struct Secrets {
    pub(super) proof: Option<Proof>,
    tls: Option<RustlsConnector>,
}

/// A login to the management API.
pub(super) struct ManagementLogin {
    /// The value of the header `Authorization`.
    pub(super) authorization: String,
    pub(super) vhost: String,
}

/// A broker to connect to, or the nodes of its cluster. Has no `Debug`, because the client's URI
/// type prints passwords.
#[derive(Clone)]
pub(super) struct Endpoint {
    /// One for each host, without the password, which is added on every connect: at least one.
    hosts: Arc<[AMQPUri]>,
    /// Whether the settings or the URL name a user.
    has_user: bool,
    /// The host that the last login was at.
    last: Arc<AtomicUsize>,
    credential: Option<Credential>,
    tls: Option<Tls>,
    connection_name: String,
    connect_timeout: Duration,
    destination: String,
}

impl Endpoint {
    /// Parses the URL and checks it together with credentials and certificates.
    pub(super) fn new(config: &Config) -> Result<Self, InvalidSetting> {
        config.check()?;
        let Uris { mut hosts, password, has_user } = parse(config.url.expose_secret())?;
        let credential = Credential::of(config, password)?;
        let mut tls = None;
        for uri in &mut hosts {
            if let Some(username) = &config.username {
                uri.authority.userinfo.username.clone_from(username);
            }
            tls = check_tls(uri, config)?;
            if config.auth == Auth::External {
                uri.query.auth_mechanism = Some(SASLMechanism::External);
            }
            uri.query.heartbeat = Some(config.heartbeat_secs);
        }
        let vhost = hosts.first().map_or("", |uri| uri.vhost.as_str());
        let destination =
            format!("rabbitmq {} {vhost}", hosts.iter().map(place).collect::<Vec<_>>().join(","));
        Ok(Self {
            has_user: has_user || config.username.is_some(),
            credential,
            tls,
            connection_name: config.connection_name.clone(),
            connect_timeout: Duration::from_millis(config.connect_timeout_ms),
            destination,
            hosts: Arc::from(hosts),
            last: Arc::default(),
        })
    }

    /// Returns the maximum time of a login, at all hosts one after the other, with its token.
    pub(super) fn login_timeout(&self) -> Duration {
        let hosts = self.connect_timeout.saturating_mul(u32::try_from(self.hosts.len()).unwrap_or(u32::MAX));
        match &self.credential {
            Some(Credential::Tokens(tokens)) => hosts.saturating_add(tokens.limit),
            Some(Credential::Password(_)) | None => hosts,
        }
    }

    /// Returns the maximum time of each step of opening a session.
    pub(super) fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    /// Logs which protection the connection lacks.
    pub(super) fn warn(&self) {
        if self.tls.is_none() && !self.hosts.iter().all(|uri| is_loopback(&uri.authority.host)) {
            plaintext::warn(&self.destination);
        }
    }

    /// Returns `rabbitmq host:port vhost`, or `rabbitmq host:port,host:port vhost`, for logs.
    pub(super) fn destination(&self) -> &str {
        &self.destination
    }

    /// Opens a connection with this credential and closes it.
    pub(super) async fn try_login(&self, proof: &Proof) -> Result<(), OpenFailure> {
        let secrets = Secrets { proof: Some(proof.clone()), tls: self.certificates()? };
        let (client, end) = self.log_in(&secrets, "login").await?;
        Connection::new(Arc::new(client), end, None).say_goodbye(Instant::now() + self.connect_timeout).await;
        Ok(())
    }

    /// Logs in at the first host that accepts it, beginning with the one of the last login. Each
    /// has the time limit for connecting. The broker shows the connection as `<connection_name>
    /// <purpose>`.
    pub(super) async fn log_in(
        &self,
        secrets: &Secrets,
        purpose: &str,
    ) -> Result<(lapin::Connection, End), OpenFailure> {
        let count = self.hosts.len();
        let first = self.last.load(Ordering::Relaxed);
        let mut failures = Vec::new();
        for index in (0..count).map(|next| (first + next) % count) {
            match self.log_in_at(&self.hosts[index], secrets, purpose).await {
                Ok(opened) => {
                    self.last.store(index, Ordering::Relaxed);
                    return Ok(opened);
                }
                Err(failure) => failures.push((place(&self.hosts[index]), failure)),
            }
        }
        Err(OpenFailure::of_all(failures).with_token(secrets.proof.as_ref()))
    }

    async fn log_in_at(
        &self,
        host: &AMQPUri,
        secrets: &Secrets,
        purpose: &str,
    ) -> Result<(lapin::Connection, End), OpenFailure> {
        let mut uri = host.clone();
        if let Some(proof) = &secrets.proof {
            let login = &mut uri.authority.userinfo;
            proof.secret().expose_secret().clone_into(&mut login.password);
            if let Some(user) = proof.user().filter(|_| !self.has_user) {
                user.clone_into(&mut login.username);
            }
        }
        let tls = &secrets.tls;
        let name = format!("{} {purpose}", self.connection_name);
        let properties = ConnectionProperties::default().with_connection_name(name.into());
        let runtime = lapin::runtime::default_runtime().map_err(OpenFailure::Client)?;
        let found = OnceLock::new();
        let answered = OnceLock::new();
        // Boxed, because the future is large.
        let opening = Box::pin(async {
            // Connects before the client begins, because the client leaves two tasks behind for
            // each refused attempt. Its own way would also trust the system's authorities, and wait
            // for the first address alone.
            let addresses = addresses_of(&uri.authority.host, uri.authority.port).await?;
            let addresses = found.get_or_init(|| addresses);
            let stream = first_to_answer(addresses, |to| AsyncTcpStream::connect(&runtime, to)).await?;
            let AsyncTcpStream::Plain(tcp) = &stream else { return Err(not_connected()) };
            // From here on, only this address can be the silent one.
            let _ = answered.set(tcp.get_ref().peer_addr()?);
            let (running, end) = End::of(tcp.get_ref())?;
            let stream = match tls {
                Some(connector) => stream.into_rustls(connector, &uri.authority.host).await?,
                None => stream,
            };
            let stream = Mutex::new(Some(stream));
            // The client's thread owns this closure, and drops it when it ends.
            let connect = async move |_, _| {
                let _ = &running;
                stream.lock().unwrap_or_else(PoisonError::into_inner).take().ok_or_else(not_connected)
            };
            let client = lapin::Connection::connector(uri, runtime, connect, properties);
            Ok((end.bounds(client).await?, end))
        });
        let tried = || {
            let all = || found.get().map_or(&[][..], Vec::as_slice);
            tried(&host.authority.host, answered.get().map_or_else(all, std::slice::from_ref))
        };
        let late =
            || format!("rabbitmq {} {} did not answer{}", place(host), host.vhost, self.within(&tried()));
        self.in_time_or(opening, late).await
    }

    /// Returns where the credential comes from, which is read or asked for on every connect.
    pub(super) fn credential(&self) -> Option<&Credential> {
        self.credential.as_ref()
    }

    /// Runs a step of opening a session within the time limit for connecting.
    pub(super) async fn in_time<T>(
        &self,
        opening: impl Future<Output = Result<T, lapin::Error>>,
    ) -> Result<T, OpenFailure> {
        let late = || format!("{} did not answer{}", self.destination, self.within(""));
        self.in_time_or(opening, late).await
    }

    /// Returns the time limit for connecting, with the addresses that were tried and the remedy.
    fn within(&self, tried: &str) -> String {
        let millis = self.connect_timeout.as_millis();
        format!(" within {millis} ms{tried}; {}", unreachable::advice("", "rabbitmq.url"))
    }

    /// Does the same; `late` is the error of an answer that does not come.
    async fn in_time_or<T>(
        &self,
        opening: impl Future<Output = Result<T, lapin::Error>>,
        late: impl FnOnce() -> String,
    ) -> Result<T, OpenFailure> {
        match tokio::time::timeout(self.connect_timeout, opening).await {
            Ok(opened) => opened.map_err(OpenFailure::Client),
            Err(_) => Err(OpenFailure::Timeout(late())),
        }
    }

    /// Returns the login to the management API, with the same user.
    pub(super) async fn management_login(&self) -> Result<ManagementLogin, OpenFailure> {
        let first = &self.hosts[0];
        let login = &first.authority.userinfo;
        let authorization = match &self.credential {
            Some(credential) => {
                let proof = credential.proof().await.map_err(OpenFailure::Token)?;
                proof.authorization(&login.username)
            }
            // Without a password, the client library has that of the user guest.
            None => basic(&login.username, &SecretString::from(login.password.clone())),
        };
        Ok(ManagementLogin { authorization, vhost: first.vhost.clone() })
    }

    /// Reads the secrets, or asks for a token. Files are read on every connect, so that a rotated
    /// password or certificate is picked up.
    pub(super) async fn with_secrets(&self) -> Result<Secrets, OpenFailure> {
        let tls = self.certificates()?;
        let proof = match &self.credential {
            Some(credential) => Some(credential.proof().await.map_err(OpenFailure::Token)?),
            None => None,
        };
        Ok(Secrets { proof, tls })
    }

    fn certificates(&self) -> Result<Option<RustlsConnector>, OpenFailure> {
        self.tls.as_ref().map(connector).transpose().map_err(OpenFailure::Setting)
    }
}

/// Returns host and port.
fn place(uri: &AMQPUri) -> String {
    format!("{}:{}", uri.authority.host, uri.authority.port)
}

fn not_connected() -> lapin::Error {
    io::Error::from(io::ErrorKind::NotConnected).into()
}

/// Trusts only the configured authority, or the system's if none is configured.
fn connector(tls: &Tls) -> Result<RustlsConnector, InvalidSetting> {
    let unusable = |setting: &str| {
        let setting = format!("tls.{setting}");
        move |error: io::Error| invalid(&setting, error.to_string())
    };
    let config = match tls.authorities("rabbitmq.tls")? {
        Some(authorities) => RustlsConnectorConfig::default().with_parsable_certificates(authorities),
        None => RustlsConnectorConfig::new_with_native_certs().map_err(unusable("ca_file"))?,
    };
    match tls.identity("rabbitmq.tls")? {
        Some((chain, key)) => config.connector_with_single_cert(chain, key).map_err(unusable("key_file")),
        None => config.connector_with_no_client_auth().map_err(unusable("ca_file")),
    }
}

fn check_tls(uri: &AMQPUri, config: &Config) -> Result<Option<Tls>, InvalidSetting> {
    let certificate = config.tls.as_ref().is_some_and(|tls| tls.cert_file.is_some());
    if config.auth == Auth::External && !certificate {
        return Err(invalid(
            "tls.cert_file",
            "missing; auth = \"external\" logs in with the client certificate",
        ));
    }
    if uri.scheme == AMQPScheme::AMQP {
        if config.tls.is_some() {
            return Err(invalid("tls", "is given, but the url begins with amqp://; write amqps://"));
        }
        let host = &uri.authority.host;
        if config.oauth.is_some() && !is_loopback(host) {
            let problem = format!(
                "{host} is another machine, and a token would cross the network unencrypted, whatever \
                 allow_plaintext says; write amqps://"
            );
            return Err(invalid("oauth", problem));
        }
        plaintext::check("rabbitmq", "url", host, config.allow_plaintext, "write amqps://")?;
        return Ok(None);
    }
    let tls = config.tls.clone().unwrap_or_default();
    tls.check_settings("rabbitmq.tls")?;
    if !tls.verify {
        let problem = "cannot be false for rabbitmq; name the broker's certificate authority in ca_file";
        return Err(invalid("tls.verify", problem));
    }
    Ok(Some(tls))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oauth::OAuth;

    fn endpoint(url: &str) -> Result<Endpoint, InvalidSetting> {
        Endpoint::new(&Config { allow_plaintext: true, ..Config::new(url) })
    }

    #[test]
    fn the_destination_names_host_and_virtual_host_without_secrets() {
        for (url, destination) in [
            ("amqp://me:s3cret@rabbit:5673/shop", "rabbitmq rabbit:5673 shop"),
            ("amqp://rabbit", "rabbitmq rabbit:5672 /"),
            ("amqp://rabbit/%2f", "rabbitmq rabbit:5672 /"),
            ("amqps://[::1]", "rabbitmq ::1:5671 /"),
            ("amqp://me:s3cret@r1:5673,r2,[::1]/shop", "rabbitmq r1:5673,r2:5672,::1:5672 shop"),
            ("amqps://r1,r2:5673", "rabbitmq r1:5671,r2:5673 /"),
        ] {
            assert_eq!(endpoint(url).ok().unwrap().destination(), destination);
        }
    }

    #[tokio::test]
    async fn the_password_of_the_url_reaches_the_connection_decoded() {
        for url in ["amqp://me:s%2Fcret@rabbit", "amqp://me:s%2Fcret@r1,r2"] {
            let login = endpoint(url).ok().unwrap().management_login().await.ok().unwrap();
            assert_eq!(login.authorization, basic("me", &SecretString::from("s/cret")));
            assert_eq!(login.vhost, "/");
        }
    }

    #[test]
    fn a_wrong_url_is_explained_without_quoting_it() {
        for (url, part) in [
            ("", "missing"),
            ("rabbit:5672", "must be amqp"),
            ("http://s3cret@rabbit", "must be amqp"),
            ("u:s3cret@127.0.0.1", "must be amqp"),
            ("amqp://me:s3cret@rabbit/", "with an empty name"),
            ("amqp://me:s3cret@rabbit?heartbeat=3", "rabbitmq.heartbeat_secs"),
            ("amqp://me@rabbit?x=1&auth_mechanism=s3cret", "rabbitmq.auth"),
            ("amqp://me@rabbit?s3cret=1", "%3F"),
            ("amqp:///shop", "has no host"),
            ("amqp://u:p@s3cret/x9@rabbit", "%40"),
            ("amqp://u:p@s3cret@rabbit", "%40"),
            ("amqp://u:p/s3cret@rabbit", "%40"),
            ("amqp://u:p#s3cret@rabbit", "%40"),
            ("amqp://u:s3cret@r1,,s3cret/x", "host 2 of 3 is empty"),
            ("amqp://u:s3cret@s3cret:1:2,r2", "host 1 of 2 has more than one colon"),
            ("amqp://u:s3cret@r1,s3cret:", "host 2 of 2 has a port"),
            ("amqp://u:s3cret@s3cret,s3cret:5672", "host 2 of 2 repeats host 1"),
            ("amqp://u:p@s3cret,x@r1,r2", "%40"),
        ] {
            let error = endpoint(url).err().unwrap().to_string();
            assert!(error.starts_with("rabbitmq.url") && error.contains(part), "{error}");
            assert!(!error.contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn contradicting_credentials_and_certificates_are_refused() {
        let base = || Config::new("amqp://me:s3cret@127.0.0.1");
        let remote = Config::new("amqp://me:s3cret@rabbit");
        let twice = Config { password: Some(SecretString::from("x")), ..base() };
        let plain = Config { tls: Some(Tls::default()), ..base() };
        let external = Config { auth: Auth::External, ..base() };
        let open = Config::new("amqp://rabbit").oauth(OAuth::file("/x")).allow_plaintext(true);
        let unverified =
            Config { tls: Some(Tls { verify: false, ..Tls::default() }), ..Config::new("amqps://rabbit") };
        for (config, setting) in [
            (twice, "rabbitmq.password"),
            (plain, "rabbitmq.tls"),
            (remote, "rabbitmq.url"),
            (external, "rabbitmq.tls.cert_file"),
            (open, "rabbitmq.oauth"),
            (unverified, "rabbitmq.tls.verify"),
        ] {
            assert_eq!(Endpoint::new(&config).err().unwrap().setting, setting);
        }
    }
}
