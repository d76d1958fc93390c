//! TLS towards a broker.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::settings::InvalidSetting;

/// How a TLS connection is made. All files are PEM.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tls {
    /// The certificate authority that signed the broker's certificate; without it, the system's.
    pub ca_file: Option<PathBuf>,
    /// The client's certificate chain, for mutual TLS; needs `key_file`.
    pub cert_file: Option<PathBuf>,
    /// The client's private key; needs `cert_file`.
    pub key_file: Option<PathBuf>,
    /// Whether the broker's certificate and host name are verified (default: yes). `false` lets anybody on the
    /// path read and change everything: for tests on one machine only.
    pub verify: bool,
}

impl Default for Tls {
    fn default() -> Self {
        Self { ca_file: None, cert_file: None, key_file: None, verify: true }
    }
}

impl Tls {
    /// Checks that certificate and key come as a pair and that every file can be opened; `prefix` is the path
    /// of this section (`kafka.tls`).
    ///
    /// # Errors
    /// [`InvalidSetting`] naming the setting and the file.
    pub fn check(&self, prefix: &str) -> Result<(), InvalidSetting> {
        if self.cert_file.is_some() != self.key_file.is_some() {
            let (given, missing) =
                if self.cert_file.is_some() { ("cert_file", "key_file") } else { ("key_file", "cert_file") };
            let problem = format!("missing; {given} is given, and mutual TLS needs both");
            return Err(InvalidSetting::new(format!("{prefix}.{missing}"), problem));
        }
        let files =
            [("ca_file", &self.ca_file), ("cert_file", &self.cert_file), ("key_file", &self.key_file)];
        files.into_iter().filter_map(|(name, path)| path.as_ref().map(|path| (name, path))).try_for_each(
            |(name, path)| {
                openable(path).map_err(|problem| InvalidSetting::new(format!("{prefix}.{name}"), problem))
            },
        )
    }
}

fn openable(path: &Path) -> Result<(), String> {
    std::fs::File::open(path).map(drop).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn verification_is_on_by_default_and_unknown_settings_are_refused() {
        assert!(serde_json::from_str::<Tls>("{}").unwrap().verify);
        assert!(serde_json::from_str::<Tls>(r#"{"verfy": false}"#).is_err());
    }
}
