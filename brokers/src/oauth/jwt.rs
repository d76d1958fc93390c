//! Reads the claims of a token that is a JSON Web Token. Only its audience, the broker, can and
//! does verify it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

/// The claims that a login needs.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Claims {
    /// Expiry, in seconds since 1970.
    exp: Option<f64>,
    /// When it was issued, by the same clock.
    iat: Option<f64>,
    /// The owner.
    pub(super) sub: Option<String>,
}

impl Claims {
    /// Returns the claims of a token, or `None` if it is not a JSON Web Token.
    pub(crate) fn of(token: &str) -> Option<Self> {
        let mut parts = token.split('.');
        let (_, claims, _) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() {
            return None;
        }
        let claims = URL_SAFE_NO_PAD.decode(claims.trim_end_matches('=')).ok()?;
        serde_json::from_slice(&claims).ok()
    }

    /// Returns when the token expires; `None` without a usable claim.
    pub(crate) fn expires_at(&self) -> Option<SystemTime> {
        let exp = Duration::try_from_secs_f64(self.exp?.max(0.0)).ok()?;
        UNIX_EPOCH.checked_add(exp)
    }

    /// Returns how long the token lives from its issue to its expiry, whatever the issuer's clock
    /// shows; `None` without two usable claims.
    pub(super) fn lifetime(&self) -> Option<Duration> {
        let seconds = self.exp? - self.iat?;
        Duration::try_from_secs_f64(seconds).ok().filter(|lifetime| !lifetime.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(claims: &str) -> String {
        format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims))
    }

    #[test]
    fn expiry_and_owner_are_read_and_nothing_else_matters() {
        let claims = Claims::of(&token(r#"{"exp": 1700000000, "sub": "relay", "aud": ["x"]}"#)).unwrap();
        assert_eq!(claims.expires_at(), Some(UNIX_EPOCH + Duration::from_secs(1_700_000_000)));
        assert_eq!(claims.sub.as_deref(), Some("relay"));
        assert!(Claims::of(&token(r#"{"exp": 17.5}"#)).unwrap().expires_at().is_some());
        for claims in ["{}", r#"{"exp": 1e300}"#] {
            assert_eq!(Claims::of(&token(claims)).unwrap().expires_at(), None, "{claims}");
        }
        assert_eq!(Claims::of(&token(r#"{"exp": -1}"#)).unwrap().expires_at(), Some(UNIX_EPOCH));
        for (claims, seconds) in [
            (r#"{"iat": 1000, "exp": 1030}"#, Some(30)),
            (r#"{"iat": 1030, "exp": 1030}"#, None),
            (r#"{"iat": 1040, "exp": 1030}"#, None),
            (r#"{"iat": -1e300, "exp": 1e300}"#, None),
            (r#"{"exp": 1030}"#, None),
        ] {
            let lifetime = Claims::of(&token(claims)).unwrap().lifetime();
            assert_eq!(lifetime, seconds.map(Duration::from_secs), "{claims}");
        }
        for text in ["opaque", "a.b", "a.b.c", "a.b.c.d", "..", &token("[]"), &token(r#"{"exp": "x"}"#)] {
            assert!(Claims::of(text).is_none(), "{text}");
        }
    }
}
