//! The parameters of a PostgreSQL URL: which are honoured, left out or refused.

/// Treatment of a parameter.
pub(super) enum Verdict {
    /// The client library honours it.
    Honoured,
    /// It is dropped: its meaning holds without it.
    Kept,
    /// It cannot be honoured. Contains the remedy.
    Refused(&'static str),
}

/// Returns how a parameter is treated. `is_verified` is whether the server has to prove its
/// identity.
pub(super) fn verdict(name: &str, value: &str, is_verified: bool) -> Verdict {
    if is_honoured(name) {
        return Verdict::Honoured;
    }
    of_encryption(name, value, is_verified)
        .or_else(|| of_server(name, value))
        .or_else(|| of_session(name, value))
        .unwrap_or_else(|| refused(name))
}

/// Returns whether the client library honours any value of a parameter.
fn is_honoured(name: &str) -> bool {
    let is_known = [
        "sslrootcert",
        "ssl-root-cert",
        "ssl-ca",
        "sslcert",
        "ssl-cert",
        "sslkey",
        "ssl-key",
        "statement-cache-capacity",
        "host",
        "hostaddr",
        "port",
        "dbname",
        "user",
        "password",
        "application_name",
        "options",
    ]
    .contains(&name);
    is_known || name.starts_with("options[") && name.ends_with(']')
}

/// Returns how a parameter of the encryption is treated; `None` for other parameters.
fn of_encryption(name: &str, value: &str, is_verified: bool) -> Option<Verdict> {
    use Verdict::{Honoured, Kept, Refused};
    Some(match name {
        // The client library would quote any other word, which may be a secret in the wrong place.
        "sslmode" | "ssl-mode" => match value.to_ascii_lowercase().as_str() {
            "disable" | "allow" | "prefer" | "require" | "verify-ca" | "verify-full" => Honoured,
            _ => Refused("use verify-full (disable, allow, prefer, require and verify-ca are known as well)"),
        },
        // Both bind the session to the server that holds the key of its certificate. Only
        // verify-full checks that the certificate is the right one.
        "channel_binding" => match value {
            "disable" | "prefer" => Kept,
            "require" if is_verified => Kept,
            "require" => Refused(
                "the client library cannot bind channels: use sslmode=verify-full, which proves the server's \
                 identity as well, and leave it out",
            ),
            _ => Refused("use disable, prefer or require"),
        },
        "gssencmode" => match value {
            "disable" | "prefer" => Kept,
            _ => Refused("Kerberos is not supported: use TLS (sslmode=verify-full) and leave it out"),
        },
        "sslnegotiation" => match value {
            "postgres" => Kept,
            _ => Refused("TLS is asked for by the protocol of PostgreSQL: leave it out"),
        },
        "ssl_min_protocol_version" => match value {
            "TLSv1" | "TLSv1.1" | "TLSv1.2" => Kept,
            _ => Refused("TLS 1.2 is the oldest version that is spoken: demand a newer one at the server"),
        },
        "sslsni" => match value {
            "1" => Kept,
            _ => Refused("the host's name is always sent with TLS: leave it out"),
        },
        "sslcompression" => Kept,
        _ => return None,
    })
}

/// Returns how a parameter that chooses a server is treated; `None` for other parameters. There is
/// only one server, and the toolkit writes to it.
fn of_server(name: &str, value: &str) -> Option<Verdict> {
    use Verdict::{Kept, Refused};
    Some(match name {
        "target_session_attrs" => match value {
            "any" | "read-write" | "primary" => Kept,
            _ => Refused("the toolkit writes, so it needs the primary: leave it out, or use read-write"),
        },
        "load_balance_hosts" => match value {
            "disable" => Kept,
            _ => Refused("only one host is used: leave it out"),
        },
        _ => return None,
    })
}

/// Returns how a parameter of the session is treated; `None` for other parameters.
fn of_session(name: &str, value: &str) -> Option<Verdict> {
    use Verdict::{Kept, Refused};
    Some(match name {
        "client_encoding" => match value.to_ascii_lowercase().as_str() {
            "utf8" | "utf-8" | "auto" => Kept,
            _ => Refused("texts are sent as UTF-8: leave it out"),
        },
        // The toolkit has its own time limits for each connect and each call.
        "connect_timeout"
        | "keepalives"
        | "keepalives_idle"
        | "keepalives_interval"
        | "keepalives_count"
        | "tcp_user_timeout" => Kept,
        "fallback_application_name" => Kept,
        _ => return None,
    })
}

/// Refuses a parameter that has no value with which it could be used.
fn refused(name: &str) -> Verdict {
    Verdict::Refused(match name {
        "sslpassword" => {
            "a key that is encrypted cannot be read: decrypt it (openssl pkey -in KEY -out PLAIN), keep it readable \
             for this program only, and name it with sslkey"
        }
        "sslcrl" | "sslcrldir" => "revoked certificates are not looked up: leave it out",
        "passfile" => "set the environment variable PGPASSFILE instead",
        "service" | "servicefile" => "write the place into the URL itself",
        "require_auth"
        | "requirepeer"
        | "krbsrvname"
        | "gsslib"
        | "gssdelegation"
        | "sslcertmode"
        | "ssl_max_protocol_version"
        | "replication"
        | "requiressl" => {
            "the client library cannot honour it: leave it out if the connection needs no such protection"
        }
        _ => {
            "it is unknown: leave it out, if it is meant for another program (docs/configuration.md lists those that \
             are known)"
        }
    })
}
