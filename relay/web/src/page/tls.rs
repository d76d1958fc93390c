//! The certificate of the page.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, version};
use tokio_rustls::TlsAcceptor;

use crate::settings::PageTls;

/// Reads certificate and key.
///
/// # Errors
/// Names the file and its problem.
pub(crate) fn acceptor(tls: &PageTls) -> Result<TlsAcceptor, String> {
    let cert_file = tls.cert_file.display();
    let about_cert = |problem: String| format!("page.tls.cert_file: {cert_file}: {problem}");
    let certificates = CertificateDer::pem_file_iter(&tls.cert_file)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| about_cert(error.to_string()))?;
    if certificates.is_empty() {
        return Err(about_cert(String::from("contains no certificate")));
    }
    let key = PrivateKeyDer::from_pem_file(&tls.key_file)
        .map_err(|error| format!("page.tls.key_file: {}: {error}", tls.key_file.display()))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&version::TLS13, &version::TLS12])
        .map_err(|error| error.to_string())?
        .with_no_client_auth()
        .with_single_cert(certificates, key)
        .map_err(|error| about_cert(error.to_string()))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
