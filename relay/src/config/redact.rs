//! Finds the secrets of a configuration, and keeps them out of everything that is printed.

use super::tree::{Node, Origin, Value};

/// The text that replaces a secret.
const MASK: &str = "***";

/// Returns whether the value of this setting is a secret as a whole.
pub(crate) fn is_secret(path: &[&str]) -> bool {
    match path {
        // Any property of librdkafka may be a secret.
        [.., "kafka", "properties", _] => true,
        ["otlp", "headers", ..] => true,
        [.., last] => matches!(*last, "password" | "secret_access_key" | "token"),
        [] => false,
    }
}

/// Returns whether the value of this setting is a URL that may hold a password.
pub(crate) fn is_url(path: &[&str]) -> bool {
    matches!(path.last(), Some(&("url" | "endpoint" | "traces_endpoint" | "metrics_endpoint")))
}

/// Parameters of URLs whose values are not secrets. Any other value may be one: a name can be
/// written in several ways, or be unknown here.
const SHOWN: [&str; 20] = [
    "application_name",
    "channel_binding",
    "connect_timeout",
    "dbname",
    "host",
    "hostaddr",
    "mode",
    "port",
    "ssl-ca",
    "ssl-cert",
    "ssl-key",
    "ssl-mode",
    "ssl-root-cert",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslrootcert",
    "statement-cache-capacity",
    "target_session_attrs",
    "user",
];

/// Returns a URL without the password in its authority and without the values of parameters that
/// may be secrets. Where unescaped text is ambiguous, hides too much rather than too little.
pub(crate) fn url(text: &str) -> String {
    // Not a URL: it may be `user:password@host`, or keys and values with a password among them.
    if !text.contains("://") && !text.starts_with("sqlite:") && text.contains(['@', '=']) {
        return MASK.to_owned();
    }
    let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
    let (mut shown, rest) = match rest.rsplit_once('@') {
        Some((user, host)) if user.contains(':') => {
            let name = user.split(':').next().unwrap_or_default();
            (format!("{scheme}://{name}:{MASK}@"), host)
        }
        _ => (String::new(), text),
    };
    let (head, query) = rest.split_once('?').map_or((rest, None), |(head, query)| (head, Some(query)));
    shown.push_str(head);
    for (index, pair) in query.into_iter().flat_map(|query| query.split('&')).enumerate() {
        shown.push(if index == 0 { '?' } else { '&' });
        match pair.split_once('=') {
            Some((name, _)) if SHOWN.contains(&name) => shown.push_str(pair),
            Some((name, _)) => shown.push_str(&format!("{name}={MASK}")),
            None => shown.push_str(MASK),
        }
    }
    shown
}

/// Returns whether a URL holds a password: after its user, or in a parameter.
pub(crate) fn holds_password(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let user = authority.rsplit_once('@').map_or("", |(user, _)| user);
    let of_user = user.split_once(':').is_some_and(|(_, password)| !password.is_empty());
    let is_password = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap_or_default();
        let name = name.to_lowercase();
        // An escape can spell any name.
        let is_called_so = ["pass", "pwd", "secret", "token", "%"].iter().any(|part| name.contains(part));
        is_called_so && !name.ends_with("file") && !value.is_empty()
    };
    let (_, query) = rest.split_once('?').unwrap_or_default();
    of_user || query.split('&').any(is_password)
}

/// Returns the value of a setting without its secrets.
pub(crate) fn text(path: &[&str], text: &str) -> String {
    match () {
        () if is_secret(path) => MASK.to_owned(),
        () if is_url(path) => url(text),
        () => text.to_owned(),
    }
}

/// Returns the file's text with every secret overwritten. The length stays the same, so that places
/// stay valid.
pub(crate) fn source(text: &str, tree: &Node) -> String {
    let mut bytes = text.as_bytes().to_vec();
    hide(tree, &mut Vec::new(), &mut bytes);
    String::from_utf8(bytes).unwrap_or_default()
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
    is_url(path) && url(text) != text || has_user || path.last().is_some_and(is_called_so)
}

/// Like [`source`], for a text that is not TOML: overwrites everything after an equals sign.
pub(crate) fn broken_source(text: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for line in bytes.split_mut(|byte| *byte == b'\n') {
        // A line without an equals sign may continue a multi-line text.
        let header = line.first() == Some(&b'[') || line.first() == Some(&b'#');
        let start = match line.iter().position(|byte| *byte == b'=') {
            Some(at) => at + 1,
            None if header => line.len(),
            None => 0,
        };
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

    #[test]
    fn a_password_in_a_url_is_found() {
        for url in [
            "postgres://u:s3cret@h/d",
            "billing=postgres://u:s3@cret@h/d",
            "amqps://u:s3cret@[::1]:5671/%2f",
            "postgres://h/d?application_name=a&password=s3cret",
            "postgres://h/d?p%61ssword=s3cret",
            "postgres://h/d?sslpassword=s3cret",
        ] {
            assert!(holds_password(url), "{url}");
        }
        for url in [
            "postgres://u@h:5432/d",
            "postgres://u:@h/d",
            "postgres://h:5432/d?application_name=me@home:1",
            "postgres://u@h/d?sslkey=/etc/key&passfile=/etc/p&password=",
            "sqlite:orders.db?mode=rwc",
            "",
        ] {
            assert!(!holds_password(url), "{url}");
        }
    }

    #[test]
    fn no_password_stays_in_a_url() {
        for (given, shown) in [
            ("postgres://u:s3cret@h:1/d?sslmode=require", "postgres://u:***@h:1/d?sslmode=require"),
            ("postgres://u:p@s3cret@h/d", "postgres://u:***@h/d"),
            ("postgres://h/d?user=u&password=s3cret", "postgres://h/d?user=u&password=***"),
            ("postgres://u@h/d", "postgres://u@h/d"),
            ("postgres://u:s3?cret@h/d", "postgres://u:***@h/d"),
            ("postgres://u:s3?cr?et@h/d?a=b&password=p", "postgres://u:***@h/d?a=***&password=***"),
            (
                "postgres://h/d?sslmode=require&ssl%70assword=p&token=t&x",
                "postgres://h/d?sslmode=require&ssl%70assword=***&token=***&***",
            ),
            ("postgres://u:@n4h?h@h/d", "postgres://u:***@h/d"),
            ("postgres://h/d?password=s3@cret", "postgres://h/d?password=***"),
            ("postgres://h/d?application_name=a", "postgres://h/d?application_name=a"),
            ("sqlite:///data/o.db?mode=rwc", "sqlite:///data/o.db?mode=rwc"),
            ("sqlite:o.db?mode=rwc", "sqlite:o.db?mode=rwc"),
            ("host=h user=u password=s3cret", "***"),
            ("u:s3cret@h", "***"),
        ] {
            assert_eq!(url(given), shown);
        }
    }

    #[test]
    fn the_excerpt_holds_no_secret_and_keeps_its_places() {
        let text = "[[pipeline]]\nname='ä'\ndatabase.url = 'postgres://u:s3cret@h/d'\n\
                    kafka.sasl = { username = 'me', password = \"s3crét\" }\n\
                    kafka.properties = { 'ssl.key.password' = 's3cret' }\n\
                    ur1 = 'postgres://u:s3cret@h/d'\npasswrd = 's3cret'\n\
                    database.url_file = 'postgres://u:s3cret@h/d'\n";
        let masked = source(text, &Node::parse(text).ok().unwrap());
        assert_eq!(masked.len(), text.len());
        assert!(!masked.contains("s3cr") && masked.contains("'me'") && masked.contains("'ä'"), "{masked}");
        let broken = broken_source(&format!("{text}oops = = \nkey = '''\n s3cret ü\n'''\n"));
        assert!(!broken.contains("s3cr") && broken.contains("[[pipeline]]"), "{broken}");
    }
}
