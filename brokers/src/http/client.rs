//! Connections: to the address that was checked, encrypted as the settings say, and in time.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::Uri;
use http_body_util::Full;
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use message::addresses::{addresses_of, first_to_answer};
use tokio::net::TcpStream;
use tower_service::Service;

use super::certificates::Certificates;
use super::config::Config;
use super::fault::Blocked;
use super::networks::Networks;
use super::steady::Steady;
use crate::settings::InvalidSetting;

/// The client that all requests of a session share.
pub(super) type Client = legacy::Client<Connections, Full<Bytes>>;

/// How long a connection without a request is kept. Servers close theirs after 2 s (gunicorn) or
/// more. A request on a connection that is being closed has an unknown outcome.
const IDLE_MAX: Duration = Duration::from_millis(1_500);

/// Maximum bytes of an answer's head.
const HEAD_BYTES_MAX: usize = 64 << 10;

type BoxError = Box<dyn Error + Send + Sync>;
type Answer<T> = Pin<Box<dyn Future<Output = Result<T, BoxError>> + Send>>;

/// Connects to public addresses, and to those in allowed networks.
#[derive(Debug, Clone)]
pub(super) struct Guard {
    networks: Arc<Networks>,
}

impl Guard {
    pub(super) fn new(networks: Networks) -> Self {
        Self { networks: Arc::new(networks) }
    }

    /// Connects to a host. Resolves its name once, and connects to one of the addresses that passed
    /// the check. Cancel-safe.
    async fn connect(self, uri: Uri) -> io::Result<TcpStream> {
        let host = uri.host().unwrap_or_default();
        let port =
            uri.port_u16().unwrap_or(if uri.scheme() == Some(&http::uri::Scheme::HTTP) { 80 } else { 443 });
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let resolved = addresses_of(bare, port).await?;
        let allowed: Vec<SocketAddr> =
            resolved.iter().copied().filter(|address| self.networks.allow(address.ip())).collect();
        if allowed.is_empty() && !resolved.is_empty() {
            let addresses =
                resolved.iter().map(|address| address.ip().to_string()).collect::<Vec<_>>().join(", ");
            return Err(io::Error::other(Blocked { host: host.to_owned(), addresses }));
        }
        let stream = first_to_answer(&allowed, TcpStream::connect).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

impl Service<Uri> for Guard {
    type Response = TokioIo<Steady<TcpStream>>;
    type Error = BoxError;
    type Future = Answer<Self::Response>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connecting = self.clone().connect(uri);
        Box::pin(async move {
            let stream = connecting.await?;
            Ok::<_, BoxError>(TokioIo::new(Steady::new(stream)))
        })
    }
}

/// Opens connections, encrypted where the URL says so, within the time of the settings.
#[derive(Debug, Clone)]
pub(super) struct Connections {
    guard: Guard,
    certificates: Arc<Certificates>,
    timeout: Duration,
}

impl Connections {
    /// Reads the files of the TLS section.
    ///
    /// # Errors
    /// [`InvalidSetting`] with the file, or that this machine has no certificate authorities.
    pub(super) fn new(config: &Config, networks: Networks) -> Result<Self, InvalidSetting> {
        let certificates = Arc::new(Certificates::new(config)?);
        let timeout = Duration::from_millis(config.connect_timeout_ms);
        Ok(Self { guard: Guard::new(networks), certificates, timeout })
    }

    /// Returns a client that opens its connections here. It follows no redirects and uses no proxy.
    pub(super) fn client(&self) -> Client {
        legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_MAX)
            .http1_max_buf_size(HEAD_BYTES_MAX)
            .build(self.clone())
    }
}

impl Service<Uri> for Connections {
    type Response = MaybeHttpsStream<TokioIo<Steady<TcpStream>>>;
    type Error = BoxError;
    type Future = Answer<Self::Response>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.guard.poll_ready(context)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        // Read for each connection, so that replaced files are used without a new session.
        let mut https = HttpsConnector::from((self.guard.clone(), self.certificates.current()));
        let connecting = https.call(uri);
        let timeout = self.timeout;
        Box::pin(async move {
            let late = |_| -> BoxError { format!("no connection within {} ms", timeout.as_millis()).into() };
            tokio::time::timeout(timeout, connecting).await.map_err(late)?
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::path::Path;
    use std::sync::Mutex;

    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    use rustls::pki_types::PrivateKeyDer;

    use super::*;
    use crate::Tls;
    use crate::causes::{has_cause, is_unverified};

    type Authority = CertifiedIssuer<'static, KeyPair>;

    fn authority() -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    /// Returns the settings of a server with a new certificate of this authority.
    fn server(authority: &Authority) -> Arc<rustls::ServerConfig> {
        let params = CertificateParams::new(vec![String::from("localhost")]).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, authority).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        Arc::new(builder.with_single_cert(vec![certificate.der().clone()], key).unwrap())
    }

    /// Completes the handshake with each client under the current settings, in a thread of its own.
    /// Ends with the test.
    fn greet(listener: TcpListener, settings: Arc<Mutex<Arc<rustls::ServerConfig>>>) {
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let settings = Arc::clone(&settings.lock().unwrap());
                let mut connection = rustls::ServerConnection::new(settings).unwrap();
                // A client that refuses the certificate breaks off.
                let _ = connection.complete_io(&mut stream);
            }
        });
    }

    /// Goal: an authority that is replaced while a session runs is used without another session,
    /// and a file that is missing or broken for a moment stops nothing. Oracle: a server whose
    /// certificate only one of the authorities has signed.
    #[tokio::test]
    async fn files_of_tls_are_read_again_when_they_change() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let uri: Uri =
            format!("https://localhost:{}/", listener.local_addr().unwrap().port()).parse().unwrap();
        let [old, new] = [authority(), authority()];
        let settings = Arc::new(Mutex::new(server(&old)));
        greet(listener, Arc::clone(&settings));
        let path = std::env::temp_dir().join(format!("{}-ca.pem", uuid::Uuid::now_v7()));
        std::fs::write(&path, old.pem()).unwrap();
        let config = Config::new("https://localhost/").tls(Tls::default().ca_file(path.clone()));
        let networks = Networks::parse(&[String::from("127.0.0.0/8"), String::from("::1/128")]).unwrap();
        let connections = Connections::new(&config, networks).unwrap();
        let open = || {
            let (mut connections, uri) = (connections.clone(), uri.clone());
            async move { connections.call(uri).await.map(drop).map_err(|error| is_unverified(error.as_ref())) }
        };
        let replace = async |path: &Path, content: &str| {
            std::fs::write(path, content).unwrap();
            tokio::time::sleep(Duration::from_millis(1_100)).await;
        };
        assert_eq!(open().await, Ok(()));
        replace(&path, "half of a").await;
        assert_eq!(open().await, Ok(()), "the previous ones stay in use");
        *settings.lock().unwrap() = server(&new);
        assert_eq!(open().await, Err(true), "another authority");
        replace(&path, &new.pem()).await;
        assert_eq!(open().await, Ok(()));
        *settings.lock().unwrap() = server(&old);
        assert_eq!(open().await, Err(true), "the old authority is not trusted any more");
        std::fs::remove_file(&path).unwrap();
    }

    async fn connect(networks: &[&str], url: &str) -> Result<TcpStream, io::Error> {
        let networks: Vec<String> = networks.iter().map(ToString::to_string).collect();
        Guard::new(Networks::parse(&networks).unwrap()).connect(url.parse().unwrap()).await
    }

    /// Goal: no spelling of a local address gets a connection unless its network is allowed.
    /// Oracle: the error, and a listener that gets one connection.
    #[tokio::test]
    async fn a_local_address_is_not_connected_to_unless_allowed() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        for host in ["127.0.0.1", "localhost", "127.1", "2130706433", "[::ffff:127.0.0.1]"] {
            let error = connect(&[], &format!("http://{host}:{port}")).await.unwrap_err();
            assert!(has_cause(&error, &|cause| cause.is::<Blocked>()), "{host}: {error}");
        }
        let refused = tokio::time::timeout(Duration::from_millis(50), listener.accept()).await;
        assert!(refused.is_err(), "nothing connected");
        let stream = connect(&["127.0.0.0/8"], &format!("http://localhost:{port}")).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), listener.local_addr().unwrap());
    }
}
