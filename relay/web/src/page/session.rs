//! The cookie of a login: name and end, signed with a key made from the user's secret. So every
//! process with the same configuration accepts it, and a new secret invalidates it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, Mac as _};
use sha2::Sha256;

/// Lifetime of a login.
pub(crate) const LIFETIME: Duration = Duration::from_secs(12 * 3_600);

/// The name of the cookie, and whether it is sent only over TLS.
#[derive(Debug, Clone)]
pub(crate) struct Cookie {
    pub(crate) name: String,
    pub(crate) is_secure: bool,
}

impl Cookie {
    /// Names the cookie for the page at this port. Over TLS, no other host or path can set it.
    /// Without TLS the page is on this machine, where all ports share their cookies. A name for
    /// each port keeps the logins of different pages apart.
    pub(crate) fn new(is_secure: bool, port: u16) -> Self {
        let name = if is_secure { String::from("__Host-relay") } else { format!("relay-{port}") };
        Self { name, is_secure }
    }
}

/// Returns the value of a cookie for this user, valid until `now` plus [`LIFETIME`].
pub(crate) fn sign(name: &str, secret: &[u8; 32], now: SystemTime) -> Option<String> {
    let end = (now + LIFETIME).duration_since(UNIX_EPOCH).ok()?.as_secs();
    let signature = mac(name, secret, end)?.finalize().into_bytes();
    Some(format!("{}.{end}.{}", URL_SAFE_NO_PAD.encode(name), URL_SAFE_NO_PAD.encode(signature)))
}

/// Returns the name that a cookie claims, without proof.
pub(crate) fn claimed_name(value: &str) -> Option<String> {
    let name = URL_SAFE_NO_PAD.decode(value.split('.').next()?).ok()?;
    String::from_utf8(name).ok()
}

/// Returns whether a cookie was made for this user with this secret and has not expired.
pub(crate) fn is_valid(value: &str, name: &str, secret: &[u8; 32], now: SystemTime) -> bool {
    let check = || {
        let mut parts = value.splitn(3, '.');
        let (claimed, end, signature) = (parts.next()?, parts.next()?, parts.next()?);
        let end: u64 = end.parse().ok()?;
        let now = now.duration_since(UNIX_EPOCH).ok()?.as_secs();
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        let is_signed = mac(name, secret, end)?.verify_slice(&signature).is_ok();
        Some(is_signed && claimed == URL_SAFE_NO_PAD.encode(name) && now < end)
    };
    check().unwrap_or(false)
}

fn mac(name: &str, secret: &[u8; 32], end: u64) -> Option<Hmac<Sha256>> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).ok()?;
    mac.update(format!("relay page session\n{}\n{end}\n", name.len()).as_bytes());
    mac.update(name.as_bytes());
    Some(mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_good_for_its_user_its_secret_and_its_time() {
        let now = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let (secret, other) = ([7; 32], [8; 32]);
        let cookie = sign("ann", &secret, now).unwrap();
        assert_eq!(claimed_name(&cookie).as_deref(), Some("ann"));
        assert!(is_valid(&cookie, "ann", &secret, now));
        assert!(is_valid(&cookie, "ann", &secret, now + LIFETIME - Duration::from_secs(1)));
        assert!(!is_valid(&cookie, "ann", &secret, now + LIFETIME));
        assert!(!is_valid(&cookie, "ann", &other, now));
        assert!(!is_valid(&cookie, "eve", &secret, now));
        let parts: Vec<&str> = cookie.split('.').collect();
        let later = format!("{}.{}.{}", parts[0], 9_999_999_999_u64, parts[2]);
        assert!(!is_valid(&later, "ann", &secret, now));
        let renamed = format!("{}.{}.{}", URL_SAFE_NO_PAD.encode("root"), parts[1], parts[2]);
        assert!(!is_valid(&renamed, "ann", &secret, now) && !is_valid(&renamed, "root", &secret, now));
        for broken in ["", ".", "..", "a.b.c", "YW5u.1.", &cookie[..cookie.len() - 1]] {
            assert!(!is_valid(broken, "ann", &secret, now), "{broken}");
        }
    }
}
