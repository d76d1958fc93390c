//! Reads the URL of a broker.

use std::borrow::Cow;

use lapin::uri::AMQPUri;
use message::host_list::urls_of;
use secrecy::SecretString;
use url::Url;

use super::config::invalid;
use crate::secret::Secret;
use crate::settings::InvalidSetting;

/// The ports of `amqp` and `amqps`.
const PORT: u16 = 5672;
const PORT_TLS: u16 = 5671;

/// The URIs of a broker.
pub(super) struct Uris {
    /// One for each host of the URL, without the password: at least one.
    pub(super) hosts: Vec<AMQPUri>,
    pub(super) password: Option<Secret>,
    /// Whether the URL names a user; otherwise it is the client's default, `guest`.
    pub(super) has_user: bool,
}

/// Reads a URL that names one host, or several separated by commas. Errors never quote the URL,
/// which may contain the password.
pub(super) fn parse(url: &str) -> Result<Uris, InvalidSetting> {
    let port = if url.starts_with("amqps:") { PORT_TLS } else { PORT };
    let urls = urls_of(url, port).map_err(|problem| {
        invalid(
            "url",
            format!("has several hosts that cannot be used: {problem}; write amqps://user@h1:5671,h2/vhost"),
        )
    })?;
    let mut uris = Uris { hosts: Vec::new(), password: None, has_user: false };
    for url in urls {
        let OfHost { uri, password, has_user } = of_host(&url)?;
        uris.hosts.push(uri);
        uris.password = password;
        uris.has_user = has_user;
    }
    Ok(uris)
}

/// The URI of one host, without its password.
struct OfHost {
    uri: AMQPUri,
    password: Option<Secret>,
    has_user: bool,
}

fn of_host(url: &str) -> Result<OfHost, InvalidSetting> {
    let shape = "must be amqp[s]://[user[:password]@]host[:port][,host[:port]…][/vhost]";
    if url.is_empty() {
        return Err(invalid("url", format!("missing; it {shape}")));
    }
    let escapes = "write @ / # ? : in a user, a password or a virtual host as %40 %2F %23 %3F %3A";
    let parsed =
        Url::parse(url).map_err(|error| invalid("url", format!("{error}; it {shape}; {escapes}")))?;
    // Otherwise a piece of a password would be taken for the host, which is logged.
    let is_slip = parsed.fragment().is_some() || parsed.path().contains('@') || url.matches('@').count() > 1;
    if is_slip {
        return Err(invalid("url", format!("has an @ or a # in the wrong place; {escapes}; it {shape}")));
    }
    if parsed.query().is_some() {
        let names: Vec<Cow<'_, str>> = parsed.query_pairs().map(|(name, _)| name).collect();
        return Err(invalid("url", parameters(&names)));
    }
    // The client's error quotes the URL.
    let mut uri: AMQPUri = url.parse().map_err(|_| invalid("url", format!("cannot be read; it {shape}")))?;
    // The client's parser turns an address such as [::1] into localhost.
    match parsed.host_str() {
        Some(host) if !host.is_empty() => {
            if host.starts_with('[') {
                uri.authority.host = host.trim_matches(['[', ']']).to_owned();
            }
        }
        _ => return Err(invalid("url", format!("has no host; it {shape}"))),
    }
    if parsed.path() == "/" {
        let problem = "ends with a slash, which means a virtual host with an empty name; omit the slash for the virtual host /, or write /%2f";
        return Err(invalid("url", problem));
    }
    if parsed.path().is_empty() {
        uri.vhost = String::from("/");
    }
    let password = parsed.password().map(|_| {
        let text = std::mem::take(&mut uri.authority.userinfo.password);
        Secret::Text(SecretString::from(text))
    });
    Ok(OfHost { uri, password, has_user: !parsed.username().is_empty() })
}

/// Explains which settings replace the URL's parameters, whose values may be secrets.
fn parameters(names: &[Cow<'_, str>]) -> String {
    let instead = names.iter().find_map(|name| {
        Some(match name.as_ref() {
            "heartbeat" => ("heartbeat", "heartbeat_secs"),
            "connection_timeout" => ("connection_timeout", "connect_timeout_ms"),
            "auth_mechanism" => ("auth_mechanism", "auth"),
            "cacertfile" => ("cacertfile", "tls.ca_file"),
            "certfile" => ("certfile", "tls.cert_file"),
            "keyfile" => ("keyfile", "tls.key_file"),
            _ => return None,
        })
    });
    match instead {
        Some((name, setting)) => {
            format!("has the parameter {name:?} after a ?; remove it, and set rabbitmq.{setting} instead")
        }
        None => String::from(
            "has parameters after a ?, which are not supported; remove them, and use the settings of this section (write a ? in a password as %3F)",
        ),
    }
}
