//! Keeps the secrets of URLs out of everything that is printed.

/// The text that replaces a secret.
pub const MASK: &str = "***";

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
pub fn url(text: &str) -> String {
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
pub fn holds_password(url: &str) -> bool {
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
}
