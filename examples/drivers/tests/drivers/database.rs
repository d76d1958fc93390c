//! The database of a run, and what is stored in it.

use std::env;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering};

use migrations::{Line, Migrator};
use sqlx::{AssertSqlSafe, Connection, PgConnection, Postgres};

static URL: OnceLock<String> = OnceLock::new();

/// Returns the address of the database.
pub(crate) fn url() -> &'static str {
    URL.get().expect("the database was created")
}

/// Runs a future to its end on this thread.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime").block_on(future)
}

fn server() -> String {
    env::var("OUTBOX_POSTGRES_URL").expect("OUTBOX_POSTGRES_URL names a server: cargo xtask services env")
}

/// Makes a database with the tables of outbox, inbox and the business. Returns its name.
pub(crate) fn create() -> String {
    let name = format!("drivers_{}", std::process::id());
    let server_url = server();
    let host = server_url.rsplit_once('/').expect("a URL with a database").0;
    let url = format!("{host}/{name}");
    block_on(async {
        let mut connection = PgConnection::connect(&server()).await.expect("a server");
        let sql = AssertSqlSafe(format!("CREATE DATABASE {name}"));
        sqlx::raw_sql(sql).execute(&mut connection).await.expect("a database");
        let mut connection = PgConnection::connect(&url).await.expect("a database");
        for line in [Line::Outbox, Line::Inbox] {
            Migrator::<Postgres>::new(line).up(&mut connection).await.expect("a schema");
        }
        let tables = include_str!("../../../clients/tables.sql");
        sqlx::raw_sql(tables).execute(&mut connection).await.expect("tables");
        let days = "SELECT inbox_expire_days(current_date - 14);
            SELECT inbox_create_days(current_date - 14, current_date + 7)";
        sqlx::raw_sql(days).execute(&mut connection).await.expect("days");
    });
    URL.set(url).expect("one database");
    name
}

/// Removes the database.
pub(crate) fn remove(name: &str) {
    block_on(async {
        let mut connection = PgConnection::connect(&server()).await.expect("a server");
        let sql = AssertSqlSafe(format!("DROP DATABASE {name} WITH (FORCE)"));
        sqlx::raw_sql(sql).execute(&mut connection).await.expect("it is dropped");
    });
}

/// Reads one text over a connection of its own; empty if there is none.
pub(crate) fn text(sql: &str) -> String {
    block_on(async {
        let mut connection = PgConnection::connect(url()).await.expect("a connection");
        let query = sqlx::query_scalar::<_, Option<String>>(AssertSqlSafe(sql.to_owned()));
        query.fetch_optional(&mut connection).await.expect(sql).flatten().unwrap_or_default()
    })
}

/// Executes a statement over a connection of its own.
pub(crate) fn execute(sql: &str) {
    block_on(async {
        let mut connection = PgConnection::connect(url()).await.expect("a connection");
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut connection).await.expect(sql);
    });
}

/// Returns a number that no other case uses.
pub(crate) fn order() -> i64 {
    static NEXT: AtomicI64 = AtomicI64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Returns how many orders have a number.
pub(crate) fn orders(order: i64) -> String {
    text(&format!("SELECT count(*)::text FROM orders WHERE id = {order}"))
}

/// Returns how many invoices an order has.
pub(crate) fn invoices(order: i64) -> String {
    text(&format!("SELECT count(*)::text FROM invoice WHERE order_id = {order}"))
}

/// Returns how many messages an order has.
pub(crate) fn messages(order: i64) -> String {
    text(&format!(
        r#"SELECT count(*)::text FROM outbox_message
            WHERE position(convert_to('"order":{order},', 'UTF8') IN payload) > 0"#
    ))
}

/// Returns a column of the dead letters of a message.
pub(crate) fn letter(message: &statements::message::Message, column: &str) -> String {
    text(&format!("SELECT {column}::text FROM inbox_dead_letter WHERE message_id = '{}'", message.id))
}
