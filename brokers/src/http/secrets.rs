//! Signing keys in files that are read again when they change.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use secrecy::ExposeSecret as _;
use tokio::time::Instant;

use super::signature::{self, Key};
use crate::secret::Secret;
use crate::settings::InvalidSetting;

/// How long the keys are used before the files are read again.
const READ_EVERY: Duration = Duration::from_secs(1);

/// The signing keys of an endpoint.
#[derive(Debug)]
pub(super) struct Secrets {
    setting: String,
    files: Vec<PathBuf>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    keys: Option<Arc<[Key]>>,
    read_at: Option<Instant>,
    /// The problem that was logged last.
    logged: Option<String>,
}

impl Secrets {
    /// Takes the keys in these files; `setting` names them. Reads nothing yet.
    pub(super) fn new(setting: &str, files: &[PathBuf]) -> Self {
        Self { setting: setting.to_owned(), files: files.to_vec(), state: Mutex::default() }
    }

    /// Returns the keys. Reads the files, which blocks for a local read, at most once a second.
    /// While a file cannot be read, the previous keys are used and the problem is logged: a secret
    /// that is being replaced is missing for a moment.
    ///
    /// # Errors
    /// [`InvalidSetting`] with the file, when there are no previous keys.
    pub(super) fn keys(&self) -> Result<Arc<[Key]>, InvalidSetting> {
        let now = Instant::now();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_fresh = |at: Instant| now.saturating_duration_since(at) < READ_EVERY;
        if let Some(keys) = state.keys.clone()
            && state.read_at.is_some_and(is_fresh)
        {
            return Ok(keys);
        }
        match (self.load(), state.keys.clone()) {
            (Ok(keys), _) => {
                let keys: Arc<[Key]> = keys.into();
                *state = State { keys: Some(Arc::clone(&keys)), read_at: Some(now), logged: None };
                Ok(keys)
            }
            (Err(error), Some(previous)) => {
                state.read_at = Some(now);
                let text = error.to_string();
                if state.logged.as_ref() != Some(&text) {
                    tracing::warn!("{text}; the previous secrets stay in use");
                    state.logged = Some(text);
                }
                Ok(previous)
            }
            (Err(error), None) => Err(error),
        }
    }

    /// Reads all files.
    ///
    /// # Errors
    /// [`InvalidSetting`] with the file, and never with a secret.
    pub(super) fn load(&self) -> Result<Vec<Key>, InvalidSetting> {
        let mut keys = Vec::new();
        for file in &self.files {
            let named = |problem: String| InvalidSetting::new(&self.setting, problem);
            let text =
                Secret::File(file.clone()).load(&self.setting).map_err(|error| named(error.problem))?;
            let read = signature::read_keys(text.expose_secret());
            keys.extend(read.map_err(|problem| named(format!("{}: {problem}", file.display())))?);
        }
        Ok(keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const SECOND: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX";

    fn signed(secrets: &Secrets) -> String {
        signature::sign(&secrets.keys().unwrap(), "id", "1", b"")
    }

    /// Goal: a rotated secret is used without a restart, and a file that is missing for a moment
    /// stops nothing. Oracle: the signatures.
    #[tokio::test(start_paused = true)]
    async fn a_changed_file_is_read_again_and_a_missing_one_is_bridged() {
        let path = std::env::temp_dir().join(format!("{}-whsec", uuid::Uuid::now_v7()));
        let secrets = Secrets::new("http.secret_files", std::slice::from_ref(&path));
        let error = secrets.keys().unwrap_err();
        assert!(error.setting == "http.secret_files" && error.problem.contains(&path.display().to_string()));
        std::fs::write(&path, FIRST).unwrap();
        let first = signed(&secrets);
        std::fs::write(&path, format!("{SECOND}\n{FIRST}\n")).unwrap();
        assert_eq!(signed(&secrets), first, "read at most once a second");
        tokio::time::advance(READ_EVERY).await;
        let both = signed(&secrets);
        assert!(both.ends_with(&first) && both.split(' ').count() == 2, "{both}");
        std::fs::remove_file(&path).unwrap();
        tokio::time::advance(READ_EVERY).await;
        assert_eq!(signed(&secrets), both);
        std::fs::write(&path, "whsec_half").unwrap();
        tokio::time::advance(READ_EVERY).await;
        assert_eq!(signed(&secrets), both);
        std::fs::write(&path, FIRST).unwrap();
        tokio::time::advance(READ_EVERY).await;
        assert_eq!(signed(&secrets), first);
        std::fs::remove_file(&path).unwrap();
    }
}
