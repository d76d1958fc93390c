//! TLS for requests over HTTPS, with ureq.

use std::sync::Arc;

use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

use super::Tls;
use crate::settings::InvalidSetting;

impl Tls {
    /// Returns the settings for HTTPS: the configured authorities or the system's, and the client's
    /// certificate. Reads the files. `prefix` is the path of this section.
    pub(crate) fn https(&self, prefix: &str) -> Result<TlsConfig, InvalidSetting> {
        let roots: Vec<Certificate<'static>> = match self.authorities(prefix)? {
            Some(authorities) => {
                authorities.iter().map(|der| Certificate::from_der(der).to_owned()).collect()
            }
            None => {
                let system = rustls_native_certs::load_native_certs().certs;
                system.iter().map(|der| Certificate::from_der(der).to_owned()).collect()
            }
        };
        let identity = match (self.identity(prefix)?, &self.key_file) {
            (Some((chain, _)), Some(key_file)) => {
                let unusable = |problem: String| InvalidSetting::new(format!("{prefix}.key_file"), problem);
                let key = std::fs::read(key_file).map_err(|error| unusable(error.to_string()))?;
                let key = PrivateKey::from_pem(&key).map_err(|error| unusable(error.to_string()))?;
                let chain: Vec<_> = chain.iter().map(|der| Certificate::from_der(der).to_owned()).collect();
                Some(ClientCert::new_with_certs(&chain, key))
            }
            _ => None,
        };
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        Ok(TlsConfig::builder()
            .root_certs(RootCerts::new_with_certs(&roots))
            .client_cert(identity)
            .unversioned_rustls_crypto_provider(provider)
            .build())
    }
}
