//! The expiry of an access token of OAuth 2 that is used as a password.
//!
//! Such a token is usually a JWT. It is read so that the file is checked in time and errors name
//! the cause. Only the broker decides whether a token is valid.

use std::time::{Duration, SystemTime};

use message::units::ShownTime;

use crate::oauth::Claims;

/// Expiry of a token: the time of the machine that issued it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Expiry(SystemTime);

impl Expiry {
    /// Returns the expiry of a token; `None` for a password, and for a token without an expiry.
    pub(super) fn of(password: &str) -> Option<Self> {
        Claims::of(password)?.expires_at().map(Self)
    }

    /// Returns the time that is left; zero for an expired token.
    pub(super) fn left(self, now: SystemTime) -> Duration {
        self.0.duration_since(now).unwrap_or_default()
    }

    /// Returns how long ago it was; `None` for a token that has not expired.
    pub(super) fn ago(self, now: SystemTime) -> Option<Duration> {
        now.duration_since(self.0).ok()
    }

    /// Returns `expires in 40s` or `expired 3m ago`.
    pub(super) fn told(self, now: SystemTime) -> String {
        let whole = |time: Duration| ShownTime(Duration::from_secs(time.as_secs())).to_string();
        match self.ago(now) {
            Some(ago) => format!("expired {} ago by this machine's clock", whole(ago)),
            None => format!("expires in {} by this machine's clock", whole(self.left(now))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;

    use super::*;

    fn token(claims: &str) -> String {
        format!("eyJh.{}.c2ln", URL_SAFE_NO_PAD.encode(claims))
    }

    fn at(secs: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(secs)
    }

    #[test]
    fn the_expiry_of_a_token_is_read() {
        for claims in [r#"{"exp":1000}"#, r#"{"sub":"relay","exp":1000.0,"aud":["rabbitmq"]}"#] {
            let expiry = Expiry::of(&token(claims)).unwrap();
            assert_eq!((expiry.left(at(940)), expiry.ago(at(940))), (Duration::from_secs(60), None));
            assert_eq!(expiry.left(at(1001)), Duration::ZERO);
            assert_eq!(expiry.ago(at(1180)), Some(Duration::from_secs(180)));
            assert!(expiry.told(at(940)).starts_with("expires in "), "{}", expiry.told(at(940)));
            assert!(expiry.told(at(1180)).starts_with("expired "), "{}", expiry.told(at(1180)));
        }
        let padded = token(r#"{"exp":1000}"#).replace(".c2ln", "==.c2ln");
        assert!(Expiry::of(&padded).is_some());
    }

    #[test]
    fn a_password_has_no_expiry() {
        let without = token(r#"{"sub":"relay"}"#);
        let never = token(r#"{"exp":1e300}"#);
        let text = token(r#"{"exp":"soon"}"#);
        let longer = format!("{}.x.y", token(r#"{"exp":1000}"#));
        for password in ["", "s3cret", "a.b.c", "...", "1.2", &without, &never, &text, &longer] {
            assert_eq!(Expiry::of(password), None, "{password}");
        }
    }
}
