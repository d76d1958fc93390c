//! Fingerprints of requests, from method, path, query and body. They distinguish requests with one
//! key.

use http::{HeaderMap, Method, Uri, header};
use message::Fingerprint;
use message::canonical_json::canonical;

/// Returns the fingerprint of a request. A JSON body is compared without its white space and
/// without the order of its members. Numbers are compared as they are written: as floating point,
/// different amounts would become equal. Any other body, and JSON with duplicate members, is
/// compared byte by byte.
#[must_use]
pub fn fingerprint(method: &Method, uri: &Uri, headers: &HeaderMap, body: &[u8]) -> Fingerprint {
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let route = format!("{method} {path}");
    match is_json(headers).then(|| canonical(body)).flatten() {
        Some(canonical) => Fingerprint::of_parts(&route, "json", &canonical),
        None => Fingerprint::of_parts(&route, "", body),
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind == "application/json" || kind.ends_with("+json")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(method: &str, uri: &str, kind: &str, body: &str) -> Fingerprint {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, kind.parse().unwrap());
        fingerprint(&method.parse().unwrap(), &uri.parse().unwrap(), &headers, body.as_bytes())
    }

    /// The requests are in the file that clients in other languages share.
    #[test]
    fn requests_of_the_shared_file_have_its_fingerprints() {
        let file = include_str!("../../../examples/clients/vectors.json");
        let file: serde_json::Value = serde_json::from_str(file).unwrap();
        let requests = file["requests"].as_array().unwrap();
        assert!(requests.len() > 2);
        for request in requests {
            let text = |name: &str| request[name].as_str().unwrap();
            let print = of(text("method"), text("target"), text("content_type"), text("body"));
            assert_eq!(print.to_string(), text("sha256"), "{request}");
        }
    }

    #[test]
    fn json_counts_by_its_content() {
        let json = |body| of("POST", "/orders", "application/json; charset=utf-8", body);
        let base = json(r#"{"cents":1250,"to":{"b":[1, 2.50],"a":"\u00e4"}}"#);
        for same in [
            r#" { "to" : {"a":"ä", "b":[1,2.50]}, "cents":1250 } "#,
            "{\"to\":{\"a\":\"\\u00E4\",\"b\":[1,2.50]},\n\"cents\":1250}",
        ] {
            assert_eq!(json(same), base, "{same}");
        }
        for other in [
            r#"{"cents":1251,"to":{"b":[1,2.50],"a":"ä"}}"#,
            r#"{"cents":1250,"to":{"b":[2.50,1],"a":"ä"}}"#,
            r#"{"cents":1250,"to":{"b":[1,2.50],"a":"ä"},"more":null}"#,
            r#"{"cents":"1250","to":{"b":[1,2.50],"a":"ä"}}"#,
            r#"{"cents":1250,"to":{"b":[1,2.50],"a":"ä"}"#,
        ] {
            assert_ne!(json(other), base, "{other}");
        }
    }

    #[test]
    fn numbers_that_floating_point_would_make_alike_differ() {
        let json = |body| of("POST", "/", "application/vnd.bank+json", body);
        assert_ne!(json("[9007199254740993]"), json("[9007199254740992]"));
        assert_ne!(json("[1e400]"), json("[2e400]"));
    }

    #[test]
    fn a_member_named_twice_and_what_is_no_json_count_byte_by_byte() {
        let json = |body| of("POST", "/", "application/json", body);
        assert_ne!(json(r#"{"a":1,"a":2}"#), json(r#"{"a":2}"#));
        assert_ne!(json(r#"{"a":1,"a":2}"#), json(r#"{"a":3,"a":2}"#));
        assert_ne!(json("nonsense "), json("nonsense"));
        let deep = |end: &str| format!("{}{end}{}", "[".repeat(1_000), "]".repeat(1_000));
        assert_ne!(json(&deep("1")), json(&deep("2")));
        assert_ne!(of("POST", "/", "text/plain", "{ }"), of("POST", "/", "text/plain", "{}"));
    }

    #[test]
    fn method_path_and_query_count() {
        let of = |method, uri| of(method, uri, "application/json", "{}");
        let base = of("POST", "/orders?a=1");
        assert_eq!(base, of("POST", "/orders?a=1"));
        for other in [("PUT", "/orders?a=1"), ("POST", "/orders"), ("POST", "/order?sa=1")] {
            assert_ne!(base, of(other.0, other.1), "{other:?}");
        }
    }
}
