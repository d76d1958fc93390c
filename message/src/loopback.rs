//! Recognises addresses of this machine.

use std::net::IpAddr;

/// Whether traffic to this host stays on this machine: `localhost`, or an address such as
/// `127.0.0.1` or `[::1]`. Any other name counts as another machine, because it may resolve to one.
///
/// ```
/// use message::loopback::is_loopback;
/// assert!(is_loopback("127.0.0.1") && is_loopback("[::1]") && is_loopback("localhost"));
/// assert!(!is_loopback("localhost.example.com") && !is_loopback("db.internal"));
/// ```
#[must_use]
pub fn is_loopback(host: &str) -> bool {
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_loopback() {
        for host in ["localhost", "LocalHost", "127.0.0.1", "127.8.9.1", "::1", "[::1]", "::ffff:127.0.0.1"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in
            ["", "kafka-1", "localhost.evil.example", "127.0.0.1.evil.example", "0.0.0.0", "10.0.0.1", "::"]
        {
            assert!(!is_loopback(host), "{host}");
        }
    }
}
