//! PostgreSQL URLs. The client library ignores parameters that it does not know and logs them with
//! their values, some of which are secrets. So only parameters that it honours reach it.

use message::host_list;

use crate::connect::InvalidUrl;
use crate::postgres::url_parameters::{Verdict, verdict};

/// Maximum length of a name that an error repeats. A longer text is probably not a name.
const NAME_BYTES_MAX: usize = 64;

/// The port of a host without one.
const PORT_DEFAULT: u16 = 5432;

/// The problem of a list of hosts in a parameter.
const IN_A_PARAMETER: &str = "there are several hosts, so write all of them and their ports before the database: \
     postgres://user@h1:5432,h2:5433/database";

/// Returns the URL of each host: the URL itself if it names one.
///
/// # Errors
/// [`InvalidUrl::Form`] where part of a password would be read as a host, [`InvalidUrl::Hosts`] for
/// a list that cannot be used. None contains a value.
pub(super) fn each_host(url: &str) -> Result<Vec<String>, InvalidUrl> {
    if let Some(problem) = slip(url) {
        return Err(InvalidUrl::Form { problem });
    }
    let (place, query) = url.split_once('?').unwrap_or((url, ""));
    let hosts = host_list::hosts_of(place);
    if hosts.contains(',')
        && pairs(query).any(|pair| matches!(pair.name.as_str(), "host" | "hostaddr" | "port"))
    {
        return Err(in_vain(IN_A_PARAMETER));
    }
    host_list::urls_of(url, PORT_DEFAULT).map_err(|problem| InvalidUrl::Hosts { problem })
}

/// Returns whether `target_session_attrs` is `primary`.
pub(super) fn wants_primary(url: &str) -> bool {
    let (_, query) = url.split_once('?').unwrap_or_default();
    let last = pairs(query).filter(|pair| pair.name == "target_session_attrs").last();
    last.is_some_and(|pair| pair.value == "primary")
}

fn in_vain(problem: &str) -> InvalidUrl {
    InvalidUrl::Hosts { problem: problem.to_owned() }
}

/// Returns the URL of one host without the parameters whose meaning holds anyway.
///
/// # Errors
/// [`InvalidUrl::Form`] where part of a password would be read as something else,
/// [`InvalidUrl::Hosts`] for a list of hosts, [`InvalidUrl::Parameter`] for a parameter that cannot
/// be honoured. None contains a value.
pub(super) fn accepted(url: &str) -> Result<String, InvalidUrl> {
    if let Some(problem) = slip(url) {
        return Err(InvalidUrl::Form { problem });
    }
    let (place, query) = url.split_once('?').unwrap_or((url, ""));
    if has_many(host_list::hosts_of(place)) {
        return Err(in_vain("there are several, and this takes the URL of one host"));
    }
    let pairs: Vec<Pair<'_>> = pairs(query).collect();
    let is_mode = |pair: &&Pair<'_>| matches!(pair.name.as_str(), "sslmode" | "ssl-mode");
    // The client library takes the last one, or the environment's. Without any, a server on another
    // machine must prove its identity.
    let mode = pairs.iter().rev().find(is_mode).map(|pair| pair.value.clone());
    let mode = mode.or_else(|| std::env::var("PGSSLMODE").ok());
    let is_verified = mode.is_none_or(|mode| mode == "verify-full");
    let mut left = Vec::new();
    for pair in &pairs {
        match verdict(&pair.name, &pair.value, is_verified) {
            _ if matches!(pair.name.as_str(), "host" | "hostaddr" | "port") && has_many(&pair.value) => {
                return Err(in_vain(IN_A_PARAMETER));
            }
            Verdict::Honoured => left.push(pair.text),
            Verdict::Kept => {}
            Verdict::Refused(remedy) => {
                // An `@` after the `?` ends a password: this is part of that password, not a name.
                let name = if query.contains('@') {
                    shown("")
                } else {
                    format!("{}{}", shown(&pair.name), shown_mode(pair))
                };
                return Err(InvalidUrl::Parameter { name, remedy });
            }
        }
    }
    let names_host = pairs.iter().any(|pair| matches!(pair.name.as_str(), "host" | "hostaddr"));
    let mut accepted = with_host(place, names_host)?;
    if !left.is_empty() {
        accepted.push('?');
        accepted.push_str(&left.join("&"));
    }
    Ok(accepted)
}

/// Returns the parameters.
fn pairs(query: &str) -> impl Iterator<Item = Pair<'_>> {
    query.split('&').filter(|text| !text.is_empty()).map(Pair::read)
}

/// Returns the authority with a host added if it has a user but no host: the client library does
/// not parse a URL without a host. A parameter then names the host, as in the URLs of Cloud SQL.
fn with_host(place: &str, names_host: bool) -> Result<String, InvalidUrl> {
    let host = host_list::hosts_of(place);
    let is_missing = place.contains('@') && (host.is_empty() || host.starts_with(':'));
    match place.rsplit_once('@') {
        Some((user, rest)) if is_missing && names_host => Ok(format!("{user}@localhost{rest}")),
        Some(_) if is_missing => Err(InvalidUrl::Form {
            problem: "there is no host after the @, and no parameter host that names a server or the \
                      directory of its socket",
        }),
        _ => Ok(place.to_owned()),
    }
}

/// Returns whether a text has a percent sign that is not part of an escape, or escapes that are not
/// UTF-8.
fn has_stray_percent(text: &str) -> bool {
    let is_escape = |rest: &str| rest.len() >= 2 && rest.bytes().take(2).all(|digit| hex(digit).is_some());
    !text.split('%').skip(1).all(is_escape) || decoded(text).contains(char::REPLACEMENT_CHARACTER)
}

/// Returns a mistake that would turn part of a password into a host or a database name, which are
/// logged.
fn slip(url: &str) -> Option<&'static str> {
    let (_, rest) = url.split_once(':')?;
    let place = rest.split('?').next().unwrap_or_default();
    let (authority, database) = match place.strip_prefix("//") {
        Some(place) => place.split_once('/').unwrap_or((place, "")),
        None => ("", place.trim_start_matches('/')),
    };
    match () {
        () if url.contains('#') => Some("it has a #"),
        () if authority.is_empty() && database.contains('@') => Some("the host does not follow //"),
        () if authority.matches('@').count() > 1 => Some("there is more than one @ before the host"),
        () if database.contains('@') => Some("there is an @ after the first / that follows the host"),
        () if database.contains(':') => Some("there is a : after the first / that follows the host"),
        () if has_stray_percent(place) => {
            Some("it has a % that does not begin an escape such as %40; write % as %25")
        }
        () => None,
    }
}

fn has_many(hosts: &str) -> bool {
    hosts.contains(',') || hosts.to_ascii_lowercase().contains("%2c")
}

/// One parameter.
struct Pair<'a> {
    name: String,
    value: String,
    text: &'a str,
}

impl<'a> Pair<'a> {
    fn read(text: &'a str) -> Self {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        Self { name: decoded(name), value: decoded(value), text }
    }
}

/// Decodes form encoding.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let escaped = match (first, after) {
            (b'%', [high, low, ..]) => hex(*high).zip(hex(*low)).map(|(high, low)| high << 4 | low),
            _ => None,
        };
        bytes.push(match (escaped, first) {
            (Some(byte), _) => byte,
            (None, b'+') => b' ',
            (None, byte) => *byte,
        });
        rest = if escaped.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

/// Quotes a name. A text that is not a name may be part of a password that contains `?` or `&`.
fn shown(name: &str) -> String {
    let is_name = name.len() <= NAME_BYTES_MAX
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.[]".contains(&byte));
    if is_name && !name.is_empty() {
        format!("{name:?}")
    } else {
        String::from("that is not a name (write ? as %3F and & as %26 in a password)")
    }
}

/// Returns the value of an invalid `sslmode` if it is a mode in another form. Anything else may be
/// a secret in the wrong place.
fn shown_mode(pair: &Pair<'_>) -> String {
    let letters: String = pair.value.chars().filter(char::is_ascii_alphanumeric).collect();
    let is_like = |mode: &str| letters.to_ascii_lowercase().trim_end_matches('d') == mode;
    let known =
        ["verifyfull", "verifyca", "require", "prefer", "preferre", "disable", "allow", "allowe", "verify"];
    let others = ["on", "off", "true", "false", "yes", "no", "1", "0"];
    let is_mode = matches!(pair.name.as_str(), "sslmode" | "ssl-mode");
    if is_mode && pair.value.len() <= NAME_BYTES_MAX && known.into_iter().chain(others).any(is_like) {
        format!(" = {:?}", pair.value)
    } else {
        String::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: &str = "postgres://u:p%40ss@db.example.com/d";

    fn refusal(url: &str) -> String {
        accepted(url).unwrap_err().to_string()
    }

    #[test]
    fn what_the_client_library_honours_reaches_it() {
        for query in [
            "sslmode=require",
            "sslmode=verify-ca&sslrootcert=/ca.pem&sslcert=c&sslkey=k",
            "host=/run/postgresql&port=5433&user=u&password=a%26b&dbname=d",
            "options[search_path]=app&options=-c%20x%3d1&application_name=a&statement-cache-capacity=0",
        ] {
            let url = format!("{PLACE}?{query}");
            assert_eq!(accepted(&url).unwrap(), url);
        }
        assert_eq!(accepted(PLACE).unwrap(), PLACE);
    }

    #[test]
    fn what_needs_nothing_to_be_done_is_left_out() {
        let query = "target_session_attrs=read-write&connect_timeout=10&keepalives=1&channel_binding=require\
                     &sslmode=verify-full&gssencmode=prefer&client_encoding=UTF8&sslsni=1";
        assert_eq!(accepted(&format!("{PLACE}?{query}")).unwrap(), format!("{PLACE}?sslmode=verify-full"));
        assert_eq!(accepted(&format!("{PLACE}?keepalives=0")).unwrap(), PLACE);
    }

    #[test]
    fn what_cannot_be_honoured_is_named_without_its_value() {
        let table = [
            ("sslpassword=CANARY", "\"sslpassword\"", "openssl"),
            ("ssl%70assword=CANARY", "\"sslpassword\"", "openssl"),
            ("SSLPASSWORD=CANARY", "\"SSLPASSWORD\"", "unknown"),
            ("sslmode=require&channel_binding=require", "\"channel_binding\"", "verify-full"),
            ("sslmode=CANARY", "\"sslmode\"", "verify-full"),
            ("target_session_attrs=standby", "\"target_session_attrs\"", "primary"),
            ("gssencmode=require", "\"gssencmode\"", "TLS"),
            ("ssl_min_protocol_version=TLSv1.3", "\"ssl_min_protocol_version\"", "on the server"),
            ("client_encoding=LATIN1", "\"client_encoding\"", "UTF-8"),
            ("pgbouncer=CANARY", "\"pgbouncer\"", "docs/configuration.md"),
            ("CANARY@db/d=CANARY", "not a name", "%3F"),
            ("sslmode=require&=CANARY", "not a name", "%3F"),
        ];
        for (query, name, remedy) in table {
            let text = refusal(&format!("{PLACE}?{query}"));
            assert!(
                text.contains(name) && text.contains(remedy) && !text.contains("CANARY"),
                "{query}: {text}"
            );
        }
        let long = format!("{PLACE}?{}=x", "CANARY".repeat(20));
        assert!(!refusal(&long).contains("CANARY"));
    }

    #[test]
    fn a_mode_in_another_form_is_shown() {
        for mode in ["verify_full", "VerifyFull", "required", "on", "verify"] {
            let text = refusal(&format!("{PLACE}?sslmode={mode}"));
            assert!(text.contains(&format!("\"sslmode\" = {mode:?}")), "{text}");
        }
    }

    #[test]
    fn where_one_host_is_needed_a_list_is_refused_and_a_comma_elsewhere_is_not() {
        for (url, part) in [
            ("postgres://u:CANARY@h1,h2/d", "one host"),
            ("postgres://u:CANARY@h1:1,h2:2/d", "one host"),
            ("postgres://h1%2Ch2/d", "one host"),
            ("postgres://u:CANARY@/d?host=h1,h2", "before the database"),
            ("postgres://u@h/d?port=1,2", "before the database"),
        ] {
            let text = refusal(url);
            assert!(text.contains(part) && !text.contains("CANARY"), "{text}");
        }
        for url in ["postgres://u:a,b@h/d", "postgres://u@h/a,b", "postgres://u@h/d?application_name=a,b"] {
            assert_eq!(accepted(url).unwrap(), url);
        }
    }

    #[test]
    fn a_password_is_not_taken_for_a_host_or_a_name() {
        for url in [
            "postgres:/relay:CANARY@127.0.0.1/d",
            "postgres:relay:CANARY@127.0.0.1/d",
            "postgres:///relay:CANARY@127.0.0.1/d",
            "postgres://relay:p@CANARY/w#rd@127.0.0.1/d",
            "postgres://relay:p@CANARY@127.0.0.1/d",
            "postgres://relay:p@CANARY/w@127.0.0.1/d",
            "postgres://relay:5432/CANARY@127.0.0.1/d",
            "postgres://relay@127.0.0.1/d:CANARY",
            "postgres://relay@127.0.0.1/d#CANARY",
            "postgres://relay:pass/CANARY",
        ] {
            let text = crate::postgres::options::postgres_options(url, false).unwrap_err().to_string();
            assert!(text.contains("%40 %2F %23 %3F") && !text.contains("CANARY"), "{url}: {text}");
        }
        for url in [
            "postgres:///d?host=/run/postgresql",
            "postgresql://u:p%40%2F%23%3F@h/d",
            "postgres://u@[::1]:5433/d",
            "postgres://u@h/d%3A1",
            "postgres://u@h",
        ] {
            assert_eq!(accepted(url).unwrap(), url);
        }
    }

    #[test]
    fn a_percent_sign_has_to_be_escaped() {
        for password in ["pa%CANARY", "CANARY%", "100%ly", "%4"] {
            let url = format!("postgres://u:{password}@h/d");
            let text = crate::postgres::options::postgres_options(&url, false).unwrap_err().to_string();
            assert!(text.contains("write % as %25") && !text.contains("CANARY"), "{text}");
        }
    }

    #[test]
    fn a_parameter_may_name_the_host() {
        let options = |url| crate::postgres::options::postgres_options(url, false);
        for url in [
            "postgres://u:p@/d?host=/cloudsql/proj:eu:inst",
            "postgres://u@:5433/d?host=/cloudsql/proj:eu:inst",
            "postgres:///d?host=/cloudsql/proj:eu:inst&user=u",
        ] {
            let options = options(url).unwrap();
            let folder = options.get_socket().unwrap();
            assert_eq!(folder, std::path::Path::new("/cloudsql/proj:eu:inst"), "{url}");
            assert_eq!((options.get_username(), options.get_database()), ("u", Some("d")), "{url}");
        }
        let text = options("postgres://u:CANARY@/d").unwrap_err().to_string();
        assert!(text.contains("there is no host after the @") && !text.contains("CANARY"), "{text}");
    }

    #[test]
    fn any_text_is_accepted_or_refused() {
        for url in
            ["", "?", "postgres:", "postgres://", "postgres://?%", "postgres://u@h/d?%zz=%4", "x?&&&=#?"]
        {
            let _ = accepted(url);
            let _ = each_host(url);
        }
    }
}
