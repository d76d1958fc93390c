//! Decides from its headers whether to admit a request. Pure.

use std::net::{IpAddr, SocketAddr};

use message::TEXT_BYTES_MAX;

/// The origin that a request claims.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Head<'a> {
    /// Whether its method is safe: it promises to change nothing.
    pub(crate) is_safe: bool,
    /// `Host`.
    pub(crate) host: Option<&'a str>,
    /// `Origin`.
    pub(crate) origin: Option<&'a str>,
    /// `Sec-Fetch-Site`.
    pub(crate) site: Option<&'a str>,
    /// `Sec-Fetch-Mode`.
    pub(crate) mode: Option<&'a str>,
    /// Whether it has a token in its headers, which no browser adds on its own.
    pub(crate) has_bearer: bool,
}

/// The host names that the page accepts.
#[derive(Debug, Clone)]
pub(crate) struct Hosts(Vec<(String, Option<u16>)>);

impl Hosts {
    /// Accepts the configured names, the address, and this machine's own names if only this machine
    /// can connect.
    pub(crate) fn new(listen: SocketAddr, configured: &[String]) -> Self {
        let mut hosts: Vec<_> = configured.iter().filter_map(|host| split(host)).collect();
        let mut add = |ip: IpAddr| hosts.push((ip.to_string(), None));
        if !listen.ip().is_unspecified() {
            add(listen.ip());
        }
        if listen.ip().is_loopback() {
            add(IpAddr::from([127, 0, 0, 1]));
            add(IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]));
            hosts.push((String::from("localhost"), None));
        }
        Self(hosts)
    }

    /// Returns whether the page accepts this host name. Otherwise a foreign name could lead here,
    /// together with its site's scripts.
    pub(crate) fn allow(&self, host: Option<&str>) -> bool {
        let Some((name, port)) = host.and_then(split) else { return false };
        self.0.iter().any(|(known, on)| *known == name && on.is_none_or(|on| Some(on) == port))
    }
}

/// Returns whether a request comes from the page itself, or only reads and is not embedded in
/// another site's page.
pub(crate) fn is_from_here(head: Head<'_>) -> bool {
    if head.is_safe {
        let is_foreign = matches!(head.site, Some("cross-site" | "same-site"));
        return !is_foreign || head.mode == Some("navigate");
    }
    if head.site.is_some_and(|site| site != "same-origin") {
        return false;
    }
    match head.origin {
        Some(origin) => {
            let host = origin.split_once("://").map(|(_, host)| host).and_then(split);
            host.is_some() && host == head.host.and_then(split)
        }
        // A browser sends one of the two. A program sends its token, which no browser adds.
        None => head.site.is_some() || head.has_bearer,
    }
}

/// Returns whether an address contains credentials, which belong in a header: addresses stay in
/// logs and histories.
pub(crate) fn has_credentials(query: &str) -> bool {
    const NAMES: [&str; 7] =
        ["token", "access_token", "auth", "authorization", "password", "secret", "api_key"];
    form_urlencoded::parse(query.as_bytes())
        .any(|(name, _)| NAMES.contains(&name.to_ascii_lowercase().as_str()))
}

/// Returns what is wrong with a name that the audit could not keep.
pub(crate) fn unkept(name: &str) -> Option<String> {
    match name {
        name if name.trim().is_empty() => Some(String::from("an empty name")),
        name if name.len() > TEXT_BYTES_MAX => {
            Some(format!("a name of {} bytes; the maximum is {TEXT_BYTES_MAX}", name.len()))
        }
        name if name.contains(char::is_control) => Some(String::from("a name with a control character")),
        _ => None,
    }
}

/// Returns a name or address in lower case without brackets, and its port. A default port counts as
/// none.
fn split(host: &str) -> Option<(String, Option<u16>)> {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => {
            let (name, rest) = rest.split_once(']')?;
            (name, rest.strip_prefix(':').or(if rest.is_empty() { Some("") } else { None })?)
        }
        None if host.matches(':').count() > 1 => (host, ""),
        None => host.split_once(':').unwrap_or((host, "")),
    };
    let port = match port {
        "" | "80" | "443" => None,
        port => Some(port.parse().ok()?),
    };
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    // Normalizes different spellings of an address.
    let name = name.parse::<IpAddr>().map_or(name, |ip| ip.to_string());
    (!name.is_empty()).then_some((name, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_names_lead_here() {
        let hosts = Hosts::new("127.0.0.1:9465".parse().unwrap(), &["relay.internal:8443".into()]);
        for known in
            ["127.0.0.1:9465", "localhost:1", "[::1]:9465", "LOCALHOST", "relay.internal:8443", "localhost."]
        {
            assert!(hosts.allow(Some(known)), "{known}");
        }
        for foreign in [
            "evil.example:9465",
            "127.0.0.1.evil.example",
            "relay.internal",
            "relay.internal:80",
            "localhost.evil.example",
            "",
            "[::1",
            "[::1]x",
            "localhost:x",
            "10.0.0.1:9465",
        ] {
            assert!(!hosts.allow(Some(foreign)), "{foreign}");
        }
        assert!(!hosts.allow(None));
        let open = Hosts::new("0.0.0.0:9465".parse().unwrap(), &["relay.internal".into()]);
        assert!(open.allow(Some("relay.internal:9465")) && !open.allow(Some("localhost:9465")));
        assert!(!open.allow(Some("0.0.0.0:9465")));
    }

    fn post<'a>(origin: Option<&'a str>, site: Option<&'a str>) -> Head<'a> {
        Head { host: Some("relay.internal:8443"), origin, site, ..Head::default() }
    }

    #[test]
    fn a_change_comes_from_the_page_itself() {
        let here = Some("https://relay.internal:8443");
        assert!(is_from_here(post(here, Some("same-origin"))));
        assert!(is_from_here(post(here, None)));
        assert!(is_from_here(post(None, Some("same-origin"))));
        assert!(is_from_here(Head { has_bearer: true, ..post(None, None) }));
        for (origin, site) in [
            (Some("https://evil.example"), None),
            (Some("https://relay.internal:8444"), None),
            (Some("null"), None),
            (Some(""), None),
            (Some("https://relay.internal:8443.evil.example"), None),
            (here, Some("cross-site")),
            (here, Some("same-site")),
            (here, Some("none")),
            (Some("https://evil.example"), Some("same-origin")),
            (None, None),
        ] {
            assert!(!is_from_here(post(origin, site)), "{origin:?} {site:?}");
        }
        // A token does not turn a foreign page's request into one of this page.
        let foreign = Head { has_bearer: true, ..post(Some("https://evil.example"), Some("cross-site")) };
        assert!(!is_from_here(foreign));
    }

    #[test]
    fn a_link_may_lead_here_and_a_foreign_page_may_hold_no_part() {
        let get = |site, mode| Head { is_safe: true, site: Some(site), mode: Some(mode), ..post(None, None) };
        assert!(is_from_here(get("cross-site", "navigate")));
        assert!(is_from_here(get("same-origin", "cors")));
        assert!(is_from_here(get("none", "navigate")));
        assert!(!is_from_here(get("cross-site", "no-cors")));
        assert!(!is_from_here(get("same-site", "cors")));
        assert!(is_from_here(Head { is_safe: true, ..post(None, None) }));
    }

    #[test]
    fn an_address_carries_no_secret() {
        for secret in ["token=x", "a=1&Access_Token=x", "password", "api_key=1", "%74oken=x"] {
            assert!(has_credentials(secret), "{secret}");
        }
        for fine in ["", "topic=token", "key=password%3Dx", "page=2"] {
            assert!(!has_credentials(fine), "{fine}");
        }
    }
}
