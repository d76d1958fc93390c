//! Opens connections that are fit for reading and writing the log.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use message::Source;
use migrations::{Line, Migrator, Statement, Template};
use outbox::connect::{Exposure, Hosts, exposure, set_own_defaults};
use sqlx::postgres::PgConnectOptions;
use sqlx::{Executor as _, PgConnection, Postgres, Row as _};

use crate::address::Address;
use crate::error::WrongProduct;
use crate::failure::within;
use crate::postgres::brief::Brief;
use crate::postgres::checkpoint_store::PgCheckpointStore;
use crate::postgres::encoding;
use crate::postgres::facts;
use crate::postgres::process_name::process_name;
use crate::postgres::reader::{PgReader, Sql};
use crate::postgres::rebase::Rebase;
use crate::postgres::server_kind::ServerKind;
use crate::postgres::statements::Statements;
use crate::postgres::tables;
use crate::postgres::unconnected::{unanswered, unconnected};
use crate::tables::Tables;
use crate::watch::Watch;
use crate::{CheckpointStore, LogError, LogOptions, LogReader, LogStore, RelayName};

/// Planner settings that are off in a session of the relay. Segments are merged by their indexes; a
/// sort would read all of them first.
const SWITCHED_OFF: [&str; 5] =
    ["enable_seqscan", "enable_bitmapscan", "enable_sort", "enable_incremental_sort", "jit"];

/// Switches the same settings off until the transaction ends, for sessions that run a few queries.
/// A pooler that passes the session on after each transaction would pass settings of the session to
/// a service.
pub(super) const ONE_PLAN_HERE: &str = "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; \
    SET LOCAL enable_sort = off; SET LOCAL enable_incremental_sort = off; SET LOCAL jit = off";

/// How often a pooler's sessions are checked.
const POOLER_ROUNDS: usize = 3;

/// The first version with `xid8` and `pg_current_snapshot()`.
const SERVER_VERSION_MIN: i32 = 130_000;

/// The log of a PostgreSQL database. Cheap: connects only when a reader or checkpoint store is
/// requested.
#[derive(Debug, Clone)]
pub(crate) struct PostgresLog {
    address: Address,
    pub(super) options: LogOptions,
    pub(super) source: Source,
    origin: String,
    statements: Statements,
    pub(super) tables: Arc<Tables<Postgres>>,
    /// Checked once: a pooler does not change its mode while a service runs.
    has_sessions_of_its_own: Arc<AtomicBool>,
}

impl PostgresLog {
    /// Makes a log at an address such as `postgres://relay@db.internal/orders`. Messages carry
    /// `source` as their CloudEvents source.
    ///
    /// # Errors
    /// [`LogError::Operator`] when the URL cannot be used or would send secrets in the clear.
    pub(crate) fn new(
        address: impl Into<Address>,
        source: Source,
        options: LogOptions,
    ) -> Result<Self, LogError> {
        let address = address.into();
        let hosts = address.postgres(options.allow_plaintext)?;
        let first = hosts.first();
        let database = first.get_database().unwrap_or_else(|| first.get_username());
        let places: Vec<String> = hosts.all().iter().map(origin_of).collect();
        let origin = format!("postgresql {}/{database}", places.join(","));
        for host in hosts.all() {
            warn_if_exposed(host, &origin);
        }
        let statements = Statements::new(options.schema.as_ref());
        let tables = Arc::new(Tables::new(tables::texts(options.schema.as_ref())));
        let has_sessions_of_its_own = Arc::default();
        Ok(Self { address, options, source, origin, statements, tables, has_sessions_of_its_own })
    }

    /// Connects to a primary whose version and schema fit, with the settings of the toolkit's own
    /// sessions. No statement takes longer than a call may.
    pub(super) async fn connect(&self, application_name: &str) -> Result<PgConnection, LogError> {
        let hosts = self.hosts()?.application_name(application_name);
        let is_open = AtomicBool::new(false);
        let connection = async {
            let primary = hosts.primary().await.map_err(unconnected)?;
            let mut connection = Brief::new(primary.connection);
            is_open.store(true, Ordering::Relaxed);
            if self.address.is_pool() {
                self.check_pooler(&primary.options, &mut connection).await?;
            }
            self.check(&mut connection).await?;
            encoding::take_bytes(&mut connection).await?;
            Ok(connection.keep())
        };
        // Boxed: every operator's query begins with this future and would be as large.
        match within(self.options.connect_timeout, Box::pin(connection)).await {
            Err(late @ LogError::Timeout { .. }) if !is_open.load(Ordering::Relaxed) => {
                Err(Box::pin(unanswered(&hosts, late)).await)
            }
            connected => connected,
        }
    }

    /// Returns the hosts for a session. They may differ from those of the last connect.
    pub(super) fn hosts(&self) -> Result<Hosts, LogError> {
        self.address.postgres(self.options.allow_plaintext)
    }

    async fn check(&self, connection: &mut PgConnection) -> Result<(), LogError> {
        self.check_product(connection).await?;
        set_own_defaults(connection).await.map_err(LogError::during("configure the session"))?;
        // With `row_security` off, a policy is an error. Otherwise it would hide messages that the
        // cursor would pass. Only here: behind a pooler, a setting can stay in a session that a
        // service gets next, and its own tables may have policies.
        let (version, replica, ..): (i32, bool, String, String) = sqlx::query_as(
            "SELECT current_setting('server_version_num')::integer, pg_is_in_recovery(),
                set_config('statement_timeout', $1, false), set_config('row_security', 'off', false)",
        )
        .bind(millis(self.options.call_timeout))
        .fetch_one(&mut *connection)
        .await
        .map_err(LogError::during("report its version"))?;
        if version < SERVER_VERSION_MIN {
            return Err(LogError::operator(format!(
                "{} is PostgreSQL {}; the relay needs version 13 or newer",
                self.origin,
                version / 10_000
            )));
        }
        if replica {
            return Err(LogError::operator(format!(
                "{} is a replica; the relay reads the primary, because a replica may show commits in another order: \
                 point the URL at the primary",
                self.origin
            )));
        }
        let schema = self.options.schema.clone();
        Migrator::<Postgres>::new(Line::Outbox).schema(schema).check(connection).await?;
        self.check_tables(connection).await?;
        self.check_sequence(connection).await
    }

    /// Checks the product before any query that another product may not know, and before anything
    /// is prepared. Uses messages of the simple protocol.
    async fn check_product(&self, connection: &mut PgConnection) -> Result<(), LogError> {
        let failed = || LogError::during("report its product");
        let product = sqlx::raw_sql(
            "SELECT version(), EXISTS (SELECT FROM pg_namespace AS n JOIN pg_class AS c ON c.relnamespace = n.oid
                WHERE n.nspname = 'sys' AND c.relname = 'iam_pg_role_mappings')",
        );
        let row = product.fetch_one(&mut *connection).await.map_err(failed())?;
        let version = row.try_get(0).map_err(failed())?;
        let is_dsql = row.try_get(1).map_err(failed())?;
        self.refuse(&ServerKind { version, is_dsql, ..ServerKind::default() })?;
        // Checked by the names in the server: a pooler that keeps clients' statements apart renames
        // them.
        let prepared = sqlx::raw_sql(
            "SELECT EXISTS (SELECT FROM pg_prepared_statements WHERE NOT from_sql AND name LIKE 'sqlx\\_s\\_%')",
        );
        let row = prepared.fetch_one(connection).await.map_err(failed())?;
        let hands_on_statements = row.try_get(0).map_err(failed())?;
        self.refuse(&ServerKind { hands_on_statements, ..ServerKind::default() })
    }

    /// Refuses a pooler that shares a session between clients, transaction by transaction: the
    /// service, which has the same user, would get the relay's settings (isolation level, planner,
    /// time limits). Such a pooler gives the session of an idle connection to another connection's
    /// transaction.
    async fn check_pooler(
        &self,
        connect: &PgConnectOptions,
        connection: &mut PgConnection,
    ) -> Result<(), LogError> {
        if self.has_sessions_of_its_own.load(Ordering::Relaxed) {
            return Ok(());
        }
        let failed = || LogError::during("identify its session");
        let opened = Hosts::from(connect.clone()).connect().await;
        let mut second = Brief::new(opened.map_err(unconnected)?);
        let mut is_shared = false;
        // Checked more than once, because other clients may take the session that was free.
        for _ in 0..POOLER_ROUNDS {
            let before = backend(connection).await.map_err(failed())?;
            second.execute("BEGIN").await.map_err(failed())?;
            let held = backend(&mut second).await.map_err(failed())?;
            let after = backend(connection).await.map_err(failed())?;
            second.execute("ROLLBACK").await.map_err(failed())?;
            is_shared |= held == before || after != before;
        }
        if is_shared {
            return Err(LogError::operator(format!(
                "{} is reached through a pooler that shares sessions between clients, so the relay's \
                 settings would affect statements of the service that owns this pool: give the relay its \
                 own URL, of the server or of a pooler in session mode",
                self.origin
            )));
        }
        self.has_sessions_of_its_own.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Refuses tables that another party writes.
    async fn check_tables(&self, connection: &mut PgConnection) -> Result<(), LogError> {
        let failed = || LogError::during("report who writes its tables");
        let subscribed = sqlx::query_scalar(&self.render(
            "SELECT c.relname::text FROM pg_subscription_rel AS s JOIN pg_class AS c ON c.oid = s.srrelid
             WHERE c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = '{schema}outbox_message'::regclass)
                AND c.relname LIKE 'outbox\\_%' ORDER BY c.relname LIMIT 1",
        ))
        .fetch_optional(&mut *connection)
        .await
        .map_err(failed())?;
        let citus: bool =
            sqlx::query_scalar("SELECT to_regclass('pg_catalog.pg_dist_partition') IS NOT NULL")
                .fetch_one(&mut *connection)
                .await
                .map_err(failed())?;
        let distributed = if citus {
            sqlx::query_scalar(&self.render(
                "SELECT c.relname::text FROM pg_catalog.pg_dist_partition AS p JOIN pg_class AS c ON c.oid = p.logicalrelid
                 WHERE c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = '{schema}outbox_message'::regclass)
                    AND c.relname LIKE 'outbox\\_%' ORDER BY c.relname LIMIT 1",
            ))
            .fetch_optional(&mut *connection)
            .await
            .map_err(failed())?
        } else {
            None
        };
        self.refuse(&ServerKind { distributed, subscribed, ..ServerKind::default() })
    }

    fn refuse(&self, kind: &ServerKind) -> Result<(), LogError> {
        let Some(why) = kind.refusal() else { return Ok(()) };
        let source = kind.is_wrong_product().then(|| Box::new(WrongProduct) as _);
        Err(LogError::Operator { reason: format!("{} {why}", self.origin), source })
    }

    /// Refuses a sequence with a cache. An id that a session keeps in reserve could be used after
    /// the reader has passed it.
    async fn check_sequence(&self, connection: &mut PgConnection) -> Result<(), LogError> {
        let cache: i64 = sqlx::query_scalar(&self.render(
            "SELECT seqcache FROM pg_sequence WHERE seqrelid = '{schema}outbox_message_id_seq'::regclass",
        ))
        .fetch_one(connection)
        .await
        .map_err(LogError::during("describe outbox_message_id_seq"))?;
        if cache == 1 {
            return Ok(());
        }
        Err(LogError::operator(format!(
            "outbox_message_id_seq has CACHE {cache}, which would lose rows; run ALTER SEQUENCE \
             outbox_message_id_seq CACHE 1 and reconnect all producers"
        )))
    }

    pub(super) fn render(&self, text: &'static str) -> Statement {
        Template::new(text).schema(self.options.schema.as_ref()).render()
    }
}

/// Returns the server process behind a connection. Uses the simple protocol, so that nothing is
/// prepared.
async fn backend(connection: &mut PgConnection) -> Result<i32, sqlx::Error> {
    sqlx::raw_sql("SELECT pg_backend_pid()").fetch_one(connection).await?.try_get(0)
}

fn origin_of(host: &PgConnectOptions) -> String {
    let name = match host.get_socket() {
        Some(socket) => socket.display().to_string(),
        None => host.get_host().to_owned(),
    };
    format!("{name}:{}", host.get_port())
}

fn warn_if_exposed(connect: &PgConnectOptions, origin: &str) {
    match exposure(connect) {
        Some(Exposure::Plaintext) => {
            tracing::warn!(origin, "the connection may not be encrypted; use sslmode=verify-full");
        }
        Some(Exposure::Unverified) => {
            tracing::warn!(
                origin,
                "the server's certificate is not verified: sslmode=require; use verify-full"
            );
        }
        None => {}
    }
}

/// Sets parameters of the session, except those that the server's version lacks. Each is bound as a
/// value, never part of a statement's text.
async fn configure(connection: &mut PgConnection, parameters: &[(&str, String)]) -> Result<(), LogError> {
    let names: Vec<&str> = parameters.iter().map(|(name, _)| *name).collect();
    let values: Vec<&str> = parameters.iter().map(|(_, value)| value.as_str()).collect();
    sqlx::query(
        "SELECT set_config(name, value, false) FROM unnest($1::text[], $2::text[]) AS p(name, value)
         WHERE current_setting(name, true) IS NOT NULL",
    )
    .bind(names)
    .bind(values)
    .execute(connection)
    .await
    .map_err(LogError::during("configure the session"))?;
    Ok(())
}

/// Returns the planner parameters that the statements of the reader and the checkpoint store rely
/// on.
///
/// Every statement has one right plan, a walk along an index. Statistics of a log that was empty a
/// minute ago must not choose another one (ADR 35). Each parameter switches off something that
/// could replace the walk: a scan of the table, or a sort of another index's rows.
fn one_plan() -> Vec<(&'static str, String)> {
    let off = SWITCHED_OFF.iter().map(|name| (*name, String::from("off")));
    off.chain([("plan_cache_mode", String::from("force_generic_plan"))]).collect()
}

fn millis(limit: Duration) -> String {
    limit.as_millis().to_string()
}

#[async_trait]
impl LogStore for PostgresLog {
    fn origin(&self) -> &str {
        &self.origin
    }

    async fn reader(&self, relay: &RelayName) -> Result<Box<dyn LogReader>, LogError> {
        let mut connection = self.connect(&process_name("reads", relay)).await?;
        configure(&mut connection, &one_plan()).await?;
        let sql = Sql {
            statements: self.statements.clone(),
            questions: facts::Statements::new(self.options.schema.as_ref()),
            tables: Arc::clone(&self.tables),
        };
        let limit = self.options.call_timeout;
        let opened = PgReader::open(connection, relay.clone(), self.source.clone(), sql, limit);
        Ok(Box::new(within(limit, opened).await?))
    }

    async fn checkpoint_store(
        &self,
        relay: &RelayName,
        holder: &str,
    ) -> Result<Box<dyn CheckpointStore>, LogError> {
        // The application name until it takes the lease, so that `admin` can count it.
        let mut connection = self.connect(&process_name("standby", relay)).await?;
        let mut parameters = one_plan();
        parameters.extend([
            ("lock_timeout", millis(self.options.call_timeout / 2)),
            ("idle_in_transaction_session_timeout", millis(self.options.call_timeout)),
        ]);
        configure(&mut connection, &parameters).await?;
        Ok(Box::new(PgCheckpointStore {
            takes_any_text: encoding::take_bytes(&mut connection).await?,
            connection,
            relay: relay.clone(),
            holder: holder.to_owned(),
            statements: self.statements.clone(),
            questions: facts::Statements::new(self.options.schema.as_ref()),
            rebase: Rebase::new(self.options.schema.as_ref()),
            call_timeout: self.options.call_timeout,
            run: None,
            watch: Watch::default(),
            trouble: None,
        }))
    }

    async fn cause_of(&self, error: &LogError) -> Option<String> {
        self.lock_in_the_way(error).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_switched_off_for_a_session_is_what_is_switched_off_for_a_transaction() {
        let here: Vec<String> = SWITCHED_OFF.iter().map(|name| format!("SET LOCAL {name} = off")).collect();
        assert_eq!(ONE_PLAN_HERE, here.join("; "));
    }
}
