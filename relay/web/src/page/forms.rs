//! The proof that a form was made by this page, in this browser, for this user. It is needed behind
//! the login of an application, whose cookie other pages of its site may bring along.
//!
//! A key is in a cookie that no script reads; the token of a form is the name of the user, signed
//! with it. So every process that serves the page accepts the forms of the others, without a secret
//! that they share, and a form of one user is not sent in the name of another one.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, Mac as _};
use operate::Operator;
use sha2::Sha256;

/// The name of the field with the token.
pub(crate) const FIELD: &str = "form_token";
/// The name of the field with the user of a form, if the page has its own login: no proof, but a
/// form that outlives a login comes back to nobody else.
pub(crate) const USER: &str = "form_user";
/// The name of the cookie. It has no prefix such as `__Host-`, which would need the path `/`.
const COOKIE: &str = "relay-form";

/// The key that signs the forms of one browser.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct FormKey([u8; 32]);

impl FormKey {
    /// Makes a key.
    pub(crate) fn new() -> Self {
        Self(rand::random())
    }

    /// Returns the keys in these `Cookie` headers: that of the page at the longest path first.
    pub(crate) fn all<'a>(cookies: impl Iterator<Item = &'a str>) -> Vec<Self> {
        let pairs = cookies.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
        let values = pairs.filter(|(name, _)| *name == COOKIE).map(|(_, value)| value);
        let keys = values.filter_map(|value| URL_SAFE_NO_PAD.decode(value).ok()?.try_into().ok());
        keys.map(Self).collect()
    }

    /// Returns the value of `Set-Cookie` for the page at this prefix. A link from another site
    /// brings the cookie along, so that it does not make forms in other windows invalid.
    pub(crate) fn cookie(&self, prefix: &str) -> String {
        let path = if prefix.is_empty() { "/" } else { prefix };
        format!("{COOKIE}={}; Path={path}; HttpOnly; SameSite=Lax", URL_SAFE_NO_PAD.encode(self.0))
    }

    /// Returns the token of the forms for this user.
    pub(crate) fn token(&self, operator: &Operator) -> String {
        self.signed(operator)
            .map(|mac| URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes()))
            .unwrap_or_default()
    }

    /// Returns whether the token belongs to a form for this user. Takes constant time.
    pub(crate) fn accepts(&self, token: &str, operator: &Operator) -> bool {
        let Ok(token) = URL_SAFE_NO_PAD.decode(token) else { return false };
        self.signed(operator).is_some_and(|mac| mac.verify_slice(&token).is_ok())
    }

    fn signed(&self, operator: &Operator) -> Option<Hmac<Sha256>> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).ok()?;
        mac.update(b"relay page form\n");
        mac.update(operator.name().as_bytes());
        Some(mac)
    }
}

#[cfg(test)]
mod tests {
    use operate::Role;

    use super::*;

    #[test]
    fn a_form_is_of_one_browser_and_one_user() {
        let (key, other) = (FormKey::new(), FormKey::new());
        let ann = Operator::new("ann", Role::Operator);
        let bob = Operator::new("bob", Role::Operator);
        let token = key.token(&ann);
        assert!(key.accepts(&token, &ann));
        assert!(!key.accepts(&token, &bob), "a form of another user");
        assert!(!other.accepts(&token, &ann), "a form of another browser");
        for broken in ["", "=", "YQ", &token[1..]] {
            assert!(!key.accepts(broken, &ann), "{broken:?}");
        }
    }

    #[test]
    fn a_key_comes_back_in_its_cookie_below_the_prefix_alone() {
        let key = FormKey::new();
        let set = key.cookie("/ops/outbox");
        assert!(set.ends_with("; Path=/ops/outbox; HttpOnly; SameSite=Lax"), "{set}");
        assert!(key.cookie("").contains("; Path=/;"));
        let sent = set.split(';').next().unwrap();
        let lines = [format!("a=b; {sent}"), String::from("relay-form=short; x"), String::from("relay-form")];
        let found = FormKey::all(lines.iter().map(String::as_str));
        assert!(found == [key], "a broken one is none");
    }
}
