//! Explains why no session with a server was opened, with the remedy, for relay, commands and
//! checks.
//!
//! The client library's errors name neither the parameter nor the file, and have only one kind of
//! error for every server that cannot prove its identity.

use std::error::Error;
use std::io;
use std::path::Path;
use std::time::Duration;

use message::addresses::{addresses_of, tried};
use message::error_text;
use outbox::connect::{Hosts, NoPrimary, Passed, Unfit, needs_name, place};
use sqlx::ConnectOptions as _;
use sqlx::postgres::{PgConnectOptions, PgSslMode};

use crate::LogError;

/// The remedy when several hosts answered or are away, and none is the primary.
const PROMOTE: &str = "start the primary, or promote a standby";

/// Returns the error for a session that was not opened. It names parameters, paths and the server,
/// but no secret. The text after the last semicolon is the remedy and names none of these:
/// `/readyz` shows it to anyone.
///
/// With several hosts, each is named with its reason. The error needs an operator only if every
/// host does: a host that is away may come back, and a standby may be promoted.
#[must_use]
pub fn unconnected(error: NoPrimary) -> LogError {
    let mut passed = error.into_passed();
    if passed.len() == 1
        && let Some(Passed { options, why, .. }) = passed.pop()
    {
        return of_host(&options, why.into());
    }
    let mut reasons = Vec::new();
    let mut remedy = None;
    let mut is_for_operator = true;
    let mut source: Option<Box<dyn Error + Send + Sync>> = None;
    for Passed { options, why, .. } in passed {
        let place = place(&options);
        let failed = match why {
            Unfit::Unconnected(error) => of_host(&options, error),
            unfit => LogError::Unavailable { reason: unfit.to_string(), source: Some(Box::new(unfit)) },
        };
        let reason = match failed {
            LogError::Operator { reason, source: cause } => {
                source = source.or(cause);
                let (reason, advice) = without_remedy(reason);
                remedy = remedy.or(advice);
                reason
            }
            LogError::Unavailable { reason, source: cause } => {
                source = source.or(cause);
                is_for_operator = false;
                without_remedy(reason).0
            }
            error => error.to_string(),
        };
        reasons.push(format!("{place}: {reason}"));
    }
    let remedy = remedy.as_deref().unwrap_or(PROMOTE);
    let reasons = reasons.join(", ");
    let reason = format!("no host of the list is a primary that accepts writes ({reasons}); {remedy}");
    if is_for_operator {
        LogError::Operator { reason, source }
    } else {
        LogError::Unavailable { reason, source }
    }
}

/// Returns a reason without the remedy after its last semicolon, and the remedy.
fn without_remedy(reason: String) -> (String, Option<String>) {
    match reason.rsplit_once("; ") {
        Some((reason, remedy)) => (reason.to_owned(), Some(remedy.to_owned())),
        None => (reason, None),
    }
}

/// Returns the error for a session with one host that was not opened.
fn of_host(options: &PgConnectOptions, error: sqlx::Error) -> LogError {
    let may_be_files =
        matches!(error, sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::Configuration(_));
    if may_be_files && let Some(reason) = unusable_file(options) {
        return LogError::Operator { reason, source: Some(Box::new(error)) };
    }
    let is_tls = match &error {
        sqlx::Error::Io(io) => io.kind() == io::ErrorKind::InvalidData,
        sqlx::Error::Tls(_) | sqlx::Error::Configuration(_) => true,
        _ => false,
    };
    if is_tls {
        let reason = insecure(options, &error_text::chain(&error));
        return LogError::Operator { reason, source: Some(Box::new(error)) };
    }
    let advice = match &error {
        sqlx::Error::Database(answer) => {
            let (code, message) = (answer.code(), answer.message());
            let code = code.as_deref().filter(|_| !asks_for_tls(message));
            code.and_then(of_code).or_else(|| of_message(message))
        }
        sqlx::Error::Io(io) => Some(of_io(io, options)),
        // The client library has no separate error for a server that is not PostgreSQL.
        sqlx::Error::Protocol(problem) if problem.contains("SSLRequest") => {
            Some("the server that answers is not PostgreSQL: correct host and port in the URL")
        }
        _ => None,
    };
    match (LogError::during("connect")(error), advice) {
        (LogError::Operator { reason, source }, Some(advice)) => {
            LogError::Operator { reason: format!("{reason}; {advice}"), source }
        }
        (LogError::Unavailable { reason, source }, Some(advice)) => {
            LogError::Unavailable { reason: format!("{reason}; {advice}"), source }
        }
        (error, _) => error,
    }
}

/// Maximum duration of asking for the addresses of a host: the caller has waited long enough.
const ADDRESSES_MAX: Duration = Duration::from_secs(1);

/// Adds the addresses that were tried to the error of a server that did not answer in time.
pub(super) async fn unanswered(hosts: &Hosts, error: LogError) -> LogError {
    let LogError::Timeout { waited } = error else { return error };
    if hosts.are_several() {
        let place = hosts.place();
        return LogError::Unavailable {
            reason: format!("none of {place} accepted writes within {waited:?}; {PROMOTE}"),
            source: Some(Box::new(error)),
        };
    }
    let options = hosts.first();
    let (host, port) = (options.get_host(), options.get_port());
    let found = tokio::time::timeout(ADDRESSES_MAX, addresses_of(host, port)).await;
    let addresses = found.ok().and_then(Result::ok).unwrap_or_default();
    let tried = tried(host, &addresses);
    if options.get_socket().is_some() || tried.is_empty() {
        return error;
    }
    let one_by_one = if addresses.len() > 1 && needs_name(options) {
        "; with TLS, only the first address may be tried in this time, so it has to answer"
    } else {
        ""
    };
    let place = place(options);
    let remedy = "check the server and the network in between";
    LogError::Unavailable {
        reason: format!("{place} did not answer within {waited:?}{tried}{one_by_one}; {remedy}"),
        source: Some(Box::new(error)),
    }
}

/// Returns the remedy for an answer whose SQLSTATE is too vague. Poolers have their own codes and
/// English messages.
fn of_message(message: &str) -> Option<&'static str> {
    let says = |words: &[&str]| words.iter().any(|word| message.contains(word));
    if asks_for_tls(message) {
        return Some(
            "the server may admit this user over TLS only: set sslmode=verify-full (or require) in the URL",
        );
    }
    if says(&["Tenant or user not found", "no such user", "no such database"]) {
        return Some(
            "the pooler does not know it: correct user, host and database in the URL, in the form that the \
             pooler expects",
        );
    }
    if says(&["query_wait_timeout", "no more connections allowed", "MaxClients", "max clients"]) {
        return Some(
            "raise the pooler's session limits: a relay needs 2 sessions to lead, and briefly 2 more",
        );
    }
    says(&["password authentication failed", "SASL authentication failed"]).then_some(
        "write the correct password into the URL or its file, and into the user list of the pooler if there \
         is one",
    )
}

/// Returns whether the server has no rule for this user without TLS.
fn asks_for_tls(message: &str) -> bool {
    message.contains("pg_hba.conf") && message.contains("no encryption")
}

/// Returns the remedy for a SQLSTATE.
fn of_code(code: &str) -> Option<&'static str> {
    Some(match code {
        "28P01" => "write the correct password into the URL or its file, or set this one with ALTER ROLE",
        "28000" => {
            "correct the user in the URL, or admit it: the role must exist and have LOGIN, and pg_hba.conf \
             must admit it from this address"
        }
        "3D000" => "correct the name of the database in the URL, or make it with CREATE DATABASE",
        "42501" => "grant the user CONNECT on the database",
        "55000" => {
            "let the database accept connections: ALTER DATABASE … ALLOW_CONNECTIONS true, or resume it if \
             its provider has paused it"
        }
        "53300" => {
            "raise max_connections of the server or the limit of the role, or end idle sessions: a relay \
             needs 2 sessions to lead, and briefly 2 more"
        }
        _ => return None,
    })
}

fn of_io(error: &io::Error, options: &PgConnectOptions) -> &'static str {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            "nothing listens there: start the server, or correct host and port in the URL"
        }
        io::ErrorKind::NotFound if options.get_socket().is_some() => {
            "nothing listens there: start the server, or correct the directory of its socket in the URL"
        }
        _ if error.to_string().contains("lookup address") => {
            "correct the host in the URL, or the name resolution of this machine"
        }
        _ => "check the server and the network in between",
    }
}

/// Explains why the connection is not secure.
fn insecure(options: &PgConnectOptions, told: &str) -> String {
    let (place, host) = (place(options), options.get_host());
    let mode = mode(options.get_ssl_mode());
    if told.contains("does not support TLS") {
        return format!(
            "{place} offers no TLS, which sslmode={mode} requires; enable TLS on the server (ssl = on), or \
             set sslmode=disable, which also needs allow_plaintext if the server is another machine"
        );
    }
    let says = |words: &[&str]| words.iter().any(|word| told.contains(word));
    if says(&["UnknownIssuer", "CaUsedAsEndEntity"]) {
        return match files(options).into_iter().find(|(name, _)| *name == "sslrootcert") {
            Some((_, path)) => format!(
                "the certificate of {place} was issued by an authority that is not in sslrootcert={path} \
                 ({told}); add the certificate of that authority to the file, or name the file that has it"
            ),
            None => format!(
                "the certificate of {place} was issued by an authority that is not trusted here ({told}), \
                 and sslrootcert is not set; name the file with the authority's certificate in sslrootcert \
                 of the URL"
            ),
        };
    }
    if says(&["not valid for name", "NotValidForName"]) {
        return format!(
            "the certificate of {place} is not for the name {host:?} ({told}), which sslmode={mode} \
             requires; use a name of the certificate as the host of the URL, or give the server a \
             certificate for this name"
        );
    }
    if says(&["expired", "Expired"]) {
        return format!("the certificate of {place} has expired ({told}); renew it on the server");
    }
    if says(&["not valid yet", "NotValidYet"]) {
        return format!(
            "the certificate of {place} is not valid yet ({told}); compare the clocks of server and this machine"
        );
    }
    format!(
        "the connection to {place} is not secure: {told}; check sslmode={mode}, sslrootcert, sslcert and sslkey in the \
         URL, and the certificate of the server"
    )
}

fn mode(mode: PgSslMode) -> &'static str {
    match mode {
        PgSslMode::Disable => "disable",
        PgSslMode::Allow => "allow",
        PgSslMode::Prefer => "prefer",
        PgSslMode::Require => "require",
        PgSslMode::VerifyCa => "verify-ca",
        PgSslMode::VerifyFull => "verify-full",
    }
}

/// Returns the files in the options, by parameter. The certificate itself may take the place of a
/// path.
fn files(options: &PgConnectOptions) -> Vec<(&'static str, String)> {
    // A host or user that is not valid in a URL would make the client library panic.
    let url = options.clone().host("localhost").username("relay").to_url_lossy();
    let named = url.query_pairs().filter_map(|(name, value)| {
        let name = ["sslrootcert", "sslcert", "sslkey"].into_iter().find(|known| *known == name)?;
        // The client library writes a path in this form.
        value.strip_prefix("file: ").map(|path| (name, path.to_owned()))
    });
    named.collect()
}

/// Maximum size of a certificate file that is read.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Explains the problem with a file in the options, if there is one.
fn unusable_file(options: &PgConnectOptions) -> Option<String> {
    files(options).into_iter().find_map(|(name, path)| {
        let (problem, remedy) = match read(Path::new(&path)) {
            Err(error) => (
                format!("which cannot be read: {error}"),
                "correct the path in the URL, or make the file readable for the user of this program",
            ),
            Ok(text) if name == "sslkey" && !text.contains("PRIVATE KEY-----") => (
                String::from("which contains no key in PEM format"),
                "write the unencrypted key of the client certificate there (-----BEGIN PRIVATE KEY-----)",
            ),
            Ok(text) if name != "sslkey" && !text.contains("-----BEGIN CERTIFICATE-----") => (
                String::from("which contains no certificate in PEM format"),
                "write the certificate there as text, which begins with -----BEGIN CERTIFICATE----- \
                 (openssl x509 -inform der converts one from DER)",
            ),
            Ok(_) => return None,
        };
        Some(format!("{name} names {path:?}, {problem}; {remedy}"))
    })
}

fn read(path: &Path) -> io::Result<String> {
    let metadata = path.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    if metadata.len() > FILE_BYTES_MAX {
        return Err(io::Error::other(format!("it has more than {FILE_BYTES_MAX} bytes")));
    }
    Ok(String::from_utf8_lossy(&std::fs::read(path)?).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use outbox::connect::postgres_options;

    fn told(url: &str, error: sqlx::Error) -> String {
        let options = postgres_options(url, true).unwrap();
        unconnected(NoPrimary::of(options, error)).to_string()
    }

    /// Of several hosts, those that an operator must see to are distinguished from those that come
    /// back.
    #[tokio::test]
    async fn each_host_is_named_with_its_reason_and_one_remedy_ends_the_text() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let url = format!("postgres://u:CANARY@127.0.0.1:{free},localhost:{free}/d");
        let error = unconnected(Hosts::of(&url, false).unwrap().connect().await.unwrap_err());
        assert!(matches!(error, LogError::Unavailable { source: Some(_), .. }), "{error:?}");
        let text = error.to_string();
        for part in ["no host of the list", &format!("(127.0.0.1:{free}: "), &format!(", localhost:{free}: ")]
        {
            assert!(text.contains(part), "{text}");
        }
        assert!(text.ends_with(&format!("); {PROMOTE}")) && !text.contains("CANARY"), "{text}");
        assert_eq!(error.remedy(), Some(PROMOTE));
    }

    fn tls(text: &str) -> sqlx::Error {
        io::Error::new(io::ErrorKind::InvalidData, text.to_owned()).into()
    }

    #[test]
    fn a_file_that_cannot_be_used_is_named_with_its_parameter() {
        let folder = std::env::temp_dir().join(format!("unconnected-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (garbage, good) = (folder.join("garbage"), folder.join("good.pem"));
        std::fs::write(&garbage, [0x30, 0x82, 0xff]).unwrap();
        std::fs::write(&good, "-----BEGIN CERTIFICATE-----\n").unwrap();
        let url = |query: String| format!("postgres://u:CANARY@db.example.com/d?sslmode=verify-full&{query}");
        let missing = || sqlx::Error::Io(io::Error::from(io::ErrorKind::NotFound));
        for (query, error, parts) in [
            (
                String::from("sslrootcert=/nowhere/ca.pem"),
                missing(),
                ["sslrootcert", "/nowhere/ca.pem", "correct the path"],
            ),
            (
                format!("sslrootcert={}", folder.display()),
                missing(),
                ["sslrootcert", "it is not a file", "correct the path"],
            ),
            (
                format!("sslrootcert={}", garbage.display()),
                tls("UnknownIssuer"),
                ["garbage", "no certificate", "openssl"],
            ),
            (
                format!("sslcert={0}&sslkey={0}", good.display()),
                sqlx::Error::Configuration("no keys found pem file".into()),
                ["sslkey", "no key in PEM form", "PRIVATE KEY"],
            ),
        ] {
            let text = told(&url(query), error);
            assert!(parts.iter().all(|part| text.contains(part)) && !text.contains("CANARY"), "{text}");
        }
        let text = told(
            &url(format!("sslrootcert={}", good.display())),
            tls("invalid peer certificate: UnknownIssuer"),
        );
        assert!(
            text.contains("sslrootcert=")
                && text.contains("good.pem")
                && text.contains("an authority that is not in"),
            "{text}"
        );
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn the_cause_decides_what_to_do() {
        let refused = || sqlx::Error::Io(io::Error::from(io::ErrorKind::ConnectionRefused));
        let unknown_host = || sqlx::Error::Io(io::Error::other("failed to lookup address information: x"));
        let late = || sqlx::Error::Io(io::Error::from(io::ErrorKind::TimedOut));
        for (error, parts) in [
            (refused(), ["could not connect", "start the server"]),
            (unknown_host(), ["lookup address", "name resolution"]),
            (late(), ["timed out", "network in between"]),
            (
                sqlx::Error::Protocol("unexpected response from SSLRequest: 0x41".into()),
                ["SSLRequest", "not PostgreSQL: correct host and port"],
            ),
            (sqlx::Error::Tls("server does not support TLS".into()), ["sslmode=verify-full", "ssl = on"]),
            (tls("invalid peer certificate: UnknownIssuer"), ["not trusted", "sslrootcert of the URL"]),
            (tls("certificate not valid for name \"db\""), ["not for the name", "host of the URL"]),
            (tls("invalid peer certificate: Expired"), ["has expired", "renew it"]),
            (tls("peer is incompatible"), ["not secure: ", "check sslmode=verify-full"]),
        ] {
            let text = told("postgres://u:CANARY@db.example.com/d", error);
            assert!(parts.iter().all(|part| text.contains(part)) && !text.contains("CANARY"), "{text}");
            let remedy = text.rsplit("; ").next().unwrap();
            assert!(remedy.contains(parts[1]) && !remedy.contains("db.example.com"), "{text}");
        }
        for (message, part) in [
            (
                "no pg_hba.conf entry for host \"10.0.0.1\", user \"u\", database \"d\", no encryption",
                "sslmode",
            ),
            ("Tenant or user not found", "pooler"),
            ("no such database: shop", "pooler"),
            ("password authentication failed (server_login_retry)", "correct password"),
            ("query_wait_timeout", "needs 2 sessions to lead"),
            ("MaxClientsInSessionMode: max clients reached", "needs 2 sessions to lead"),
        ] {
            assert!(of_message(message).is_some_and(|advice| advice.contains(part)), "{message}");
        }
        assert_eq!(of_message("the database system is starting up"), None);
        for code in ["28P01", "28000", "3D000", "42501", "53300", "55000"] {
            assert!(of_code(code).is_some(), "{code}");
        }
    }
}
