//! A private certificate authority, and servers that speak TLS before a service without TLS: with a
//! good certificate, and with every kind of bad one.

use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    date_time_ymd,
};
use rustls::RootCertStore;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use crate::stage::Stage;
use crate::trial::{Failure, Outcome};

/// The certificate that a server shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// A certificate for this host, signed by the authority that the client trusts.
    Good,
    /// A certificate signed by an authority that the client does not trust.
    Foreign,
    /// A certificate for another host.
    OtherHost,
    /// A certificate that has expired.
    Expired,
}

/// How the client asks for TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// At once: Kafka, AMQP, HTTP.
    Direct,
    /// After a request that the server grants: PostgreSQL.
    Requested,
}

/// A certificate and its key, in PEM.
#[derive(Debug, Clone)]
pub struct Certified {
    chain: String,
    key: String,
}

/// An authority of the test's own.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    /// Creates an authority.
    ///
    /// # Errors
    /// No key could be made.
    pub fn new() -> Result<Self, Failure> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "the test's own authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Ok(Self(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?))
    }

    /// Writes the certificate of the authority to a file, which a client trusts. Returns its path.
    ///
    /// # Errors
    /// The file could not be written.
    pub fn file(&self, stage: &Stage) -> Result<PathBuf, Failure> {
        write(stage, "ca.pem", &self.0.pem())
    }

    /// Writes a client's certificate and its key to files. Returns their paths.
    ///
    /// # Errors
    /// The certificate or the files could not be created.
    pub fn client_files(&self, stage: &Stage) -> Result<(PathBuf, PathBuf), Failure> {
        let Certified { chain, key } = self.client()?;
        Ok((write(stage, "client.pem", &chain)?, write(stage, "client.key", &key)?))
    }

    fn client(&self) -> Result<Certified, Failure> {
        self.signed("client", &[], ExtendedKeyUsagePurpose::ClientAuth, false)
    }

    fn server(&self, shown: Shown) -> Result<Certified, Failure> {
        let usage = ExtendedKeyUsagePurpose::ServerAuth;
        let here = ["localhost", "127.0.0.1"];
        match shown {
            Shown::Good => self.signed("localhost", &here, usage, false),
            Shown::Foreign => Self::new()?.signed("localhost", &here, usage, false),
            Shown::OtherHost => self.signed("elsewhere.example", &["elsewhere.example"], usage, false),
            Shown::Expired => self.signed("localhost", &here, usage, true),
        }
    }

    fn signed(
        &self,
        common_name: &str,
        names: &[&str],
        usage: ExtendedKeyUsagePurpose,
        expired: bool,
    ) -> Result<Certified, Failure> {
        let mut params =
            CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())?;
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.extended_key_usages.push(usage);
        if expired {
            (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
        }
        let key = KeyPair::generate()?;
        Ok(Certified { chain: params.signed_by(&key, &self.0)?.pem(), key: key.serialize_pem() })
    }
}

fn write(stage: &Stage, name: &str, text: &str) -> Result<PathBuf, Failure> {
    let path = stage.folder().join(format!("{}-{name}", crate::stage::random()));
    std::fs::write(&path, text)?;
    Ok(path)
}

/// The files of a client. Their paths stay when their content is renewed.
#[derive(Debug, Clone)]
pub struct ClientFiles {
    /// The authority that it trusts.
    pub authority: PathBuf,
    /// Its certificate.
    pub chain: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

impl ClientFiles {
    /// Writes the files of a client of this authority.
    ///
    /// # Errors
    /// The certificate or the files could not be created.
    pub fn new(stage: &Stage, authority: &Authority) -> Result<Self, Failure> {
        let path = |name: &str| stage.folder().join(format!("{}-{name}", crate::stage::random()));
        let files = Self { authority: path("ca.pem"), chain: path("client.pem"), key: path("client.key") };
        files.renew(authority)?;
        Ok(files)
    }

    /// Replaces the files one by one, each atomically.
    ///
    /// # Errors
    /// The certificate or the files could not be created.
    pub fn renew(&self, authority: &Authority) -> Outcome {
        let Certified { chain, key } = authority.client()?;
        for (path, text) in [(&self.authority, authority.0.pem()), (&self.chain, chain), (&self.key, key)] {
            let new = path.with_extension("new");
            std::fs::write(&new, text)?;
            std::fs::rename(new, path)?;
        }
        Ok(())
    }
}

/// A listener that speaks TLS before a service. It ends with the stage.
pub struct Front {
    /// The port on 127.0.0.1.
    pub port: u16,
    identity: watch::Sender<TlsAcceptor>,
}

impl Front {
    /// Listens before the service at `target`. With `clients`, only clients of that authority are
    /// admitted.
    ///
    /// # Errors
    /// No port is free, or the certificate could not be created.
    pub async fn start(
        stage: &Stage,
        target: String,
        opening: Opening,
        authority: &Authority,
        shown: Shown,
        clients: Option<&Authority>,
    ) -> Result<Self, Failure> {
        let identity = watch::Sender::new(acceptor(authority, shown, clients)?);
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        // The task keeps a sender, so that connections survive when a test keeps only the port.
        let kept = identity.clone();
        let serving = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (mut current, target) = (kept.subscribe(), target.clone());
                tokio::spawn(async move {
                    let acceptor = current.borrow_and_update().clone();
                    // A client that refuses the certificate ends only its own connection.
                    tokio::select! {
                        served = serve(client, &acceptor, &target, opening) => served.ok(),
                        renewed = current.changed() => renewed.ok(),
                    }
                });
            }
        });
        stage.afterwards("TLS front", async move {
            serving.abort();
            Ok(())
        });
        Ok(Self { port, identity })
    }

    /// Shows a certificate of another authority from now on, and closes every connection. With
    /// `clients`, only clients of that authority are admitted.
    ///
    /// # Errors
    /// The certificate could not be created.
    pub fn renew(&self, authority: &Authority, clients: Option<&Authority>) -> Outcome {
        self.identity.send_replace(acceptor(authority, Shown::Good, clients)?);
        Ok(())
    }
}

fn acceptor(
    authority: &Authority,
    shown: Shown,
    clients: Option<&Authority>,
) -> Result<TlsAcceptor, Failure> {
    let Certified { chain, key } = authority.server(shown)?;
    let chain: Vec<_> = CertificateDer::pem_slice_iter(chain.as_bytes()).collect::<Result<_, _>>()?;
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes())?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config =
        ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
    let config = match clients {
        None => config.with_no_client_auth(),
        Some(clients) => {
            let mut roots = RootCertStore::empty();
            roots.add(clients.0.der().clone())?;
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build()?;
            config.with_client_cert_verifier(verifier)
        }
    };
    Ok(TlsAcceptor::from(Arc::new(config.with_single_cert(chain, key)?)))
}

async fn serve(mut client: TcpStream, acceptor: &TlsAcceptor, target: &str, opening: Opening) -> Outcome {
    if opening == Opening::Requested {
        let mut request = [0; 8];
        client.read_exact(&mut request).await?;
        client.write_all(b"S").await?;
    }
    let mut client = acceptor.accept(client).await?;
    let mut server = TcpStream::connect(target).await?;
    copy_bidirectional(&mut client, &mut server).await?;
    Ok(())
}
