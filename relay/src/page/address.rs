//! Addresses within the page: every part that comes from outside is percent-encoded.

use std::fmt::Write as _;

/// A path with its query. Values that are empty are left out.
pub(crate) fn with_query(path: &str, pairs: &[(&str, &str)]) -> String {
    let mut address = path.to_owned();
    let given = pairs.iter().filter(|(_, value)| !value.is_empty());
    for (index, (name, value)) in given.enumerate() {
        address.push(if index == 0 { '?' } else { '&' });
        address.push_str(name);
        address.push('=');
        encode(value, &mut address);
    }
    address
}

fn encode(text: &str, out: &mut String) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_value_ends_its_parameter() {
        let address = with_query("/dead", &[("topic", "a&b=\"c\" <d>#/ä"), ("key", ""), ("page", "2")]);
        assert_eq!(address, "/dead?topic=a%26b%3D%22c%22%20%3Cd%3E%23%2F%C3%A4&page=2");
        assert_eq!(with_query("/dead", &[("key", "")]), "/dead");
    }
}
