//! Which requests go through a proxy of the environment.

use message::loopback::is_loopback;
use ureq::Proxy;
use url::Url;

/// Returns the proxy that requests to this address take from the environment (`HTTPS_PROXY` and its
/// like). A plaintext request, or one that stays on this machine, takes none: a proxy elsewhere
/// would read its secret.
pub(crate) fn for_requests_to(url: &Url) -> Option<Proxy> {
    let stays = url.host_str().is_none_or(is_loopback);
    if url.scheme() != "https" || stays { None } else { Proxy::try_from_env() }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::process::Command;

    use super::*;

    /// Runs a test of this crate in a process whose environment names a proxy that refuses every
    /// connection.
    pub(crate) fn without_the_proxy(test: &str) {
        let mut run = Command::new(std::env::current_exe().unwrap());
        for name in ["ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY"] {
            run.env(name, "http://127.0.0.1:1").env(name.to_lowercase(), "http://127.0.0.1:1");
        }
        let run = run.env_remove("NO_PROXY").env_remove("no_proxy").args(["--exact", test]).output().unwrap();
        let text = String::from_utf8_lossy(&run.stdout);
        assert!(run.status.success() && text.contains("1 passed"), "{text}");
    }

    #[test]
    fn only_encrypted_requests_to_other_machines_take_a_proxy() {
        let is_set = Proxy::try_from_env().is_some();
        for (url, may_take_one) in [
            ("https://issuer.example/token", true),
            ("https://127.0.0.1/token", false),
            ("https://[::1]:8443/token", false),
            ("https://localhost/token", false),
            ("http://127.0.0.1/token", false),
            ("http://rabbit.internal:15672", false),
        ] {
            assert_eq!(for_requests_to(&Url::parse(url).unwrap()).is_some(), may_take_one && is_set, "{url}");
        }
    }

    #[test]
    fn a_proxy_of_the_environment_is_taken_where_it_may() {
        without_the_proxy("proxy::tests::only_encrypted_requests_to_other_machines_take_a_proxy");
    }
}
