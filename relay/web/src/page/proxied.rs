//! People whom a proxy has logged in, and names in headers.
//!
//! A header is believed only on a connection from one of the proxy's addresses, with the proxy's
//! secret if it has one. Elsewhere the same header is a forgery, and its request is refused: a
//! person who is ignored would not learn that the page can be reached around the proxy.

use std::net::IpAddr;

use axum::http::{HeaderMap, StatusCode};
use brokers::Network;
use operate::{Operator, Role};

use super::answer::Problem;
use super::guard::unkept;
use super::users::{KnownSecret, Users};
use crate::settings::ProxyLogin;

/// Stands for everybody whom the proxy names.
const EVERYBODY: &str = "*";
/// Maximum number of groups that are compared. More do not fit into the head of a request.
const GROUPS_MAX: usize = 2_000;

/// The proxy in front of the page that logs people in.
pub(crate) struct Proxied {
    from: Vec<Network>,
    secret: Option<KnownSecret>,
    secret_header: String,
    user_header: String,
    groups_header: String,
    viewers: Vec<String>,
    operators: Vec<String>,
    pub(crate) logout_url: Option<String>,
}

/// The claim of the headers of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// Nothing.
    Nothing,
    /// The proxy names this person.
    Person(Operator),
    /// The proxy names somebody who may not see the page, or in a way that cannot be used.
    Refused(String),
    /// This header did not come from the proxy.
    Forged(String),
}

impl Proxied {
    /// Reads the secret once.
    ///
    /// # Errors
    /// A secret that cannot be read or is too short.
    pub(crate) fn load(settings: &ProxyLogin) -> Result<Self, String> {
        let secret = settings.secret.clone();
        let secret = secret
            .map(|secret| KnownSecret::load(secret, "page.proxy_login.secret", "the proxy"))
            .transpose()?;
        Ok(Self {
            from: settings.from.clone(),
            secret,
            secret_header: settings.secret_header.clone(),
            user_header: settings.user_header.clone(),
            groups_header: settings.groups_header.clone(),
            viewers: settings.viewers.clone(),
            operators: settings.operators.clone(),
            logout_url: settings.logout_url.clone(),
        })
    }

    /// Reads the headers of a request that arrived from this address, if it is known.
    pub(crate) fn claim(&self, headers: &HeaderMap, from: Option<IpAddr>, users: &Users) -> Claim {
        let names = [&self.user_header, &self.groups_header, &self.secret_header];
        let Some(present) = names.into_iter().find(|name| headers.contains_key(name.as_str())) else {
            return Claim::Nothing;
        };
        if !self.is_from_proxy(headers, from) {
            return Claim::Forged(present.clone());
        }
        match self.person(headers, users) {
            Ok(Some(operator)) => Claim::Person(operator),
            Ok(None) => Claim::Nothing,
            Err(problem) => Claim::Refused(problem),
        }
    }

    fn is_from_proxy(&self, headers: &HeaderMap, from: Option<IpAddr>) -> bool {
        let is_place = self.from.is_empty()
            || from.is_some_and(|from| self.from.iter().any(|network| network.contains(from.to_canonical())));
        let has_secret = match &self.secret {
            None => !self.from.is_empty(),
            Some(secret) => {
                one(headers, &self.secret_header).ok().flatten().is_some_and(|text| secret.is_text(text))
            }
        };
        is_place & has_secret
    }

    /// Returns the person whom the proxy names; `None` if it names nobody.
    fn person(&self, headers: &HeaderMap, users: &Users) -> Result<Option<Operator>, String> {
        let Some(name) = one(headers, &self.user_header)? else { return Ok(None) };
        let name = name.trim();
        if let Some(problem) = unkept(name) {
            return Err(format!("the proxy names the person in {} by {problem}", self.user_header));
        }
        if users.has(name) {
            return Err(format!(
                "the proxy names a person {name:?}, which is also the name of a [[page.user]]: the audit could not tell \
                 them apart"
            ));
        }
        let role = self.role(headers)?;
        role.map(|role| Some(Operator::new(name, role)))
            .ok_or_else(|| format!("{name} is in no group that may see the page"))
    }

    fn role(&self, headers: &HeaderMap) -> Result<Option<Role>, String> {
        let named = one(headers, &self.groups_header)?.unwrap_or_default();
        let groups = named.split(',').map(str::trim).filter(|group| !group.is_empty());
        let groups: Vec<&str> = groups.take(GROUPS_MAX).collect();
        let has = |wanted: &[String]| {
            wanted.iter().any(|wanted| wanted == EVERYBODY || groups.contains(&wanted.as_str()))
        };
        Ok(match () {
            () if has(&self.operators) => Some(Role::Operator),
            () if has(&self.viewers) => Some(Role::Viewer),
            () => None,
        })
    }
}

/// Returns the response to a header that did not come from the proxy.
pub(crate) fn forged(header: &str, from: Option<IpAddr>) -> Problem {
    let from = from.map_or_else(|| String::from("an unknown address"), |from| from.to_string());
    let text =
        format!("the header {header} is believed only from the proxy, and this request came from {from}");
    Problem::new(StatusCode::FORBIDDEN, text).with_help(
        "reach the page through the proxy; a proxy needs its address in page.proxy_login.from, and must send the \
         secret if there is one",
    )
}

/// Returns the response to a person who is refused although the proxy names them.
pub(crate) fn refused(problem: &str) -> Problem {
    Problem::new(StatusCode::FORBIDDEN, problem)
        .with_help("see page.proxy_login: viewers and operators name the groups that may see the page")
}

/// Returns the value of a header that may occur once.
fn one<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, String> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        // A proxy that adds its header to that of a client.
        return Err(format!("the proxy sends {name} twice: let it replace the header of the client"));
    }
    text(value.as_bytes()).map(Some).ok_or_else(|| format!("{name} is not UTF-8"))
}

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};
    use brokers::Secret;

    use super::*;
    use crate::settings::{PageCredential, PageUser};

    const SECRET: &str = "secret-of-the-proxy";

    fn settings() -> ProxyLogin {
        ProxyLogin {
            from: vec![Network::parse("10.0.0.0/24").unwrap()],
            secret: None,
            secret_header: String::from("x-relay-proxy-secret"),
            user_header: String::from("x-auth-request-email"),
            groups_header: String::from("x-auth-request-groups"),
            viewers: vec![String::from("staff")],
            operators: vec![String::from("on-call"), String::from("admins")],
            logout_url: None,
        }
    }

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            let name: HeaderName = name.parse().unwrap();
            headers.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        headers
    }

    fn users() -> Users {
        Users::load(&[PageUser {
            name: String::from("wall"),
            role: Role::Viewer,
            credential: PageCredential::Password(Secret::Text("password-of-wall".into())),
        }])
        .unwrap()
    }

    fn claim(settings: &ProxyLogin, from: &str, pairs: &[(&str, &str)]) -> Claim {
        let from = (!from.is_empty()).then(|| from.parse().unwrap());
        Proxied::load(settings).unwrap().claim(&headers(pairs), from, &users())
    }

    const ANN: (&str, &str) = ("x-auth-request-email", "ann@example.com");

    #[test]
    fn groups_decide_about_the_role() {
        for (groups, role) in [
            ("staff", Some(Role::Viewer)),
            ("on-call", Some(Role::Operator)),
            ("a, staff ,admins", Some(Role::Operator)),
            ("Staff", None),
            ("staff2", None),
            ("*", None),
            ("", None),
        ] {
            let found = claim(&settings(), "10.0.0.7", &[ANN, ("x-auth-request-groups", groups)]);
            match role {
                Some(role) => {
                    assert_eq!(found, Claim::Person(Operator::new("ann@example.com", role)), "{groups}");
                }
                None => assert!(matches!(found, Claim::Refused(_)), "{groups}: {found:?}"),
            }
        }
        let everybody = ProxyLogin { viewers: vec![String::from("*")], ..settings() };
        let found = claim(&everybody, "10.0.0.7", &[ANN]);
        assert_eq!(found, Claim::Person(Operator::new("ann@example.com", Role::Viewer)));
    }

    /// Goal: a proxy that adds its groups to those of a client makes nobody an operator. Oracle:
    /// the request is refused by the name of the header, whichever of the two comes first, even if
    /// everybody may see the page.
    #[test]
    fn groups_that_come_twice_are_refused() {
        let everybody = ProxyLogin { viewers: vec![String::from("*")], ..settings() };
        let groups = |groups| ("x-auth-request-groups", groups);
        for (first, second) in
            [("staff", "on-call"), ("on-call", "staff"), ("staff", "staff"), ("", "on-call")]
        {
            let twice = [ANN, groups(first), groups(second)];
            for settings in [settings(), everybody.clone()] {
                match claim(&settings, "10.0.0.7", &twice) {
                    Claim::Refused(it) => assert!(it.contains("x-auth-request-groups twice"), "{it}"),
                    other => panic!("{first:?} {second:?}: {other:?}"),
                }
            }
        }
    }

    #[test]
    fn a_header_from_elsewhere_is_a_forgery() {
        let groups = ("x-auth-request-groups", "admins");
        for from in ["", "10.0.1.7", "127.0.0.1", "::1", "fd00::a00:7"] {
            for pairs in [&[ANN, groups][..], &[groups], &[("x-relay-proxy-secret", SECRET)]] {
                assert!(matches!(claim(&settings(), from, pairs), Claim::Forged(_)), "{from} {pairs:?}");
            }
        }
        assert!(matches!(claim(&settings(), "::ffff:10.0.0.7", &[ANN, groups]), Claim::Person(_)));
        assert_eq!(claim(&settings(), "10.0.1.7", &[("x-forwarded-user", "ann")]), Claim::Nothing);
        assert_eq!(claim(&settings(), "10.0.1.7", &[("x_auth_request_email", "ann")]), Claim::Nothing);
    }

    #[test]
    fn the_secret_counts_beside_the_address_or_without_one() {
        let secret = Some(Secret::Text(SECRET.into()));
        let both = ProxyLogin { secret: secret.clone(), ..settings() };
        let alone = ProxyLogin { from: Vec::new(), secret, ..settings() };
        let groups = ("x-auth-request-groups", "staff");
        let right = ("x-relay-proxy-secret", SECRET);
        for wrong in ["", "secret-of-the-prox", "secret-of-the-proxy ", "SECRET-OF-THE-PROXY"] {
            let pairs = [ANN, groups, ("x-relay-proxy-secret", wrong)];
            assert!(matches!(claim(&both, "10.0.0.7", &pairs), Claim::Forged(_)), "{wrong}");
            assert!(matches!(claim(&alone, "10.0.0.7", &pairs), Claim::Forged(_)), "{wrong}");
        }
        assert!(matches!(claim(&both, "10.0.0.7", &[ANN, groups]), Claim::Forged(_)));
        assert!(matches!(claim(&both, "10.0.0.7", &[ANN, groups, right, right]), Claim::Forged(_)));
        assert!(matches!(claim(&both, "10.0.1.7", &[ANN, groups, right]), Claim::Forged(_)));
        assert!(matches!(claim(&both, "10.0.0.7", &[ANN, groups, right]), Claim::Person(_)));
        assert!(matches!(claim(&alone, "", &[ANN, groups, right]), Claim::Person(_)));
        let neither = ProxyLogin { from: Vec::new(), ..settings() };
        assert!(matches!(claim(&neither, "10.0.0.7", &[ANN, groups]), Claim::Forged(_)));
    }

    #[test]
    fn a_name_that_cannot_be_used_is_refused() {
        let groups = ("x-auth-request-groups", "staff");
        let long = "a".repeat(message::TEXT_BYTES_MAX + 1);
        for (name, told) in [
            ("", "an empty name"),
            (" ", "an empty name"),
            (long.as_str(), "256 bytes"),
            ("an\tn", "a control character"),
            ("wall", "[[page.user]]"),
        ] {
            match claim(&settings(), "10.0.0.7", &[("x-auth-request-email", name), groups]) {
                Claim::Refused(problem) => assert!(problem.contains(told), "{problem}"),
                other => panic!("{name}: {other:?}"),
            }
        }
        let twice = [ANN, ("x-auth-request-email", "eve@example.com"), groups];
        assert!(matches!(claim(&settings(), "10.0.0.7", &twice), Claim::Refused(it) if it.contains("twice")));
        assert_eq!(claim(&settings(), "10.0.0.7", &[groups]), Claim::Nothing, "nobody is named");
        let mut raw = headers(&[groups]);
        raw.append("x-auth-request-email", HeaderValue::from_bytes(b"an\xffn").unwrap());
        let found = Proxied::load(&settings()).unwrap().claim(&raw, "10.0.0.7".parse().ok(), &users());
        assert!(matches!(found, Claim::Refused(it) if it.contains("UTF-8")));
    }

    #[test]
    fn a_short_secret_ends_the_start() {
        let short = ProxyLogin { secret: Some(Secret::Text("short".into())), ..settings() };
        let told = Proxied::load(&short).err().unwrap();
        assert!(told.contains("page.proxy_login") && told.contains("the minimum is 12"), "{told}");
        assert!(!told.contains("short"), "{told}");
    }
}
