//! Passwords, given in the configuration or in a separate file.

use std::path::{Path, PathBuf};

use secrecy::SecretString;
use serde::Deserialize;

use crate::settings::InvalidSetting;

/// Maximum size of a secret file in bytes. Passwords are shorter; a larger file was named by
/// mistake.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// A secret, given as text or as the path of a file (a mounted Kubernetes or systemd credential).
/// `Debug` prints the path and never the text.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Secret {
    /// The secret itself.
    Text(SecretString),
    /// The file that holds it. It is read on every connect, so that a rotated secret is picked up.
    /// One trailing line break is dropped.
    File(PathBuf),
}

impl Secret {
    /// Returns the secret from the settings `<name>` and `<name>_file`, exactly one of which must
    /// be given.
    ///
    /// # Errors
    /// [`InvalidSetting`] when both or neither are given.
    pub fn from_pair(
        setting: &str,
        text: Option<SecretString>,
        file: Option<PathBuf>,
    ) -> Result<Self, InvalidSetting> {
        match (text, file) {
            (Some(text), None) => Ok(Self::Text(text)),
            (None, Some(file)) => Ok(Self::File(file)),
            (None, None) => Err(InvalidSetting::new(setting, format!("missing; set it or {setting}_file"))),
            (Some(_), Some(_)) => {
                Err(InvalidSetting::new(setting, format!("set either it or {setting}_file, not both")))
            }
        }
    }

    /// Returns the secret itself. If it is in a file, reads the file, which blocks for a local
    /// read.
    ///
    /// # Errors
    /// [`InvalidSetting`] when the file cannot be read, is empty, not UTF-8, or over 64 KiB.
    pub fn load(&self, setting: &str) -> Result<SecretString, InvalidSetting> {
        match self {
            Self::Text(text) => Ok(text.clone()),
            Self::File(path) => {
                read(path).map_err(|problem| InvalidSetting::new(format!("{setting}_file"), problem))
            }
        }
    }
}

fn read(path: &Path) -> Result<SecretString, String> {
    let named = |problem: String| format!("{}: {problem}", path.display());
    let bytes = std::fs::metadata(path).map_err(|error| named(error.to_string()))?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(named(format!("has {bytes} bytes; a secret has at most {FILE_BYTES_MAX}")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| named(error.to_string()))?;
    let text = text.strip_suffix('\n').map_or(text.as_str(), |line| line.strip_suffix('\r').unwrap_or(line));
    if text.is_empty() {
        return Err(named(String::from("is empty; write the secret into it")));
    }
    Ok(SecretString::from(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use secrecy::ExposeSecret;

    fn file(name: &str, content: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("{}-{name}", uuid::Uuid::now_v7()));
        std::fs::write(&path, content).unwrap();
        path
    }

    #[test]
    fn a_file_gives_its_secret_without_the_line_break() {
        let path = file("secret", "s3cret \r\n");
        assert_eq!(Secret::File(path.clone()).load("password").unwrap().expose_secret(), "s3cret ");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn an_empty_or_missing_file_is_named() {
        let path = file("empty", "\n");
        let error = Secret::File(path.clone()).load("kafka.sasl.password").unwrap_err();
        assert_eq!(error.setting, "kafka.sasl.password_file");
        assert!(error.problem.contains("is empty"), "{error}");
        std::fs::remove_file(&path).unwrap();
        let error = Secret::File(path.clone()).load("password").unwrap_err();
        assert!(error.problem.contains(&path.display().to_string()), "{error}");
    }

    #[test]
    fn exactly_one_of_the_pair_is_given_and_debug_hides_it() {
        let text = || Some(SecretString::from("s3cret"));
        assert!(Secret::from_pair("p", text(), Some(PathBuf::from("/x"))).is_err());
        assert!(Secret::from_pair("p", None, None).unwrap_err().problem.contains("p_file"));
        let debug = format!("{:?}", Secret::from_pair("p", text(), None).unwrap());
        assert!(!debug.contains("s3cret"), "{debug}");
    }
}
