//! Inbox, keys and sagas with statistics that mislead. The planner either knows nothing of tables
//! with a million rows, or believes that they are empty, or that emptied tables are full, or that
//! what is common in them is common where a call looks. No call of a service or an operator may
//! touch more than a few pages for each row that it returns. PostgreSQL itself counts the pages
//! (`pg_stat_statements`), so every statement is covered. The statements of the outbox have their
//! own suite: `outbox/plans`.

mod operate;
mod seldom;
mod unrun;
mod work;

use inbox::{Inbox, InboxOptions};
use sqlx::Postgres;
use tests::{Cluster, Database, Failure, Outcome, Stage};

use self::unrun::Ran;

/// Number of rows in each table.
const ROWS: u32 = 1_000_000;
/// Number of remaining rows where statistics still report all rows.
const LEFT: u32 = 400;
/// Maximum pages of a call: a fixed number, and some for each row that it returns or changes.
const PAGES: i64 = 400;
const PAGES_A_ROW: i64 = 60;
/// Maximum pages of hourly maintenance, whose steps are larger.
const PAGES_OF_MAINTENANCE: i64 = 70_000;
/// Maximum pages of an operator's query that counts this many rows of each kind.
const PAGES_OF_ACTIVITY: i64 = 4 * inbox::ACTIVITY_COUNTED_MAX as i64;
/// Maximum pages of an operator's survey, which counts dead letters, each on a page of its own.
const PAGES_OF_SURVEY: i64 = inbox::LETTERS_SURVEYED_MAX as i64;
/// Maximum pages of a step over this many dead letters or keys, in search of those of a person.
const PAGES_OF_A_NAME: i64 = 2 * inbox::LETTERS_LOOKED_AT_MAX as i64;
/// Maximum pages of the doctor's comparison of up to 400,000 numbers of dead letters.
const PAGES_OF_NUMBERS: i64 = 500_000;
const CONSUMER: &str = "billing";
/// The SQL that fills the tables.
const FILL: &str = include_str!("fill.sql");

/// The planner's knowledge of the tables, in an order in which one filled database can reach each
/// state.
#[derive(Debug, Clone, Copy)]
enum Statistics {
    /// No knowledge: the tables were never analysed.
    None,
    /// The planner believes that full tables are empty.
    SayEmpty,
    /// The planner knows the full tables, column by column: many requests are open, many sagas are
    /// due, and few keys have most dead letters, but not where a call looks. So it expects to find
    /// at once what does not exist.
    Right,
    /// The planner believes that nearly empty tables are full. Their files have kept their lengths.
    SayFull,
}

tests::cases! { "statistics/{on}/{case}":
    night postgres + xtask { no_call_depends_on_them = depends_on_none }
    modules { unrun }
}

/// Goal: plans in a new database, or in one that was just emptied or filled, do not stop a service,
/// even before autovacuum has run. Oracle: the pages that PostgreSQL counts for each statement, for
/// all statistics and for generic and custom plans. A statement that never ran would not be
/// measured: each has run, or is in the list of `unrun`.
async fn depends_on_none(stage: Stage) -> Outcome {
    let cluster = Cluster::start(&stage, &[]).await?;
    for setting in ["autovacuum = off", "shared_preload_libraries = 'pg_stat_statements'", "fsync = off"] {
        cluster.execute(&format!("ALTER SYSTEM SET {setting}")).await?;
    }
    cluster.crash().await?;
    cluster.resume().await?;
    cluster.execute("CREATE DATABASE filled").await?;
    let filled = at(&stage, &cluster, "filled").await?;
    filled.execute("CREATE EXTENSION pg_stat_statements").await?;
    filled.execute("CREATE TABLE effect (key text)").await?;
    // Opening the inbox creates its days.
    Inbox::open(filled.admin.clone(), InboxOptions::default()).await?.maintain().await?;
    filled.execute(&FILL.replace("{rows}", &ROWS.to_string())).await?;
    filled.admin.close().await;
    let mut worst = Vec::new();
    let mut ran = Ran::default();
    for statistics in [Statistics::None, Statistics::SayEmpty, Statistics::Right, Statistics::SayFull] {
        let filled = at(&stage, &cluster, "filled").await?;
        statistics.imitate(&filled).await?;
        // A database can be copied only if it has no sessions.
        filled.admin.close().await;
        for plans in ["generic", "custom"] {
            let name = format!("{statistics:?}_{plans}").to_lowercase();
            cluster.execute(&format!("CREATE DATABASE {name} TEMPLATE filled STRATEGY file_copy")).await?;
            worst.extend(measured(&stage, &cluster, &Place { name: &name, plans }, &mut ran).await?);
            cluster.execute(&format!("DROP DATABASE {name} (FORCE)")).await?;
        }
    }
    assert!(worst.is_empty(), "statements that touch too many pages:\n{}", worst.join("\n"));
    let missing = ran.missing();
    assert!(missing.is_empty(), "statements without a measurement:\n{}", missing.join("\n"));
    Ok(())
}

/// A database that is measured.
struct Place<'a> {
    name: &'a str,
    /// The kind of plans that its sessions make.
    plans: &'a str,
}

/// Uses a database as services and operators do. Adds the statements that ran. Returns those that
/// touch too many pages.
async fn measured(
    stage: &Stage,
    cluster: &Cluster,
    place: &Place<'_>,
    ran: &mut Ran,
) -> Result<Vec<String>, Failure> {
    let Place { name, plans } = place;
    cluster.execute(&format!("ALTER DATABASE {name} SET plan_cache_mode = force_{plans}_plan")).await?;
    let database = at(stage, cluster, name).await?;
    let inbox = Inbox::open(database.admin.clone(), InboxOptions::default()).await?;
    drop(database.texts("SELECT pg_stat_statements_reset()::text").await?);
    work::consumes(&inbox).await?;
    work::frees_a_key(&database, &inbox).await?;
    seldom::batches_and_chunks(&database, &inbox).await?;
    work::looks_for_requests(&database).await?;
    work::keys(&database).await?;
    seldom::keys(&database).await?;
    work::sagas(&database).await?;
    seldom::sagas(&database).await?;
    seldom::functions(&database, &inbox).await?;
    // The worker has woken all sagas. If it was slow, they were overdue, and it counted them.
    let counted = "SELECT pg_stat_statements_reset(0, 0, queryid)::text FROM pg_stat_statements \
        WHERE query ~ ' AS late WHERE '";
    drop(database.texts(counted).await?);
    operate::inbox(&database, &inbox).await?;
    operate::keys(&database).await?;
    operate::sagas(&database).await?;
    seldom::results_and_erasure(&inbox).await?;
    ran.add(&database).await?;
    let worst = over_the_bound(&database, name).await?;
    database.admin.close().await;
    Ok(worst)
}

/// Opens a database of the cluster and creates every table of the toolkit.
async fn at(stage: &Stage, cluster: &Cluster, name: &str) -> Result<Database<Postgres>, Failure> {
    let url = cluster.url();
    let (base, _) = url.rsplit_once('/').ok_or("a URL without a database")?;
    Database::<Postgres>::migrated_at(stage, format!("{base}/{name}")).await
}

impl Statistics {
    /// Gives a full database these statistics.
    async fn imitate(self, database: &Database<Postgres>) -> Outcome {
        const OURS: &str = "relname ~ '^(inbox|idempotency|saga)' AND relkind IN ('r', 'i')";
        match self {
            Self::None => Ok(()),
            Self::SayEmpty => {
                let empty = format!("UPDATE pg_class SET relpages = 1, reltuples = 0 WHERE {OURS}");
                database.execute(&empty).await
            }
            Self::Right => {
                // The fill has as many keys as one consumer needs.
                let few = "ALTER TABLE inbox_dead_letter ALTER COLUMN key SET (n_distinct = 1)";
                database.execute(few).await?;
                database.execute("ANALYZE").await
            }
            Self::SayFull => {
                let keys = "ALTER TABLE inbox_dead_letter ALTER COLUMN key RESET (n_distinct)";
                database.execute(keys).await?;
                database.execute("ANALYZE").await?;
                let remember = format!("SELECT oid, relpages, reltuples FROM pg_class WHERE {OURS}");
                database.execute(&format!("CREATE TABLE believed AS {remember}")).await?;
                // The triggers that protect open rows are disabled.
                database
                    .execute(
                        "SET session_replication_role = replica; DELETE FROM inbox_dead_letter; \
                         DELETE FROM inbox_audit; DELETE FROM inbox_attempt; DELETE FROM inbox_message; \
                         DELETE FROM idempotency_key; DELETE FROM idempotency_audit; DELETE FROM saga; \
                         DELETE FROM saga_step; DELETE FROM saga_reply; DELETE FROM saga_audit; \
                         RESET session_replication_role",
                    )
                    .await?;
                database.execute("VACUUM (TRUNCATE false)").await?;
                database.execute(&FILL.replace("{rows}", &LEFT.to_string())).await?;
                database
                    .execute(
                        "UPDATE pg_class AS c SET relpages = b.relpages, reltuples = b.reltuples \
                         FROM believed AS b WHERE b.oid = c.oid",
                    )
                    .await
            }
        }
    }
}

/// Returns statements on tables of the toolkit that touched more pages than allowed.
async fn over_the_bound(database: &Database<Postgres>, name: &str) -> Result<Vec<String>, Failure> {
    let statements = format!(
        "SELECT '{name}: ' || (shared_blks_hit + shared_blks_read) / calls || ' pages, ' || rows / calls || ' rows, '
            || calls || ' calls: ' || left(regexp_replace(query, '\\s+', ' ', 'g'), 400)
         FROM pg_stat_statements WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
            AND query ~ '(inbox|idempotency|saga)_?' AND query !~ 'the test' AND toplevel
            AND (shared_blks_hit + shared_blks_read) / calls > {PAGES} + {PAGES_A_ROW} * (rows / calls)
                + CASE WHEN query LIKE 'DELETE%' THEN {PAGES_OF_MAINTENANCE}
                    WHEN query ~ 'inbox_maintain' THEN 2 * {PAGES_OF_MAINTENANCE}
                    WHEN query ~ 'AS is_(of_key|named)\\M' THEN {PAGES_OF_A_NAME}
                    WHEN query ~ 'pg_get_serial_sequence' THEN {PAGES_OF_NUMBERS}
                    WHEN query ~ 'AS scanned, count' THEN {PAGES_OF_SURVEY}
                    WHEN query ~ 'AS (recent|failing|open)\\M' THEN {PAGES_OF_ACTIVITY} ELSE 0 END"
    );
    let calls =
        database.integer("SELECT count(*) FROM pg_stat_statements WHERE query ~ 'inbox_dead_letter'").await?;
    assert!(calls > 3, "the statements were not counted");
    database.texts(&statements).await
}
