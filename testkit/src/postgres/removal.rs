//! Removes schemas of worlds.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use migrations::Template;
use sqlx::PgConnection;

use super::name::Name;
use super::server::Server;
use crate::failure::Failure;

/// Longer than the default `deadlock_timeout`, after which autovacuum gives way.
const PATIENT: &str = "SET client_min_messages = warning; SET statement_timeout = 0; SET lock_timeout = '2s'";

/// Ends the sessions of this role that hold a lock on a table of the schema.
const END_SESSIONS: &str = "SELECT pg_terminate_backend(holder.pid) FROM (
        SELECT DISTINCT l.pid FROM pg_locks AS l
        JOIN pg_class AS c ON c.oid = l.relation
        JOIN pg_stat_activity AS a ON a.pid = l.pid
        WHERE l.granted AND l.pid <> pg_backend_pid() AND a.usename = current_user
            AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
            AND c.relnamespace = to_regnamespace($1)) AS holder";

/// Schemas that this role may remove.
const SCHEMAS: &str =
    "SELECT nspname::text FROM pg_namespace WHERE starts_with(nspname, 'testkit_') AND pg_has_role(nspowner, 'USAGE')
    ORDER BY nspname";

/// Maximum tries to remove a schema. Sessions of other roles may hold locks in it.
const TRIES: u32 = 5;

/// SQLSTATEs of a lock that was not granted in time and of a deadlock.
const IN_USE: [&str; 2] = ["55P03", "40P01"];

/// Removes the schemas that processes have left in the database of this URL, because they were
/// killed or lost their server. Returns the names of the schemas. Those of running tests stay.
///
/// # Errors
/// The server cannot be reached, or does not remove a schema.
pub async fn remove_leftovers(url: impl AsRef<str>) -> Result<Vec<String>, Failure> {
    let mut connection = Server::at(url.as_ref())?.connect().await?;
    remove_unlocked(&mut connection).await.map_err(Failure::during("remove leftover schemas"))
}

/// Does the same for the first world of this process in a database, and reports it.
pub(super) async fn remove_leftovers_once(server: &Server, connection: &mut PgConnection) {
    if !is_first_in(server.place()) {
        return;
    }
    match remove_unlocked(connection).await {
        Ok(names) => names.iter().for_each(|name| {
            eprintln!("testkit: removed the schema {name}, which a killed run left behind");
        }),
        Err(error) => eprintln!("testkit: cannot remove schemas that killed runs left behind: {error}"),
    }
}

/// Returns whether this is the first request of this process for the database.
fn is_first_in(place: String) -> bool {
    static SEEN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    SEEN.lock().unwrap_or_else(PoisonError::into_inner).insert(place)
}

/// Removes all schemas that no world has locked.
async fn remove_unlocked(connection: &mut PgConnection) -> Result<Vec<String>, sqlx::Error> {
    let found: Vec<String> = sqlx::query_scalar(SCHEMAS).fetch_all(&mut *connection).await?;
    let mut removed = Vec::new();
    for name in found.iter().filter_map(|name| Name::read(name)) {
        let is_left: bool = sqlx::query_scalar("SELECT pg_try_advisory_lock($1)")
            .bind(name.number)
            .fetch_one(&mut *connection)
            .await?;
        if !is_left {
            continue;
        }
        let outcome = remove_existing(connection, &name).await;
        let unlock = sqlx::query("SELECT pg_advisory_unlock($1)").bind(name.number);
        unlock.execute(&mut *connection).await?;
        if outcome? {
            removed.push(name.to_string());
        }
    }
    Ok(removed)
}

/// Removes a schema. Returns false if another process has removed it already.
async fn remove_existing(connection: &mut PgConnection, name: &Name) -> Result<bool, sqlx::Error> {
    let exists = sqlx::query_scalar("SELECT to_regnamespace($1) IS NOT NULL").bind(name.as_str());
    let exists: bool = exists.fetch_one(&mut *connection).await?;
    if exists {
        remove(connection, name).await?;
    }
    Ok(exists)
}

/// Removes a schema with everything in it, if it exists.
pub(super) async fn remove(connection: &mut PgConnection, name: &Name) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(PATIENT).execute(&mut *connection).await?;
    let remove = Template::new("DROP SCHEMA IF EXISTS {name} CASCADE");
    let remove = remove.identifier("name", name.identifier()).render();
    let mut tries = 1;
    loop {
        sqlx::query(END_SESSIONS).bind(name.as_str()).execute(&mut *connection).await?;
        match sqlx::query(&remove).execute(&mut *connection).await {
            Err(error) if is_in_use(&error) && tries < TRIES => tries += 1,
            removed => return removed.map(drop),
        }
    }
}

fn is_in_use(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.is_some_and(|code| IN_USE.contains(&&*code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_database_has_a_first_world() {
        let place = |name: &str| format!("db.example.com:5432/{name}");
        assert!(is_first_in(place("orders")) && !is_first_in(place("orders")));
        assert!(is_first_in(place("billing")));
    }
}
