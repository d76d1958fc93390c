//! The parameters of a PostgreSQL URL: which are applied, ignored or refused.

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
            _ => Refused("use verify-full (also known: disable, allow, prefer, require and verify-ca)"),
        },
        // Both bind the session to the server that holds the key of its certificate. Only
        // verify-full checks that the certificate is the right one.
        "channel_binding" => match value {
            "disable" | "prefer" => Kept,
            "require" if is_verified => Kept,
            "require" => Refused(
                "the client library does not support channel binding: use sslmode=verify-full, which also \
                 proves the server's identity, and remove it",
            ),
            _ => Refused("use disable, prefer or require"),
        },
        "gssencmode" => match value {
            "disable" | "prefer" => Kept,
            _ => Refused("Kerberos is not supported: use TLS (sslmode=verify-full), and remove it"),
        },
        "sslnegotiation" => match value {
            "postgres" => Kept,
            _ => Refused("PostgreSQL's own protocol negotiates TLS: remove it"),
        },
        "ssl_min_protocol_version" => match value {
            "TLSv1" | "TLSv1.1" | "TLSv1.2" => Kept,
            _ => Refused(
                "the client library accepts TLS 1.2 and newer: require a newer version on the \
                          server, and remove it",
            ),
        },
        "sslsni" => match value {
            "1" => Kept,
            _ => Refused("TLS always sends the host name: remove it"),
        },
        "sslcompression" => Kept,
        _ => return None,
    })
}

/// Returns how a parameter that chooses a server is treated; `None` for other parameters. The
/// toolkit writes to the server, so of several hosts only the primary is used.
fn of_server(name: &str, value: &str) -> Option<Verdict> {
    use Verdict::{Kept, Refused};
    Some(match name {
        "target_session_attrs" => match value {
            "any" | "read-write" | "primary" => Kept,
            _ => Refused("the toolkit writes, so it needs the primary: remove it, or use read-write"),
        },
        "load_balance_hosts" => match value {
            "disable" => Kept,
            _ => Refused("hosts are asked in their order, and only the primary is used: remove it"),
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
            _ => Refused("text is sent as UTF-8: remove it"),
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

/// Refuses a parameter for which no value is supported.
fn refused(name: &str) -> Verdict {
    Verdict::Refused(match name {
        "sslpassword" => {
            "an encrypted key cannot be read: decrypt it (openssl pkey -in KEY -out PLAIN), make it \
             readable only for this program, and name it with sslkey"
        }
        "sslcrl" | "sslcrldir" => "the client library does not check for revoked certificates: remove it",
        "passfile" => "set the environment variable PGPASSFILE instead",
        "service" | "servicefile" => "write host, port and database into the URL itself",
        "require_auth"
        | "requirepeer"
        | "krbsrvname"
        | "gsslib"
        | "gssdelegation"
        | "sslcertmode"
        | "ssl_max_protocol_version"
        | "replication"
        | "requiressl" => {
            "the client library does not support it: remove it if the connection does not need this \
             protection"
        }
        _ => {
            "it is unknown: remove it if it is meant for another program (docs/configuration.md lists the \
             known parameters)"
        }
    })
}
