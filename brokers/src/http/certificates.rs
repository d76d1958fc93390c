//! The TLS settings of connections, rebuilt when the files of the section change.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustls::ClientConfig;
use tokio::time::Instant;

use super::config::Config;
use crate::Tls;
use crate::settings::InvalidSetting;

/// Minimum time between two looks at the files.
const READ_EVERY: Duration = Duration::from_secs(1);

/// How long the machine's authorities are used before they are read again, if no others are
/// configured. They are many files that seldom change.
const MACHINE_READ_EVERY: Duration = Duration::from_secs(60);

/// The certificates that verify endpoints, and the one that is shown to them.
#[derive(Debug)]
pub(super) struct Certificates {
    section: Tls,
    needs_authorities: bool,
    hasher: RandomState,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    client: Arc<ClientConfig>,
    /// The hash of the files that the settings were built from.
    made_of: Result<u64, String>,
    made_at: Instant,
    read_at: Instant,
    /// The problem that was logged last.
    logged: Option<String>,
}

impl Certificates {
    /// Reads the files of the TLS section.
    ///
    /// # Errors
    /// [`InvalidSetting`] with the file, or that this machine has no certificate authorities.
    pub(super) fn new(config: &Config) -> Result<Self, InvalidSetting> {
        let section = config.tls.clone().unwrap_or_default();
        let (needs_authorities, hasher) = (config.needs_authorities(), RandomState::new());
        // Hashed before the files are read: a file that changes in between is read again.
        let made_of = hash(&section, &hasher);
        let client = Arc::new(read(&section, needs_authorities)?);
        let now = Instant::now();
        let state = State { client, made_of, made_at: now, read_at: now, logged: None };
        Ok(Self { section, needs_authorities, hasher, state: Mutex::new(state) })
    }

    /// Returns the settings of a connection. Looks at the files, which blocks for a local read, at
    /// most once a second. While the files cannot be used, the previous settings stay in use and
    /// the problem is logged: certificate and key are replaced one after the other.
    pub(super) fn current(&self) -> Arc<ClientConfig> {
        let now = Instant::now();
        let mut state = self.lock();
        if now.saturating_duration_since(state.read_at) >= READ_EVERY {
            state.read_at = now;
            self.look(&mut state, now);
        }
        Arc::clone(&state.client)
    }

    fn look(&self, state: &mut State, now: Instant) {
        let made_of = hash(&self.section, &self.hasher);
        let is_old = self.needs_authorities
            && self.section.ca_file.is_none()
            && now.saturating_duration_since(state.made_at) >= MACHINE_READ_EVERY;
        if made_of == state.made_of && !is_old {
            return;
        }
        match read(&self.section, self.needs_authorities) {
            Ok(client) => {
                *state =
                    State { client: Arc::new(client), made_of, made_at: now, read_at: now, logged: None };
            }
            Err(error) => {
                let text = error.to_string();
                if state.logged.as_ref() != Some(&text) {
                    tracing::warn!("{text}; the previous certificates stay in use");
                    state.logged = Some(text);
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each field is set by itself, so the state is usable even if another thread panicked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns a hash of the files, or why one cannot be read.
fn hash(section: &Tls, hasher: &RandomState) -> Result<u64, String> {
    let files: [&Option<PathBuf>; 3] = [&section.ca_file, &section.cert_file, &section.key_file];
    let mut hash = hasher.build_hasher();
    for file in files.into_iter().flatten() {
        let bytes = std::fs::read(file).map_err(|error| error.to_string())?;
        hash.write_usize(bytes.len());
        hash.write(&bytes);
    }
    Ok(hash.finish())
}

fn read(section: &Tls, needs_authorities: bool) -> Result<ClientConfig, InvalidSetting> {
    let https = section.https("http.tls")?;
    if needs_authorities {
        https.check_authorities()?;
    }
    https.hyper()
}
