//! The hosts of a PostgreSQL database, and the search for the one that is its primary.
//!
//! The client library connects to one host and asks nothing about its role. So every host of a list
//! is asked in a session, and the session with the primary is the one that is used: between the
//! question and the first statement there is no second connect that could reach another server.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use message::addresses::first_to_fit;
use message::error_text;
use migrations::Dialect;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions as _, Connection as _, Row as _};

use crate::connect::{InvalidUrl, dialect_of};
use crate::postgres::answering::answering;
use crate::postgres::options::postgres_options;
use crate::postgres::url;

/// How long a host may be silent before the next one is asked beside it.
const NEXT_AFTER: Duration = Duration::from_millis(500);
/// Maximum time for connecting to one of several hosts and for its answer.
const HOST_MAX: Duration = Duration::from_secs(5);
/// Maximum time to close a session with a host that is not the primary.
const CLOSE_MAX: Duration = Duration::from_secs(1);

/// The host of a PostgreSQL database, or several hosts, one of which is its primary.
///
/// Each connect looks for the primary anew: a standby that was promoted is found, and so is the
/// next change. A single host is taken as it is.
#[derive(Clone)]
pub struct Hosts {
    /// At least one.
    all: Vec<PgConnectOptions>,
    needs: Needs,
}

/// Condition under which a host of a list is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Needs {
    /// It is not a standby, and its sessions can write unless they say otherwise.
    ReadWrite,
    /// It is not a standby.
    Primary,
}

/// A session with the primary.
pub struct Primary {
    /// The session, with the server's defaults.
    pub connection: PgConnection,
    /// The host, by the address that answered.
    pub options: PgConnectOptions,
}

/// No host could be used.
pub struct NoPrimary {
    passed: Vec<Passed>,
}

/// A host that could not be used.
pub struct Passed {
    index: usize,
    /// Its options.
    pub options: PgConnectOptions,
    /// The reason.
    pub why: Unfit,
}

/// Why a host could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unfit {
    /// There is no session with it.
    #[error(transparent)]
    Unconnected(sqlx::Error),
    /// It is a standby, or a replica of a cloud.
    #[error("it is a standby")]
    Standby,
    /// New sessions cannot write, for example on a primary that is about to be replaced.
    #[error(
        "its sessions are read-only (default_transaction_read_only), which target_session_attrs=primary accepts"
    )]
    ReadOnly,
}

impl Hosts {
    /// Returns the hosts of a URL such as `postgres://relay@h1:5432,h2:5433/orders`, with the rules
    /// of [`postgres_options`] for each of them. A host without a port has 5432. At most 16 hosts.
    ///
    /// Of several hosts, the toolkit uses the one that is not a standby and whose sessions can
    /// write. This holds without `target_session_attrs`, and with its values `any` and
    /// `read-write`. With `primary`, a server whose sessions are read-only by default is used as
    /// well.
    ///
    /// # Errors
    /// [`InvalidUrl`], which contains no host and no secret.
    pub fn of(url: &str, allow_plaintext: bool) -> Result<Self, InvalidUrl> {
        if dialect_of(url)? != Dialect::Postgres {
            return Err(InvalidUrl::Scheme { scheme: String::from("sqlite") });
        }
        let all = url::each_host(url)?;
        let all = all.iter().map(|url| postgres_options(url, allow_plaintext)).collect::<Result<_, _>>()?;
        let needs = if url::wants_primary(url) { Needs::Primary } else { Needs::ReadWrite };
        Ok(Self { all, needs })
    }

    /// Sets the name that administrators see.
    #[must_use]
    pub fn application_name(mut self, name: &str) -> Self {
        self.all = self.all.into_iter().map(|host| host.application_name(name)).collect();
        self
    }

    /// Returns the options of each host, in the order of the URL: at least one. They differ in
    /// host, port and TLS.
    #[must_use]
    pub fn all(&self) -> &[PgConnectOptions] {
        &self.all
    }

    /// Returns the options of the first host.
    #[must_use]
    pub fn first(&self) -> &PgConnectOptions {
        &self.all[0]
    }

    /// Returns whether there are several hosts.
    #[must_use]
    pub fn are_several(&self) -> bool {
        self.all.len() > 1
    }

    /// Returns host and port of each, separated by commas, without a secret.
    #[must_use]
    pub fn place(&self) -> String {
        self.all.iter().map(place).collect::<Vec<_>>().join(",")
    }

    /// Returns the same hosts with the user, the password and all else of these options.
    pub(super) fn with(&self, options: &PgConnectOptions) -> Self {
        // The client library cannot turn options of a socket into those of a host.
        if self.all.iter().any(|host| host.get_socket().is_some()) {
            return self.clone();
        }
        let with = |host: &PgConnectOptions| {
            let options = options.clone().host(host.get_host()).port(host.get_port());
            options.ssl_mode(host.get_ssl_mode())
        };
        Self { all: self.all.iter().map(with).collect(), needs: self.needs }
    }

    pub(super) fn needs(&self) -> Needs {
        self.needs
    }

    /// Opens a session with the primary, which has the server's defaults.
    ///
    /// Several hosts are asked in their order: the next one as soon as one cannot be used, or has
    /// been silent for half a second. Each has 5 s. A single host is not asked, and has no time
    /// limit: set one for this call.
    ///
    /// # Errors
    /// [`NoPrimary`] has the reason of each host. Cancel-safe.
    pub async fn primary(&self) -> Result<Primary, NoPrimary> {
        if !self.are_several() {
            let place = answering(self.first()).await;
            return match place.connect().await {
                Ok(connection) => Ok(Primary { connection, options: place }),
                Err(error) => Err(NoPrimary::of(self.first().clone(), error)),
            };
        }
        let ask = |index| self.ask(index);
        first_to_fit(0..self.all.len(), NEXT_AFTER, ask).await.map_err(|mut passed| {
            passed.sort_by_key(|passed| passed.index);
            NoPrimary { passed }
        })
    }

    /// Opens a session with the primary, as [`Hosts::primary`] does.
    ///
    /// # Errors
    /// [`NoPrimary`] has the reason of each host. Cancel-safe.
    pub async fn connect(&self) -> Result<PgConnection, NoPrimary> {
        Ok(self.primary().await?.connection)
    }

    async fn ask(&self, index: usize) -> Result<Primary, Passed> {
        let host = &self.all[index];
        let late = || sqlx::Error::Io(std::io::Error::from(std::io::ErrorKind::TimedOut));
        let asked = tokio::time::timeout(HOST_MAX, self.fit(host)).await;
        let fit = asked.unwrap_or_else(|_| Err(Unfit::Unconnected(late())));
        fit.map_err(|why| Passed { index, options: host.clone(), why })
    }

    async fn fit(&self, host: &PgConnectOptions) -> Result<Primary, Unfit> {
        let options = answering(host).await;
        let mut connection = options.connect().await.map_err(Unfit::Unconnected)?;
        match check(&mut connection, self.needs).await {
            Ok(()) => Ok(Primary { connection, options }),
            Err(unfit) => {
                // A failure to close has no consequence.
                let _ = tokio::time::timeout(CLOSE_MAX, connection.close()).await;
                Err(unfit)
            }
        }
    }
}

/// Checks that a session is one with the primary.
pub(super) async fn check(connection: &mut PgConnection, needs: Needs) -> Result<(), Unfit> {
    // In the simple protocol, so that nothing is prepared and any pooler accepts it.
    let role = sqlx::raw_sql("SELECT pg_is_in_recovery(), current_setting('transaction_read_only') = 'on'");
    let asked = role.fetch_one(connection).await.map_err(Unfit::Unconnected)?;
    if asked.try_get(0).map_err(Unfit::Unconnected)? {
        return Err(Unfit::Standby);
    }
    let is_read_only: bool = asked.try_get(1).map_err(Unfit::Unconnected)?;
    if is_read_only && needs == Needs::ReadWrite {
        return Err(Unfit::ReadOnly);
    }
    Ok(())
}

impl From<Unfit> for sqlx::Error {
    fn from(unfit: Unfit) -> Self {
        match unfit {
            Unfit::Unconnected(error) => error,
            unfit => Self::Io(std::io::Error::new(std::io::ErrorKind::ReadOnlyFilesystem, unfit.to_string())),
        }
    }
}

impl From<PgConnectOptions> for Hosts {
    fn from(options: PgConnectOptions) -> Self {
        Self { all: vec![options], needs: Needs::ReadWrite }
    }
}

impl NoPrimary {
    /// Makes the error of a single host, with which there is no session.
    #[must_use]
    pub fn of(options: PgConnectOptions, error: sqlx::Error) -> Self {
        Self { passed: vec![Passed { index: 0, options, why: Unfit::Unconnected(error) }] }
    }

    /// Returns the hosts, in the order of the URL: at least one.
    #[must_use]
    pub fn into_passed(self) -> Vec<Passed> {
        self.passed
    }
}

/// Returns host and port of a server, or the directory of its socket.
#[must_use]
pub fn place(options: &PgConnectOptions) -> String {
    match options.get_socket() {
        Some(folder) => format!("{} (port {})", folder.display(), options.get_port()),
        None if options.get_host().contains(':') => {
            format!("[{}]:{}", options.get_host(), options.get_port())
        }
        None => format!("{}:{}", options.get_host(), options.get_port()),
    }
}

impl fmt::Display for NoPrimary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [one] = self.passed.as_slice() {
            return write!(f, "{}: {}", place(&one.options), error_text::chain(&one.why));
        }
        let mut before = "no host of the list is a primary that accepts writes: ";
        for passed in &self.passed {
            write!(f, "{before}{}: {}", place(&passed.options), error_text::chain(&passed.why))?;
            before = ", ";
        }
        Ok(())
    }
}

impl Error for NoPrimary {}

// The options would print the password.
impl fmt::Debug for NoPrimary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.passed).finish()
    }
}

impl fmt::Debug for Passed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Passed").field("place", &place(&self.options)).field("why", &self.why).finish()
    }
}

impl fmt::Debug for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hosts").field("place", &self.place()).field("needs", &self.needs).finish()
    }
}

impl fmt::Debug for Primary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Primary").field("place", &place(&self.options)).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns hosts and ports of a URL.
    fn places(url: &str) -> Vec<(String, u16)> {
        let hosts = Hosts::of(url, true).unwrap();
        hosts.all().iter().map(|host| (host.get_host().to_owned(), host.get_port())).collect()
    }

    fn is(hosts: &[(&str, u16)]) -> Vec<(String, u16)> {
        hosts.iter().map(|(host, port)| (String::from(*host), *port)).collect()
    }

    #[test]
    fn a_list_becomes_one_place_for_each_host() {
        assert_eq!(
            places("postgres://u:a,b@h1:5433,h2,[2001:db8::7]:6432,[::1]/d?sslmode=disable"),
            is(&[("h1", 5433), ("h2", 5432), ("2001:db8::7", 6432), ("::1", 5432)])
        );
        // A user with the name of a host, and a database with it.
        assert_eq!(
            places("postgresql://h1,h2@h1,h2/h1%2Ch2?target_session_attrs=any"),
            is(&[("h1", 5432), ("h2", 5432)])
        );
        assert_eq!(places("postgres://h1,h2"), is(&[("h1", 5432), ("h2", 5432)]));
        assert_eq!(places("postgres://u@h1/d"), is(&[("h1", 5432)]));
        for host in Hosts::of("postgres://u:p%40@h1,127.0.0.1/d?application_name=a,b", true).unwrap().all() {
            assert_eq!((host.get_username(), host.get_database()), ("u", Some("d")));
            assert_eq!(host.get_application_name(), Some("a,b"));
        }
    }

    #[test]
    fn each_host_is_reached_as_it_would_be_alone() {
        use sqlx::postgres::PgSslMode;
        let hosts = Hosts::of("postgres://u@127.0.0.1,db.example.com/d", false).unwrap();
        assert!(matches!(hosts.all()[0].get_ssl_mode(), PgSslMode::Prefer));
        assert!(matches!(hosts.all()[1].get_ssl_mode(), PgSslMode::VerifyFull));
        let error = Hosts::of("postgres://u@127.0.0.1,db.example.com/d?sslmode=disable", false).unwrap_err();
        assert!(error.to_string().contains("db.example.com"), "{error}");
    }

    #[test]
    fn a_list_that_cannot_be_used_is_refused_without_its_texts() {
        for (url, part) in [
            ("postgres://u:CANARY@h1,,CANARY/d", "host 2 of 3 is empty"),
            ("postgres://u:CANARY@h1,CANARY:/d", "host 2 of 2 has a port"),
            ("postgres://u@h1%2CCANARY/d", "write a comma between hosts as it is"),
            ("postgres://u@h1,h2/d?host=h3,CANARY", "before the database"),
            ("postgres://u@h1,h2/d?hostaddr=CANARY", "before the database"),
            ("postgres://u@h1,h2/d?port=CANARY", "before the database"),
            ("postgres://u:p@CANARY@h1,h2/d", "more than one @"),
        ] {
            let error = Hosts::of(url, true).unwrap_err().to_string();
            assert!(error.contains(part) && !error.to_uppercase().contains("CANARY"), "{url}: {error}");
        }
    }

    #[tokio::test]
    async fn a_host_that_refuses_does_not_hide_the_reason_of_the_others() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let url = format!("postgres://u:CANARY@127.0.0.1:{free},localhost:{free}/d");
        let error = Hosts::of(&url, false).unwrap().connect().await.unwrap_err();
        let text = format!("{error} {error:?}");
        assert!(text.contains(&format!("127.0.0.1:{free}: ")), "{text}");
        assert!(text.contains(&format!("localhost:{free}: ")), "{text}");
        assert!(text.contains("no host of the list") && !text.contains("CANARY"), "{text}");
    }

    #[test]
    fn no_secret_is_in_a_debug_text() {
        let hosts = Hosts::of("postgres://u:CANARY@h1,h2:5433/d", false).unwrap();
        assert_eq!(hosts.place(), "h1:5432,h2:5433");
        assert!(!format!("{hosts:?}").contains("CANARY"));
    }

    #[test]
    fn the_parameter_says_whether_sessions_must_be_able_to_write() {
        for (query, needs) in [
            ("", Needs::ReadWrite),
            ("?target_session_attrs=any", Needs::ReadWrite),
            ("?target_session_attrs=read-write", Needs::ReadWrite),
            ("?sslmode=require&target_session_attrs=primary", Needs::Primary),
            ("?application_name=target_session_attrs%3Dprimary", Needs::ReadWrite),
        ] {
            assert_eq!(
                Hosts::of(&format!("postgres://u@h1,h2/d{query}"), false).unwrap().needs,
                needs,
                "{query}"
            );
        }
        for value in ["standby", "read-only", "prefer-standby"] {
            let url = format!("postgres://u@h1,h2/d?target_session_attrs={value}");
            let error = Hosts::of(&url, false).unwrap_err().to_string();
            assert!(error.contains("\"target_session_attrs\"") && error.contains("primary"), "{error}");
        }
    }
}
