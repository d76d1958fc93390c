//! Reads and validates the files of a TLS section: certificates and keys.

use std::path::Path;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::Tls;
use crate::settings::InvalidSetting;

impl Tls {
    /// Checks that certificate and key come as a pair and that every file can be read and has the
    /// right content. `prefix` is the path of this section (`kafka.tls`).
    ///
    /// # Errors
    /// [`InvalidSetting`] naming the setting and the file.
    pub fn check(&self, prefix: &str) -> Result<(), InvalidSetting> {
        self.check_settings(prefix)?;
        self.authorities(prefix)?;
        self.identity(prefix)?;
        Ok(())
    }

    /// Checks only the settings: the files may be mounted later.
    pub(crate) fn check_settings(&self, prefix: &str) -> Result<(), InvalidSetting> {
        if self.cert_file.is_some() != self.key_file.is_some() {
            let (given, missing) =
                if self.cert_file.is_some() { ("cert_file", "key_file") } else { ("key_file", "cert_file") };
            let problem = format!("missing, although {given} is set; mutual TLS needs both");
            return Err(InvalidSetting::new(format!("{prefix}.{missing}"), problem));
        }
        Ok(())
    }

    /// Returns the configured authorities, each checked to be usable; `None` stands for the
    /// system's. Reads the file.
    pub(crate) fn authorities(
        &self,
        prefix: &str,
    ) -> Result<Option<Vec<CertificateDer<'static>>>, InvalidSetting> {
        let Some(path) = &self.ca_file else { return Ok(None) };
        let wrong = |problem: String| InvalidSetting::new(format!("{prefix}.ca_file"), problem);
        let certificates = certificates(path).map_err(wrong)?;
        // A client library may skip or panic on a certificate that it cannot use.
        let mut roots = RootCertStore::empty();
        for certificate in &certificates {
            roots.add(certificate.clone()).map_err(|error| wrong(named(path, error)))?;
        }
        Ok(Some(certificates))
    }

    /// Returns the client's chain and key, if configured. Reads the files.
    pub(crate) fn identity(&self, prefix: &str) -> Result<Option<Identity>, InvalidSetting> {
        let (Some(cert), Some(key)) = (&self.cert_file, &self.key_file) else { return Ok(None) };
        let wrong =
            |setting: &str, problem: String| InvalidSetting::new(format!("{prefix}.{setting}"), problem);
        let chain = certificates(cert).map_err(|problem| wrong("cert_file", problem))?;
        let key = PrivateKeyDer::from_pem_slice(&read(key).map_err(|problem| wrong("key_file", problem))?)
            .map_err(|error| wrong("key_file", named(key, error)))?;
        Ok(Some((chain, key)))
    }
}

/// A client's certificate chain and its private key.
pub(crate) type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(path)?).collect();
    match found.map_err(|error| named(path, error))? {
        none if none.is_empty() => Err(named(path, "contains no PEM certificate")),
        certificates => Ok(certificates),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| named(path, error))
}

fn named(path: &Path, problem: impl std::fmt::Display) -> String {
    format!("{}: {problem}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn a_certificate_without_its_key_and_a_missing_file_are_named() {
        let tls = Tls { cert_file: Some(PathBuf::from("/c.pem")), ..Tls::default() };
        assert_eq!(tls.check("kafka.tls").unwrap_err().setting, "kafka.tls.key_file");
        let tls = Tls { ca_file: Some(PathBuf::from("/does/not/exist.pem")), ..Tls::default() };
        let error = tls.check("kafka.tls").unwrap_err();
        assert_eq!(error.setting, "kafka.tls.ca_file");
        assert!(error.problem.contains("/does/not/exist.pem"), "{error}");
    }

    #[test]
    fn a_file_without_a_usable_certificate_is_named() {
        let garbage = "-----BEGIN CERTIFICATE-----\nZ2FyYmFnZQ==\n-----END CERTIFICATE-----\n";
        for (content, problem) in
            [("", "contains no PEM certificate"), ("not PEM", "contains no PEM certificate"), (garbage, "")]
        {
            let path = std::env::temp_dir().join(format!("{}-ca.pem", uuid::Uuid::now_v7()));
            std::fs::write(&path, content).unwrap();
            let error = Tls { ca_file: Some(path.clone()), ..Tls::default() }.check("sqs.tls").unwrap_err();
            std::fs::remove_file(&path).unwrap();
            assert_eq!(error.setting, "sqs.tls.ca_file");
            let place = path.display().to_string();
            assert!(error.problem.contains(&place) && error.problem.contains(problem), "{error}");
        }
    }

    #[test]
    fn verification_is_on_by_default_and_unknown_settings_are_refused() {
        assert!(serde_json::from_str::<Tls>("{}").unwrap().verify);
        assert!(serde_json::from_str::<Tls>(r#"{"verfy": false}"#).is_err());
    }
}
