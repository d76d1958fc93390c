//! Signatures of Standard Webhooks (<https://www.standardwebhooks.com>, version 1.0.0): HMAC-SHA256
//! over id, timestamp and body. Pure.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, Mac};
use secrecy::{ExposeSecret as _, SecretSlice};
use sha2::Sha256;

/// The headers of a signed request.
pub(super) const ID: &str = "webhook-id";
pub(super) const TIMESTAMP: &str = "webhook-timestamp";
pub(super) const SIGNATURE: &str = "webhook-signature";

/// The prefixes of a secret, as people write it, and of a signature.
const SECRET_PREFIX: &str = "whsec_";
const VERSION_PREFIX: &str = "v1,";

/// Lengths of a key in bytes that the specification permits.
const KEY_BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// Maximum number of keys at once: more than any rotation needs.
const KEYS_MAX: usize = 16;

/// A key to sign with.
pub(super) type Key = SecretSlice<u8>;

/// Reads the secrets in a file, one a line. Skips empty lines and lines that begin with `#`.
///
/// # Errors
/// The problem, with the number of its line and without the secret.
pub(super) fn read_keys(text: &str) -> Result<Vec<Key>, String> {
    let lines = text.lines().map(str::trim).enumerate();
    let secrets = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let keys: Vec<Key> = secrets
        .map(|(at, line)| read_key(line).map_err(|problem| format!("line {}: {problem}", at + 1)))
        .collect::<Result<_, _>>()?;
    match keys.len() {
        0 => Err(String::from("has no secret; write whsec_ and 24 to 64 bytes in base64")),
        count if count > KEYS_MAX => Err(format!("has {count} secrets; at most {KEYS_MAX} are used at once")),
        _ => Ok(keys),
    }
}

fn read_key(secret: &str) -> Result<Key, String> {
    let encoded = secret
        .strip_prefix(SECRET_PREFIX)
        .ok_or("the secret does not begin with whsec_; copy it as it was issued")?;
    let bytes =
        STANDARD.decode(encoded).map_err(|_| "the secret is not base64 behind whsec_; copy it again")?;
    if !KEY_BYTES.contains(&bytes.len()) {
        let [least, most] = [KEY_BYTES.start(), KEY_BYTES.end()];
        return Err(format!("the secret has {} bytes; it needs {least} to {most}", bytes.len()));
    }
    Ok(Key::from(bytes))
}

fn mac(key: &Key, id: &str, timestamp: &str, body: &[u8]) -> Hmac<Sha256> {
    #[expect(clippy::expect_used, reason = "HMAC accepts a key of any length")]
    let mut mac = Hmac::<Sha256>::new_from_slice(key.expose_secret()).expect("a key of any length");
    for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
        mac.update(part);
    }
    mac
}

/// Returns the value of `webhook-signature`: one signature for each key, separated by spaces.
pub(super) fn sign(keys: &[Key], id: &str, timestamp: &str, body: &[u8]) -> String {
    let one = |key| {
        let signature = mac(key, id, timestamp, body).finalize().into_bytes();
        format!("{VERSION_PREFIX}{}", STANDARD.encode(signature))
    };
    keys.iter().map(one).collect::<Vec<_>>().join(" ")
}

/// Returns whether one of the signatures was made with one of the keys. Takes the same time for
/// each signature of the right length.
pub(super) fn verify(keys: &[Key], id: &str, timestamp: &str, body: &[u8], signatures: &str) -> bool {
    let signatures = signatures.split(' ').filter_map(|signature| signature.strip_prefix(VERSION_PREFIX));
    let mut decoded = signatures.filter_map(|signature| STANDARD.decode(signature).ok()).take(KEYS_MAX);
    decoded.any(|signature| {
        keys.iter().any(|key| mac(key, id, timestamp, body).verify_slice(&signature).is_ok())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test vector that the libraries of the specification publish.
    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const MESSAGE: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
    const AT: &str = "1614265330";
    const BODY: &[u8] = br#"{"test": 2432232314}"#;
    const EXPECTED: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";

    #[test]
    fn the_published_vector_is_signed_and_verified() {
        let keys = read_keys(SECRET).unwrap();
        assert_eq!(sign(&keys, MESSAGE, AT, BODY), EXPECTED);
        assert!(verify(&keys, MESSAGE, AT, BODY, EXPECTED));
    }

    #[test]
    fn any_change_breaks_a_signature() {
        let keys = read_keys(SECRET).unwrap();
        assert!(!verify(&keys, "msg_other", AT, BODY, EXPECTED));
        assert!(!verify(&keys, MESSAGE, "1614265331", BODY, EXPECTED));
        assert!(!verify(&keys, MESSAGE, AT, b"{}", EXPECTED));
        for signature in
            ["", "v1,", "v1a,g0hM", &EXPECTED.replace("v1,", "v2,"), &EXPECTED[..EXPECTED.len() - 4]]
        {
            assert!(!verify(&keys, MESSAGE, AT, BODY, signature), "{signature}");
        }
    }

    #[test]
    fn during_a_rotation_either_secret_verifies() {
        let other = format!("whsec_{}", STANDARD.encode([7; 32]));
        let both = read_keys(&format!("# new\n{other}\n\n{SECRET}\r\n")).unwrap();
        let signatures = sign(&both, MESSAGE, AT, BODY);
        assert_eq!(signatures.split(' ').count(), 2);
        assert_eq!(signatures.split(' ').nth(1), Some(EXPECTED));
        for one in [SECRET, &other] {
            assert!(verify(&read_keys(one).unwrap(), MESSAGE, AT, BODY, &signatures));
        }
        let third = format!("whsec_{}", STANDARD.encode([8; 32]));
        assert!(!verify(&read_keys(&third).unwrap(), MESSAGE, AT, BODY, &signatures));
    }

    #[test]
    fn a_wrong_secret_is_named_by_its_line_and_never_shown() {
        let short = format!("whsec_{}", STANDARD.encode([1; 23]));
        for (text, problem) in [
            ("", "has no secret"),
            ("# none", "has no secret"),
            ("\nMfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "line 2: the secret does not begin with whsec_"),
            ("whsec_*MfKQ9r8", "line 1: the secret is not base64"),
            (&short, "line 1: the secret has 23 bytes; it needs 24 to 64"),
            (&format!("{SECRET}\n").repeat(17), "has 17 secrets"),
        ] {
            let error = read_keys(text).unwrap_err();
            assert!(error.starts_with(problem) && !error.contains("MfKQ"), "{error}");
        }
        assert!(!format!("{:?}", read_keys(SECRET).unwrap()).contains("MfKQ"));
    }
}
