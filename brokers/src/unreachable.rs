//! Advice about a broker that cannot be reached.

/// Returns the remedy, chosen by the wording of the client library, which has no error codes for
/// these cases. `setting` names the address.
pub(crate) fn advice(because: &str, setting: &str) -> String {
    advice_about("broker", because, setting)
}

/// Returns the remedy for a server of this kind.
pub(crate) fn advice_about(server: &str, because: &str, setting: &str) -> String {
    let because = because.to_ascii_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| because.contains(word));
    if says(&["refused"]) {
        return format!("nothing listens there: start the {server}, or correct host and port in {setting}");
    }
    if says(&["resolve", "lookup", "name or service", "dns"]) {
        return format!("correct the host in {setting}, or the name service of this machine");
    }
    format!("check the {server}, {setting}, and the network in between")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_decides_what_to_do() {
        for (because, part) in [
            (
                "127.0.0.1:1/bootstrap: Connect to ipv4#127.0.0.1:1 failed: Connection refused",
                "start the broker",
            ),
            ("Failed to resolve 'nowhere:9092': Name or service not known", "correct the host"),
            ("failed to lookup address information: Name or service not known", "correct the host"),
            ("io error: dispatch failure: dns error", "correct the host"),
            ("no answer", "network in between"),
        ] {
            let text = advice(because, "kafka.bootstrap_servers");
            assert!(text.contains(part) && text.contains("kafka.bootstrap_servers"), "{because}: {text}");
        }
    }
}
