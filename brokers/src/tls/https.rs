//! TLS for HTTPS clients: the settings of a section, read in one way for hyper and for ureq.

use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;

use super::Tls;
use super::files::Identity;
use crate::settings::InvalidSetting;

/// The certificates with which an HTTPS client verifies servers and proves its own identity.
pub(crate) struct Https {
    /// The configured authorities, or the system's.
    roots: Vec<CertificateDer<'static>>,
    identity: Option<Identity>,
    prefix: String,
}

impl Tls {
    /// Reads the files of this section. `prefix` is its path.
    ///
    /// # Errors
    /// [`InvalidSetting`] with the setting and the file.
    pub(crate) fn https(&self, prefix: &str) -> Result<Https, InvalidSetting> {
        let roots = match self.authorities(prefix)? {
            Some(authorities) => authorities,
            None => rustls_native_certs::load_native_certs().certs,
        };
        Ok(Https { roots, identity: self.identity(prefix)?, prefix: prefix.to_owned() })
    }
}

impl Https {
    fn provider() -> Arc<CryptoProvider> {
        Arc::new(rustls::crypto::aws_lc_rs::default_provider())
    }

    fn wrong(prefix: &str, setting: &str, problem: impl Into<String>) -> InvalidSetting {
        InvalidSetting::new(format!("{prefix}.{setting}"), problem)
    }
}

#[cfg(feature = "http")]
impl Https {
    /// Checks that servers can be verified at all.
    ///
    /// # Errors
    /// [`InvalidSetting`] if no authority is configured and this machine has none.
    pub(crate) fn check_authorities(&self) -> Result<(), InvalidSetting> {
        if self.roots.is_empty() {
            let problem = "missing, and this machine has no certificate authorities; install them, or set it";
            return Err(Self::wrong(&self.prefix, "ca_file", problem));
        }
        Ok(())
    }

    /// Returns the settings for hyper.
    ///
    /// # Errors
    /// [`InvalidSetting`] if the client's key and certificate do not belong together.
    pub(crate) fn hyper(self) -> Result<rustls::ClientConfig, InvalidSetting> {
        let Self { roots, identity, prefix } = self;
        let mut store = rustls::RootCertStore::empty();
        store.add_parsable_certificates(roots);
        let builder = rustls::ClientConfig::builder_with_provider(Self::provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| Self::wrong(&prefix, "ca_file", error.to_string()))?
            .with_root_certificates(store);
        match identity {
            Some((chain, key)) => builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| Self::wrong(&prefix, "key_file", error.to_string())),
            None => Ok(builder.with_no_client_auth()),
        }
    }
}

#[cfg(any(feature = "kafka-tls", feature = "rabbitmq"))]
impl Https {
    /// Returns the settings for ureq.
    ///
    /// # Errors
    /// [`InvalidSetting`] if ureq cannot use the client's key.
    pub(crate) fn ureq(self) -> Result<ureq::tls::TlsConfig, InvalidSetting> {
        use base64::Engine as _;
        use rustls::pki_types::PrivateKeyDer;
        use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

        let Self { roots, identity, prefix } = self;
        let owned = |der: &CertificateDer<'_>| Certificate::from_der(der).to_owned();
        let identity = match identity {
            Some((chain, key)) => {
                let label = match &key {
                    PrivateKeyDer::Pkcs1(_) => "RSA PRIVATE KEY",
                    PrivateKeyDer::Sec1(_) => "EC PRIVATE KEY",
                    _ => "PRIVATE KEY",
                };
                // ureq names the forms of a key only in PEM.
                let text = base64::engine::general_purpose::STANDARD.encode(key.secret_der());
                let pem = format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n");
                let key = PrivateKey::from_pem(pem.as_bytes())
                    .map_err(|error| Self::wrong(&prefix, "key_file", error.to_string()))?;
                let chain: Vec<_> = chain.iter().map(owned).collect();
                Some(ClientCert::new_with_certs(&chain, key))
            }
            None => None,
        };
        let roots: Vec<_> = roots.iter().map(owned).collect();
        Ok(TlsConfig::builder()
            .root_certs(RootCerts::new_with_certs(&roots))
            .client_cert(identity)
            .unversioned_rustls_crypto_provider(Self::provider())
            .build())
    }
}
