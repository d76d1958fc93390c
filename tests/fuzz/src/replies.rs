//! Replies to requests of sagas: the key in a header, and a payload.

use saga::{ID_BYTES_MAX, NAME_BYTES_MAX, SagaId, StepKey};
use serde_json::Value;

use crate::bounded;

/// Maximum length of a key, in bytes: as long as keys and headers of other services may be.
const KEY_BYTES_MAX: usize = 255;

/// Reads the key from the first line, and the payload behind it.
pub fn replies(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let (key, payload) = text.split_once('\n').unwrap_or((&text, ""));
    match key.parse::<StepKey>() {
        Ok(parsed) => {
            assert_eq!(parsed.to_string(), key, "a key is written as it was read");
            assert!(key.len() <= KEY_BYTES_MAX, "{} bytes of key", key.len());
            let StepKey { saga, step } = &parsed;
            assert!(saga.saga_type().len() <= NAME_BYTES_MAX && saga.id().len() <= ID_BYTES_MAX);
            assert!((1..=NAME_BYTES_MAX).contains(&step.len()));
            assert_eq!(SagaId::new(saga.saga_type(), saga.id()).as_ref(), Ok(saga));
        }
        Err(error) => bounded(&error.to_string()),
    }
    let mut parts = key.splitn(2, '/');
    let (saga_type, id) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    if let Err(error) = SagaId::new(saga_type, id) {
        bounded(&error.to_string());
    }
    // The payload is stored as text: a saga must read the same value.
    if let Ok(value) = serde_json::from_str::<Value>(payload) {
        let stored = value.to_string();
        assert!(!stored.contains('\0'), "PostgreSQL stores no zero byte");
        assert_eq!(serde_json::from_str::<Value>(&stored).ok(), Some(value));
    }
}
