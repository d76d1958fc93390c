//! Addresses within the page. Every part from outside is percent-encoded.

use form_urlencoded::Serializer;

use super::context;

/// Returns the address of a path of the page: below the prefix at which the page is mounted.
pub(crate) fn to(path: &str) -> String {
    format!("{}{path}", context::prefix())
}

/// Returns the address of a path with its query. Omits empty values.
pub(crate) fn with_query(path: &str, pairs: &[(&str, &str)]) -> String {
    let given = pairs.iter().filter(|(_, value)| !value.is_empty());
    let query = Serializer::new(String::new()).extend_pairs(given).finish();
    let path = to(path);
    if query.is_empty() { path } else { format!("{path}?{query}") }
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

    #[test]
    fn every_address_is_below_the_prefix() {
        let addresses = async { (to("/"), with_query("/dead", &[("key", "/a")])) };
        let below = context::below("/ops/outbox".into(), addresses);
        let (home, dead) = futures_util::FutureExt::now_or_never(below).unwrap();
        assert_eq!(home, "/ops/outbox/");
        assert_eq!(dead, "/ops/outbox/dead?key=%2Fa");
    }
}
