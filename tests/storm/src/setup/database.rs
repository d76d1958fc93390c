//! Databases and tables.

use migrations::{Identifier, Line, Migrator, Template};
use sqlx::{Connection, PgConnection, Postgres, Sqlite, SqliteConnection};
use url::Url;

use super::{ACCOUNTS, Plot, roles};
use crate::Failure;
use crate::stage::Database;
use crate::workload::Workload;

/// Creates the databases on a server.
pub(super) async fn postgres(plot: &Plot, server: &Url) -> Result<Database, Failure> {
    let mut admin = PgConnection::connect(server.as_str()).await?;
    if plot.never_analysed {
        sqlx::query(NEVER_ANALYSE).execute(&mut admin).await?;
        sqlx::query(LOAD_SETTINGS).execute(&mut admin).await?;
    }
    for part in PARTS {
        let create = Template::new("CREATE DATABASE {name}").identifier("name", &name(plot, part)?).render();
        sqlx::query(&create).execute(&mut admin).await?;
    }
    admin.close().await?;
    let database = Database {
        producers: url(plot, server, PRODUCERS)?,
        consumers: url(plot, server, CONSUMERS)?,
        sagas: url(plot, server, SAGAS)?,
        bank: url(plot, server, BANK)?,
        accounts: ACCOUNTS,
        never_analysed: plot.never_analysed,
    };
    let mut producers = PgConnection::connect(&database.producers).await?;
    let mut consumers = PgConnection::connect(&database.consumers).await?;
    let mut sagas = PgConnection::connect(&database.sagas).await?;
    let mut bank = PgConnection::connect(&database.bank).await?;
    make_tables::<Postgres>(&mut producers, &mut consumers).await?;
    super::sagas::make_tables::<Postgres>(&mut sagas, &mut bank).await?;
    for statement in WATCH_LEASES {
        sqlx::raw_sql(statement).execute(&mut producers).await?;
    }
    roles::grant(&mut producers, &mut consumers).await?;
    roles::grant_sagas(&mut sagas, &mut bank).await?;
    sagas.close().await?;
    bank.close().await?;
    producers.close().await?;
    consumers.close().await?;
    Ok(database)
}

/// Creates the SQLite files.
pub(super) async fn sqlite(plot: &Plot) -> Result<Database, Failure> {
    let url = |part: &str| format!("sqlite://{}?mode=rwc", plot.file(&format!("{part}.db")).display());
    let database = Database {
        producers: url(PRODUCERS),
        consumers: url(CONSUMERS),
        sagas: url(SAGAS),
        bank: url(BANK),
        accounts: ACCOUNTS,
        never_analysed: plot.never_analysed,
    };
    let open = async |url: &str| -> Result<SqliteConnection, Failure> {
        Ok(SqliteConnection::connect_with(&outbox::connect::sqlite_options(url)?).await?)
    };
    let (mut producers, mut consumers) = (open(&database.producers).await?, open(&database.consumers).await?);
    let (mut sagas, mut bank) = (open(&database.sagas).await?, open(&database.bank).await?);
    make_tables::<Sqlite>(&mut producers, &mut consumers).await?;
    super::sagas::make_tables::<Sqlite>(&mut sagas, &mut bank).await?;
    sagas.close().await?;
    bank.close().await?;
    producers.close().await?;
    consumers.close().await?;
    Ok(database)
}

/// Drops all databases, even those with connections.
pub(super) async fn drop_postgres(plot: &Plot, server: &Url) -> Result<(), Failure> {
    let mut admin = PgConnection::connect(server.as_str()).await?;
    for part in PARTS {
        let drop = Template::new("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
        sqlx::query(&drop.identifier("name", &name(plot, part)?).render()).execute(&mut admin).await?;
    }
    Ok(admin.close().await?)
}

/// Lets the server analyse tables again.
pub(super) async fn analyse_again(server: &Url) -> Result<(), Failure> {
    let mut admin = PgConnection::connect(server.as_str()).await?;
    sqlx::query(ANALYSE_AGAIN).execute(&mut admin).await?;
    sqlx::query(LOAD_SETTINGS).execute(&mut admin).await?;
    Ok(admin.close().await?)
}

/// The highest threshold there is. Vacuum is not affected: without it, tables would grow by their
/// dead rows, which is another fault.
const NEVER_ANALYSE: &str = "ALTER SYSTEM SET autovacuum_analyze_threshold = 2147483647";
const ANALYSE_AGAIN: &str = "ALTER SYSTEM RESET autovacuum_analyze_threshold";
const LOAD_SETTINGS: &str = "SELECT pg_reload_conf()";

const PRODUCERS: &str = "producers";
const CONSUMERS: &str = "consumers";
const SAGAS: &str = "sagas";
const BANK: &str = "bank";
const PARTS: [&str; 4] = [PRODUCERS, CONSUMERS, SAGAS, BANK];

fn text(plot: &Plot, part: &str) -> String {
    format!("{}_{part}", plot.name.replace('-', "_"))
}

fn name(plot: &Plot, part: &str) -> Result<Identifier, Failure> {
    Ok(Identifier::new(text(plot, part))?)
}

fn url(plot: &Plot, server: &Url, part: &str) -> Result<String, Failure> {
    let mut url = server.clone();
    url.set_path(&text(plot, part));
    Ok(url.to_string())
}

async fn make_tables<DB: Workload>(
    producers: &mut DB::Connection,
    consumers: &mut DB::Connection,
) -> Result<(), Failure> {
    Migrator::<DB>::new(Line::Outbox).up(producers).await?;
    Migrator::<DB>::new(Line::Inbox).up(consumers).await?;
    DB::create_business(producers).await?;
    Ok(DB::create_effects(consumers).await?)
}

/// Statements that record every change of a relay's row, with the session that made it. A session
/// gets the lease with the epoch of its last takeover, and writes everything under that epoch. The
/// function runs with its owner's rights, because a relay itself must not be able to write the
/// list.
const WATCH_LEASES: [&str; 3] = [
    "CREATE TABLE lease_change (place bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, session bigint NOT NULL, \
     relay text NOT NULL, before bigint, epoch bigint NOT NULL, holder text, moved boolean NOT NULL)",
    "CREATE FUNCTION watch_lease() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN \
     INSERT INTO lease_change (session, relay, before, epoch, holder, moved) \
     VALUES (pg_backend_pid(), NEW.relay, CASE WHEN TG_OP = 'UPDATE' THEN OLD.epoch END, NEW.epoch, NEW.holder, \
     TG_OP = 'INSERT' OR NEW.cursor IS DISTINCT FROM OLD.cursor); RETURN NULL; END $$",
    "CREATE TRIGGER watch_lease AFTER INSERT OR UPDATE ON outbox_relay FOR EACH ROW EXECUTE FUNCTION watch_lease()",
];
