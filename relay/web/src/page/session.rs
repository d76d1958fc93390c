//! The cookie of a login: name, id and end, signed with a key made from the user's secret. So every
//! process with the same configuration accepts it, and a new secret invalidates it. `sessions` ends
//! one before its time.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, Mac as _};
pub(crate) use operate::sessions::LIFETIME;
use operate::sessions::SessionId;
use sha2::Sha256;
use time::OffsetDateTime;

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

/// A session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) user: String,
    /// Its beginning, by the clock of the process that made it, in whole seconds.
    pub(crate) began_at: OffsetDateTime,
}

impl Session {
    /// Begins a session of a user.
    pub(crate) fn begin(user: &str, now: SystemTime) -> Option<Self> {
        let id = URL_SAFE_NO_PAD.encode(rand::random::<[u8; 16]>()).parse().ok()?;
        let seconds = i64::try_from(now.duration_since(UNIX_EPOCH).ok()?.as_secs()).ok()?;
        let began_at = OffsetDateTime::from_unix_timestamp(seconds).ok()?;
        Some(Self { id, user: user.to_owned(), began_at })
    }

    /// Returns the value of its cookie, valid until [`LIFETIME`] after its beginning.
    pub(crate) fn sign(&self, secret: &[u8; 32]) -> Option<String> {
        let end = u64::try_from((self.began_at + LIFETIME).unix_timestamp()).ok()?;
        let signature = mac(&self.user, &self.id, secret, end)?.finalize().into_bytes();
        let (user, signature) = (URL_SAFE_NO_PAD.encode(&self.user), URL_SAFE_NO_PAD.encode(signature));
        Some(format!("{user}.{}.{end}.{signature}", self.id))
    }

    /// Returns the session that a cookie claims, without proof.
    pub(crate) fn claimed(value: &str) -> Option<Self> {
        let parts = Parts::of(value)?;
        let user = String::from_utf8(URL_SAFE_NO_PAD.decode(parts.user).ok()?).ok()?;
        let end = i64::try_from(parts.end).ok()?;
        let began_at =
            OffsetDateTime::from_unix_timestamp(end).ok()?.checked_sub(LIFETIME.try_into().ok()?)?;
        Some(Self { id: parts.id, user, began_at })
    }
}

/// The parts of a cookie's value.
struct Parts<'a> {
    user: &'a str,
    id: SessionId,
    end: u64,
    signature: Vec<u8>,
}

impl<'a> Parts<'a> {
    fn of(value: &'a str) -> Option<Self> {
        let mut parts = value.splitn(4, '.');
        let (user, id, end) = (parts.next()?, parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some(Self { user, id, end, signature: URL_SAFE_NO_PAD.decode(parts.next()?).ok()? })
    }
}

/// Returns whether a cookie was made for this user with this secret and has not expired.
pub(crate) fn is_valid(value: &str, user: &str, secret: &[u8; 32], now: SystemTime) -> bool {
    let check = || {
        let parts = Parts::of(value)?;
        let now = now.duration_since(UNIX_EPOCH).ok()?.as_secs();
        let is_signed = mac(user, &parts.id, secret, parts.end)?.verify_slice(&parts.signature).is_ok();
        Some(is_signed && parts.user == URL_SAFE_NO_PAD.encode(user) && now < parts.end)
    };
    check().unwrap_or(false)
}

fn mac(user: &str, id: &SessionId, secret: &[u8; 32], end: u64) -> Option<Hmac<Sha256>> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).ok()?;
    mac.update(format!("relay page session 2\n{}\n{id}\n{end}\n", user.len()).as_bytes());
    mac.update(user.as_bytes());
    Some(mac)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_cookie_is_good_for_its_user_its_secret_and_its_time() {
        let now = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let (secret, other) = ([7; 32], [8; 32]);
        let session = Session::begin("ann", now).unwrap();
        let cookie = session.sign(&secret).unwrap();
        assert_eq!(Session::claimed(&cookie), Some(session.clone()));
        assert_ne!(Session::begin("ann", now).unwrap().id, session.id);
        assert!(is_valid(&cookie, "ann", &secret, now));
        assert!(is_valid(&cookie, "ann", &secret, now + LIFETIME - Duration::from_secs(1)));
        assert!(!is_valid(&cookie, "ann", &secret, now + LIFETIME));
        assert!(!is_valid(&cookie, "ann", &other, now));
        assert!(!is_valid(&cookie, "eve", &secret, now));
        let parts: Vec<&str> = cookie.split('.').collect();
        let later = format!("{}.{}.{}.{}", parts[0], parts[1], 9_999_999_999_u64, parts[3]);
        assert!(!is_valid(&later, "ann", &secret, now));
        let other_id = Session::begin("ann", now).unwrap().id;
        let another = format!("{}.{other_id}.{}.{}", parts[0], parts[2], parts[3]);
        assert!(!is_valid(&another, "ann", &secret, now), "the id is signed");
        let root = URL_SAFE_NO_PAD.encode("root");
        let renamed = format!("{root}.{}.{}.{}", parts[1], parts[2], parts[3]);
        assert!(!is_valid(&renamed, "ann", &secret, now) && !is_valid(&renamed, "root", &secret, now));
        let former = format!("{}.{}.{}", parts[0], parts[2], parts[3]);
        for broken in ["", ".", "...", "a.b.c.d", "YW5u.1.", &former, &cookie[..cookie.len() - 1]] {
            assert!(!is_valid(broken, "ann", &secret, now), "{broken}");
        }
    }
}
