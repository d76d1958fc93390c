//! Finds the secrets of a configuration, and keeps them out of everything that is printed.

use std::ops::Range;

use operate::redact::{MASK, url};

use super::tree::{Node, Origin, Value};

/// Returns whether the value of this setting is a secret as a whole.
pub(crate) fn is_secret(path: &[&str]) -> bool {
    match path {
        // Any property of librdkafka may be a secret.
        [.., "kafka", "properties", _] => true,
        ["page", "proxy_login", "secret"] => true,
        ["otlp", "headers", ..] => true,
        [.., last] => {
            matches!(*last, "password" | "client_secret" | "secret_access_key" | "session_token" | "token")
        }
        [] => false,
    }
}

/// Returns whether the value of this setting is a URL that may hold a password.
pub(crate) fn is_url(path: &[&str]) -> bool {
    let names = ["url", "endpoint", "traces_endpoint", "metrics_endpoint", "token_url"];
    path.last().is_some_and(|last| names.contains(last))
}

/// Returns whether a text is the URL of an HTTP endpoint, whose path is often a secret. It is
/// recognised at any setting below `http`, even a misspelt one.
fn is_endpoint(path: &[&str], text: &str) -> bool {
    path.contains(&"http") && text.contains("://")
}

/// Returns the URL of an HTTP endpoint without its user, path and query.
fn endpoint(text: &str) -> String {
    let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
    let end = rest.find(['/', '?', '#', '\\']).unwrap_or(rest.len());
    let user_end = rest[..end].rfind('@').map_or(0, |at| at + 1);
    let (user, host) = (if user_end > 0 { "***@" } else { "" }, &rest[user_end..end]);
    let path = if rest[end..].len() > 1 { "/***" } else { &rest[end..] };
    format!("{scheme}://{user}{host}{path}")
}

/// Returns the value of a setting without its secrets.
pub(crate) fn text(path: &[&str], text: &str) -> String {
    match () {
        () if is_secret(path) => MASK.to_owned(),
        () if is_endpoint(path, text) => endpoint(text),
        () if is_url(path) => url(text),
        () => text.to_owned(),
    }
}

/// Returns the file's text with every secret and every comment overwritten: a comment may be a
/// setting with its old password. The length stays the same, so that places stay valid.
pub(crate) fn source(text: &str, tree: &Node) -> String {
    let mut bytes = text.as_bytes().to_vec();
    hide(tree, &mut Vec::new(), &mut bytes);
    let mut texts = Vec::new();
    spans_of_texts(tree, &mut texts);
    texts.sort_unstable_by_key(|text| text.start);
    hide_comments(&texts, &mut bytes);
    String::from_utf8(bytes).unwrap_or_default()
}

fn spans_of_texts(node: &Node, spans: &mut Vec<Range<usize>>) {
    match (&node.value, &node.origin) {
        (Value::Table(table), _) => table.values().for_each(|entry| spans_of_texts(&entry.node, spans)),
        (Value::List(list), _) => list.iter().for_each(|item| spans_of_texts(item, spans)),
        (Value::Text(_), Origin::File(span)) => spans.push(span.clone()),
        _ => {}
    }
}

/// Overwrites from every number sign outside a text to the end of its line. The texts are in the
/// order of their places, so that each byte is read once however many there are.
fn hide_comments(texts: &[Range<usize>], bytes: &mut [u8]) {
    let mut texts = texts.iter().peekable();
    let mut at = 0;
    while at < bytes.len() {
        while texts.next_if(|text| text.end <= at).is_some() {}
        let text = texts.peek().filter(|text| text.contains(&at));
        at = match (text, bytes[at]) {
            (Some(text), _) => text.end,
            (None, b'#') => {
                let line = bytes[at..].iter().position(|byte| *byte == b'\n');
                let end = line.map_or(bytes.len(), |length| at + length);
                overwrite(&mut bytes[at + 1..end]);
                end
            }
            (None, _) => at + 1,
        };
    }
}

fn hide<'a>(node: &'a Node, path: &mut Vec<&'a str>, bytes: &mut [u8]) {
    match &node.value {
        Value::Table(table) => {
            for (key, entry) in table {
                path.push(key);
                hide(&entry.node, path, bytes);
                path.pop();
            }
        }
        Value::List(list) => list.iter().for_each(|item| hide(item, path, bytes)),
        Value::Text(text) if is_secret(path) || may_hold_secret(path, text) => {
            if let Origin::File(span) = &node.origin {
                overwrite(bytes.get_mut(span.clone()).unwrap_or_default());
            }
        }
        _ => {}
    }
}

/// Returns whether a text at any setting, even a misspelt one, may hold a password.
fn may_hold_secret(path: &[&str], text: &str) -> bool {
    let is_called_so = |name: &&str| {
        let name = name.to_lowercase();
        ["pass", "pwd", "secret", "token", "key"].iter().any(|part| name.contains(part))
            && !name.ends_with("_file")
    };
    // A URL where a file belongs, or a file where a URL belongs.
    let has_user = text.contains("://") && text.contains('@');
    let hides_path = is_endpoint(path, text) && endpoint(text) != text;
    hides_path || is_url(path) && url(text) != text || has_user || path.last().is_some_and(is_called_so)
}

/// Like [`source`], for a text that is not TOML: overwrites everything after an equals sign or a
/// number sign.
pub(crate) fn broken_source(text: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for line in bytes.split_mut(|byte| *byte == b'\n') {
        // A line without an equals sign may continue a multi-line text.
        let first = line.iter().find(|byte| !byte.is_ascii_whitespace());
        let is_setting = line.contains(&b'=') || matches!(first, Some(b'[' | b'#'));
        let end = line.iter().position(|byte| matches!(byte, b'=' | b'#')).map_or(line.len(), |at| at + 1);
        let start = if is_setting { end } else { 0 };
        overwrite(&mut line[start..]);
    }
    String::from_utf8(bytes).unwrap_or_default()
}

fn overwrite(bytes: &mut [u8]) {
    for byte in bytes {
        if !byte.is_ascii_whitespace() && !matches!(byte, b'"' | b'\'') {
            *byte = b'*';
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a configuration of thousands of pipelines is read at once. Oracle: its texts and
    /// comments, in every order. With a search of all texts for each byte it takes minutes.
    #[test]
    fn many_texts_cost_one_walk() {
        let line = "[[pipeline]]\nname = 'a#b' # s3cret\n";
        let text = line.repeat(20_000);
        let masked = source(&text, &Node::parse(&text).ok().unwrap());
        assert_eq!(masked.len(), text.len());
        assert!(!masked.contains("s3cr") && masked.matches("'a#b'").count() == 20_000);
        let crossed = "b = 'x#1' # s3cret\na = 'y#2' # s3cret\n";
        let masked = source(crossed, &Node::parse(crossed).ok().unwrap());
        assert!(masked.contains("'x#1'") && masked.contains("'y#2'") && !masked.contains("s3cr"), "{masked}");
    }

    #[test]
    fn the_path_of_an_http_endpoint_is_not_shown() {
        let of_topic = ["pipeline", "http", "endpoints", "orders.v1", "url"];
        let misspelt = ["pipeline", "http", "ur1"];
        for path in [&["pipeline", "http", "url"][..], &of_topic, &misspelt] {
            for (given, shown) in [
                ("https://hooks.example.com/services/T0/s3cret", "https://hooks.example.com/***"),
                ("https://hooks.example.com:8443/s3cret?a=s3cret", "https://hooks.example.com:8443/***"),
                ("https://hooks.example.com?s3cret", "https://hooks.example.com/***"),
                ("https://hooks.example.com#s3cret", "https://hooks.example.com/***"),
                ("https://s3cret@h/s3cret@x", "https://***@h/***"),
                ("https://s3cret:s3@cret@[::1]:1/", "https://***@[::1]:1/"),
                ("HTTPS://h\\s3cret", "HTTPS://h/***"),
                ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
            ] {
                assert_eq!(text(path, given), shown);
            }
        }
        assert_eq!(text(&["database", "url"], "postgres://u@h/d"), "postgres://u@h/d");
        let given = "[pipeline]\nhttp.url = 'https://h.example/s3cret'\nhttp.ur1 = 'https://h.example/s3cret'\n\
                     [pipeline.http.endpoints.'a.b']\nurl = \"https://h.example/s3cret\"\nother = 'x'\n";
        let masked = source(given, &Node::parse(given).ok().unwrap());
        assert_eq!(masked.len(), given.len());
        assert!(!masked.contains("s3cret") && masked.contains("'x'") && masked.contains("'a.b'"), "{masked}");
    }

    #[test]
    fn the_excerpt_holds_no_secret_and_keeps_its_places() {
        let text = "[[pipeline]]\nname='ä'\ndatabase.url = 'postgres://u:s3cret@h/d'\n\
                    kafka.sasl = { username = 'me', password = \"s3crét\" }\n\
                    kafka.properties = { 'ssl.key.password' = 's3cret' }\n\
                    other.sasl.oauth = { client_secret = 's3cret', client_id = 'me' }\n\
                    ur1 = 'postgres://u:s3cret@h/d'\npasswrd = 's3cret'\n\
                    database.url_file = 'postgres://u:s3cret@h/d'\n";
        let masked = source(text, &Node::parse(text).ok().unwrap());
        assert_eq!(masked.len(), text.len());
        assert!(!masked.contains("s3cr") && masked.contains("'me'") && masked.contains("'ä'"), "{masked}");
        let commented =
            "# password = 's3cret'\nname = 'a#b' # s3cret\n[x] # s3cret\nlist = [ 'y', # s3cret\n 'z#z' ]\n";
        let masked = source(commented, &Node::parse(commented).ok().unwrap());
        assert_eq!(masked.len(), commented.len());
        assert!(!masked.contains("s3cr") && masked.contains("'a#b'") && masked.contains("'z#z'"), "{masked}");
        assert!(!broken_source(commented).contains("s3cr"));
        let multi = broken_source("password = '''\n s3cret#tail\n'''\nlist = [\n 'Bearer s3cret#x',\n]\n");
        assert!(!multi.contains("s3cr") && multi.contains("password"), "{multi}");
        let broken = broken_source(&format!("{text}oops = = \nkey = '''\n s3cret ü\n'''\n"));
        assert!(!broken.contains("s3cr") && broken.contains("[[pipeline]]"), "{broken}");
    }
}
