//! The address of an endpoint, and the hosts that messages may name. Pure.

use http::Uri;
use url::Url;

/// An address that requests are sent to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    /// The whole address. Its path and query may hold secrets, so it is never shown.
    pub(super) uri: Uri,
    /// Scheme, host and port.
    pub(super) name: String,
    host: String,
    port: u16,
}

impl Target {
    /// Reads a URL.
    ///
    /// # Errors
    /// The problem, without the URL.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut url = Url::parse(text)
            .map_err(|error| format!("is no URL: {error}; write https://host[:port]/path"))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(format!("has the scheme {:?}; write https://host[:port]/path", url.scheme()));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(String::from("contains credentials; sign requests with secret_files instead"));
        }
        url.set_fragment(None);
        let (Some(host), Some(port)) = (url.host_str().map(str::to_owned), url.port_or_known_default())
        else {
            return Err(String::from("has no host; write https://host[:port]/path"));
        };
        let uri = url
            .as_str()
            .parse()
            .map_err(|error| format!("is no URL: {error}; write https://host[:port]/path"))?;
        Ok(Self { uri, name: url.origin().ascii_serialization(), host, port })
    }

    /// Returns the host; an IPv6 address is in brackets.
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    pub(super) fn is_encrypted(&self) -> bool {
        self.uri.scheme() == Some(&http::uri::Scheme::HTTPS)
    }
}

/// Hosts that messages may name, with their port: one name, or all names below one (`*.`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HostPattern {
    host: String,
    port: Option<u16>,
    below: bool,
}

impl HostPattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// The problem.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a host; write hooks.example.com, *.example.com or host:port");
        let below = text.starts_with("*.");
        let rest = text.strip_prefix("*.").unwrap_or(text);
        let url = Url::parse(&format!("none://{rest}")).map_err(|_| wrong())?;
        // With a special scheme, so that the host is normalised like that of an endpoint.
        let normal = Url::parse(&format!("https://{rest}")).map_err(|_| wrong())?;
        let host = normal.host_str().unwrap_or_default().to_owned();
        let is_alone = url.path().is_empty()
            && url.query().is_none()
            && url.fragment().is_none()
            && url.username().is_empty()
            && url.password().is_none();
        if host.is_empty() || !is_alone || rest.contains('*') || (below && !host.contains('.')) {
            return Err(wrong());
        }
        Ok(Self { host, port: url.port(), below })
    }

    /// Returns how exact the pattern is: a name before names below one, and then the longer one.
    pub(super) fn exactness(&self) -> (bool, usize) {
        (!self.below, self.host.len())
    }

    /// Returns whether the pattern allows a target.
    pub(super) fn allows(&self, target: &Target) -> bool {
        let standard = if target.is_encrypted() { 443 } else { 80 };
        let is_host = match target.host.strip_suffix(&self.host) {
            Some("") => !self.below,
            Some(front) => self.below && front.ends_with('.') && front.len() > 1,
            None => false,
        };
        is_host && target.port == self.port.unwrap_or(standard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(url: &str) -> Target {
        Target::parse(url).unwrap()
    }

    #[test]
    fn a_target_shows_neither_path_nor_query() {
        let target = target("https://Hooks.Example.com/services/T0/s3cret?token=s3cret#top");
        assert_eq!(
            (target.name.as_str(), target.host(), target.port),
            ("https://hooks.example.com", "hooks.example.com", 443)
        );
        assert_eq!(target.uri, "https://hooks.example.com/services/T0/s3cret?token=s3cret");
        let six = self::target("http://[::1]:8080");
        assert_eq!((six.name.as_str(), six.host(), six.port), ("http://[::1]:8080", "[::1]", 8080));
        for (url, problem) in [
            ("s3cret", "relative URL"),
            ("file:///s3cret", "has the scheme \"file\""),
            ("https://s3cret@host", "contains credentials"),
            ("https://", "empty host"),
        ] {
            let error = Target::parse(url).unwrap_err();
            assert!(error.contains(problem) && !error.contains("s3cret"), "{url}: {error}");
        }
    }

    #[test]
    fn a_pattern_allows_its_hosts_and_ports_only() {
        for (pattern, url, allowed) in [
            ("hooks.example.com", "https://hooks.example.com/x", true),
            ("HOOKS.example.com", "https://hooks.EXAMPLE.com/x", true),
            ("hooks.example.com", "http://hooks.example.com", true),
            ("hooks.example.com", "https://hooks.example.com:8443", false),
            ("hooks.example.com", "https://hooks.example.com.evil.test", false),
            ("hooks.example.com", "https://evilhooks.example.com", false),
            ("hooks.example.com", "https://hooks.example.com@evil.test", false),
            ("hooks.example.com:8443", "https://hooks.example.com:8443/x", true),
            ("hooks.example.com:8443", "https://hooks.example.com/x", false),
            ("*.example.com", "https://a.b.example.com", true),
            ("*.example.com", "https://example.com", false),
            ("*.example.com", "https://evilexample.com", false),
            ("127.0.0.1:80", "http://127.1", true),
            ("[::1]:80", "http://[0:0::1]", true),
        ] {
            let allows =
                Target::parse(url).is_ok_and(|target| HostPattern::parse(pattern).unwrap().allows(&target));
            assert_eq!(allows, allowed, "{pattern} {url}");
        }
        for pattern in [
            "",
            "*",
            "*.com",
            "*.*.example.com",
            "a/b",
            "https://a.example",
            "a.example/",
            "u@a.example",
            "a b",
        ] {
            assert!(HostPattern::parse(pattern).is_err(), "{pattern}");
        }
    }
}
