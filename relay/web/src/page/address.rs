//! Addresses within the page. Every part from outside is percent-encoded.

use form_urlencoded::Serializer;

/// Returns a path with its query. Omits empty values.
pub(crate) fn with_query(path: &str, pairs: &[(&str, &str)]) -> String {
    let given = pairs.iter().filter(|(_, value)| !value.is_empty());
    let query = Serializer::new(String::new()).extend_pairs(given).finish();
    if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_value_ends_its_parameter() {
        let address = with_query("/dead", &[("topic", "a&b=\"c\" <d>#/ä"), ("key", ""), ("page", "2")]);
        assert_eq!(address, "/dead?topic=a%26b%3D%22c%22+%3Cd%3E%23%2F%C3%A4&page=2");
        assert_eq!(with_query("/dead", &[("key", "")]), "/dead");
    }
}
