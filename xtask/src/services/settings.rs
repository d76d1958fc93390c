//! Settings from the environment: folders, ports, and external services.

use super::{Name, fault::Fault};
use std::path::PathBuf;

/// The variable that moves all data, logs, downloads and state files.
pub(crate) const DIR_VARIABLE: &str = "OUTBOX_SERVICES_DIR";

/// The variable that puts downloads elsewhere than below [`DIR_VARIABLE`], so that they are shared.
pub(crate) const DOWNLOADS_VARIABLE: &str = "OUTBOX_DOWNLOADS_DIR";

/// One TCP port of a service, always on 127.0.0.1.
pub(crate) struct Port {
    pub(crate) variable: &'static str,
    pub(crate) default: u16,
}

impl Port {
    /// Returns the number from the variable, or the default.
    pub(crate) fn number(&self) -> Result<u16, Fault> {
        match std::env::var(self.variable) {
            Ok(text) => parse(self.variable, &text),
            Err(_) => Ok(self.default),
        }
    }

    /// Returns the number of a port that is offered beside another one; `None` where the other port
    /// was moved but this port was not. An instance with its own ports offers only the listeners
    /// for which it got a port.
    pub(crate) fn beside(&self, other: &Self) -> Result<Option<u16>, Fault> {
        let given = |port: &Self| std::env::var_os(port.variable).is_some();
        if given(other) && !given(self) { Ok(None) } else { self.number().map(Some) }
    }
}

fn parse(variable: &str, text: &str) -> Result<u16, Fault> {
    text.parse::<u16>().ok().filter(|port| *port > 0).ok_or_else(|| {
        Fault::Failed(format!("{variable}={text} is not a port: use a number from 1 to 65535"))
    })
}

/// Additional listeners of Kafka, each announced under the port of a proxy: pairs
/// `listening:announced`, separated by commas.
pub(crate) const KAFKA_PROXIED: &str = "OUTBOX_KAFKA_PROXIED";

/// The size of PostgreSQL's log files in a new cluster, in MiB: a power of two from 1 to 1024. With
/// small files, a limit on the size of files hits tables without hitting the log.
pub(crate) const WAL_SEGMENT_MB: &str = "OUTBOX_POSTGRES_WAL_SEGMENT_MB";

/// `logical` lets PostgreSQL's log be decoded, which change data capture needs. Takes effect when
/// the server starts.
pub(crate) const WAL_LEVEL: &str = "OUTBOX_POSTGRES_WAL_LEVEL";

/// A file with an offset such as `+86400`, in seconds: PostgreSQL's wall clock differs by it from
/// the machine's. It is read again every second.
pub(crate) const POSTGRES_CLOCK: &str = "OUTBOX_POSTGRES_CLOCK";

/// `18` runs PostgreSQL 18 from Maven Central in place of the installed one. Takes effect when a
/// cluster is created.
pub(crate) const POSTGRES_MAJOR: &str = "OUTBOX_POSTGRES_MAJOR";

/// The name of a RabbitMQ node before the `@`. Without it, `outbox`.
pub(crate) const RABBITMQ_NODE: &str = "OUTBOX_RABBITMQ_NODE";

/// The name of a RabbitMQ node whose cluster a new node joins. Both have the same port of Erlang's
/// name server, and the same secret (`OUTBOX_RABBITMQ_COOKIE`).
pub(crate) const RABBITMQ_JOINS: &str = "OUTBOX_RABBITMQ_JOINS";

/// The secret that the nodes of a RabbitMQ cluster share, of letters and digits. Without it, one of
/// the node's own.
pub(crate) const RABBITMQ_COOKIE: &str = "OUTBOX_RABBITMQ_COOKIE";

/// The key, in base64url, with which tokens of OAuth 2 for RabbitMQ are signed (HS256). With it, a
/// valid token is accepted as a password.
pub(crate) const RABBITMQ_OAUTH_KEY: &str = "OUTBOX_RABBITMQ_OAUTH_KEY";

/// The server behind `PgBouncer`, as `host:port`. Without it, our PostgreSQL.
pub(crate) const PGBOUNCER_SERVER: &str = "OUTBOX_PGBOUNCER_SERVER";

/// The pool mode of `PgBouncer`: `transaction` (the default) or `session`.
pub(crate) const PGBOUNCER_MODE: &str = "OUTBOX_PGBOUNCER_MODE";

/// The number of prepared statements that `PgBouncer` keeps for each server connection in
/// transaction mode. It needs 1.21, which is newer than Debian 12's. Without it, none.
pub(crate) const PGBOUNCER_PREPARED: &str = "OUTBOX_PGBOUNCER_PREPARED";

/// `true` keeps the queues of SQS and their messages in files, so that they survive a crash.
pub(crate) const SQS_DURABLE: &str = "OUTBOX_SQS_DURABLE";

/// A listener of Kafka that clients reach through a proxy.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Proxied {
    pub(crate) listening: u16,
    pub(crate) announced: u16,
}

/// Reads [`KAFKA_PROXIED`].
pub(crate) fn kafka_proxied() -> Result<Vec<Proxied>, Fault> {
    given(KAFKA_PROXIED).map_or_else(|| Ok(Vec::new()), |text| parse_proxied(&text))
}

fn parse_proxied(text: &str) -> Result<Vec<Proxied>, Fault> {
    text.split(',')
        .map(|pair| {
            let (listening, announced) = pair.split_once(':').ok_or_else(|| {
                Fault::Failed(format!(
                    "{KAFKA_PROXIED}={text}: {pair:?} is not of the form listening:announced"
                ))
            })?;
            let port = |text| parse(KAFKA_PROXIED, text);
            Ok(Proxied { listening: port(listening)?, announced: port(announced)? })
        })
        .collect()
}

/// Reads [`WAL_SEGMENT_MB`], if a person set it.
pub(crate) fn wal_segment_mb() -> Result<Option<u32>, Fault> {
    given(WAL_SEGMENT_MB).map(|text| parse_segment(&text)).transpose()
}

fn parse_segment(text: &str) -> Result<u32, Fault> {
    text.parse()
        .ok()
        .filter(|size: &u32| size.is_power_of_two() && *size <= 1024)
        .ok_or_else(|| Fault::Failed(format!("{WAL_SEGMENT_MB}={text}: use a power of two from 1 to 1024")))
}

/// Reads [`WAL_LEVEL`]: whether the log can be decoded.
pub(crate) fn wal_is_logical() -> Result<bool, Fault> {
    match given(WAL_LEVEL).as_deref() {
        None | Some("replica") => Ok(false),
        Some("logical") => Ok(true),
        Some(other) => Err(Fault::Failed(format!("{WAL_LEVEL}={other}: use replica or logical"))),
    }
}

/// Reads [`POSTGRES_MAJOR`]: whether a release of our own was chosen.
pub(crate) fn postgres_is_release() -> Result<bool, Fault> {
    match given(POSTGRES_MAJOR).as_deref() {
        None => Ok(false),
        Some("18") => Ok(true),
        Some(other) => Err(Fault::Failed(format!("{POSTGRES_MAJOR}={other}: use 18, or leave it out"))),
    }
}

/// Reads [`PGBOUNCER_SERVER`]: host and port.
pub(crate) fn pgbouncer_server() -> Result<Option<(String, u16)>, Fault> {
    given(PGBOUNCER_SERVER).map(|text| parse_server(&text)).transpose()
}

/// Reads [`PGBOUNCER_MODE`].
pub(crate) fn pgbouncer_mode() -> Result<&'static str, Fault> {
    match given(PGBOUNCER_MODE).as_deref() {
        None | Some("transaction") => Ok("transaction"),
        Some("session") => Ok("session"),
        Some(other) => Err(Fault::Failed(format!("{PGBOUNCER_MODE}={other}: use transaction or session"))),
    }
}

/// Reads [`PGBOUNCER_PREPARED`].
pub(crate) fn pgbouncer_prepared() -> Result<Option<u16>, Fault> {
    let parse = |text: String| {
        text.parse().map_err(|_| {
            Fault::Failed(format!("{PGBOUNCER_PREPARED}={text} is not a number from 0 to 65535"))
        })
    };
    given(PGBOUNCER_PREPARED).map(parse).transpose()
}

fn parse_server(text: &str) -> Result<(String, u16), Fault> {
    match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() => Ok((host.to_owned(), parse(PGBOUNCER_SERVER, port)?)),
        _ => Err(Fault::Failed(format!("{PGBOUNCER_SERVER}={text}: use host:port"))),
    }
}

/// Reads a setting of RabbitMQ that becomes part of a name or a file: letters, digits, `-` and `_`.
pub(crate) fn rabbitmq_word(variable: &str) -> Result<Option<String>, Fault> {
    let is_word =
        |text: &String| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    let refused = |text| Fault::Failed(format!("{variable}={text}: use letters, digits, - and _"));
    given(variable).map(|text| if is_word(&text) { Ok(text) } else { Err(refused(text)) }).transpose()
}

/// Reads [`SQS_DURABLE`].
pub(crate) fn sqs_durable() -> Result<bool, Fault> {
    match given(SQS_DURABLE).as_deref() {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(other) => Err(Fault::Failed(format!("{SQS_DURABLE}={other}: use true or false"))),
    }
}

/// Returns the folder that holds one folder per service, and the shared files.
pub(crate) fn services_dir() -> Result<PathBuf, Fault> {
    match std::env::var_os(DIR_VARIABLE).filter(|value| !value.is_empty()) {
        Some(dir) => std::path::absolute(dir)
            .map_err(|error| Fault::Failed(format!("{DIR_VARIABLE} is not a usable path: {error}"))),
        None => crate::workspace::root().map(|root| root.join("target/services")).map_err(Fault::Failed),
    }
}

/// Returns the folder that holds one folder per service with its downloads.
pub(crate) fn downloads_dir() -> Result<PathBuf, Fault> {
    match std::env::var_os(DOWNLOADS_VARIABLE).filter(|value| !value.is_empty()) {
        Some(dir) => std::path::absolute(dir)
            .map_err(|error| Fault::Failed(format!("{DOWNLOADS_VARIABLE} is not a usable path: {error}"))),
        None => services_dir(),
    }
}

/// Returns the address in the service's variable, if a person set one.
pub(crate) fn given_address(name: Name) -> Option<String> {
    given(name.variable())
}

fn given(variable: &str) -> Option<String> {
    std::env::var(variable).ok().filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::{Proxied, parse, parse_proxied, parse_segment, parse_server};

    #[test]
    fn a_port_is_a_number_above_zero() {
        assert_eq!(parse("P", "15432").ok(), Some(15432));
        for bad in ["0", "65536", "-1", "", "http"] {
            let error = parse("P", bad).expect_err(bad).to_string();
            assert!(error.contains(&format!("P={bad} is not a port")), "{error}");
        }
    }

    #[test]
    fn proxied_listeners_are_pairs_of_ports() {
        let pair = |listening, announced| Proxied { listening, announced };
        assert_eq!(parse_proxied("1:2,3:4").ok(), Some(vec![pair(1, 2), pair(3, 4)]));
        for bad in ["1", "1:", ":2", "1:2,", "1:2:3", "0:1"] {
            assert!(parse_proxied(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_log_file_has_a_size_that_postgres_takes() {
        assert_eq!(parse_segment("1").ok(), Some(1));
        assert_eq!(parse_segment("64").ok(), Some(64));
        for bad in ["0", "3", "2048", "-1", "1MB", ""] {
            assert!(parse_segment(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_server_is_a_host_and_a_port() {
        assert_eq!(parse_server("127.0.0.1:5432").ok(), Some(("127.0.0.1".to_owned(), 5432)));
        for bad in ["", "localhost", ":5432", "localhost:0", "localhost:x"] {
            assert!(parse_server(bad).is_err(), "{bad}");
        }
    }
}
