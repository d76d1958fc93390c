//! `relay adopt`: a foreign outbox table is handed over to the relay and back while producers
//! write. A table that cannot be adopted is left unchanged.

mod by_hand;
mod connect;
mod debezium;
mod escapes;
mod frameworks;
mod leading;
mod lost;
mod refused;
mod roles;
mod status_column;
mod staying;
mod unseen;

use std::time::Duration;

use serde_json::Value;
use sqlx::{AssertSqlSafe, PgPool, Postgres};
use tests::facts::Fact;
use tests::relay_process::Config;
use tests::{Database, Failure, Outcome, eventually};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::Ran;

/// Name of the relay and its pipeline.
const RELAY: &str = "accounts";

/// A counter for each account. Its row lock makes the numbers of a key ascend in commit order, so
/// gaps and reversals show.
const ACCOUNTS: &str = "\
CREATE TABLE account (key text PRIMARY KEY, seq bigint NOT NULL);
INSERT INTO account SELECT 'account-' || n, 0 FROM generate_series(1, 8) AS n;
CREATE TABLE placed (key text NOT NULL, seq bigint NOT NULL);";

const WRITERS: usize = 4;
const PAUSE: Duration = Duration::from_millis(8);

tests::cases! { "adopt/{case}/{on}":
    postgres kafka {
        a_polled_table_goes_over_and_back_under_writers = status_column::goes_over_and_back,
        frameworks_go_over_and_back_under_writers = frameworks::go_over_and_back,
    }
    postgres kafka + xtask {
        a_table_of_debezium_goes_over_and_back_under_writers = debezium::goes_over_and_back,
    }
    postgres kafka + xtask debezium {
        debezium_itself_goes_over_and_back_under_writers = connect::goes_over_and_back,
    }
    postgres {
        what_cannot_be_adopted_is_left_as_it_is = refused::refused,
        an_open_writer_stops_the_move = refused::an_open_writer,
        a_relay_that_may_publish_stops_the_move = leading::relays,
        a_lost_connection_holds_no_producer_back = lost::connections,
        the_printed_sql_does_the_same = by_hand::the_printed_sql,
        a_change_that_nothing_sends_is_refused = unseen::changes,
        rows_that_no_trigger_saw_are_imported = unseen::rows,
        a_document_with_any_escape_is_handed_over = escapes::handed_over,
        a_row_that_cannot_be_deleted_is_refused = staying::undeletable,
        rows_that_stayed_are_not_imported_again = staying::handed_over,
        an_import_that_leaves_rows_is_undone = staying::undone,
        a_polled_table_of_a_server_that_hides_its_position_goes_over = unseen::position,
        a_role_that_others_insert_as_needs_the_rights = roles::inserted_as,
        a_role_that_may_execute_nothing_needs_the_rights = roles::hardened,
    }
}

/// Runs `relay adopt` as the owner of the old table.
async fn adopt(config: &Config, owner: &str, verb: &str, more: &[&str]) -> Result<Ran, Failure> {
    let signed = ["--actor", "ann", "--note", "a test"];
    let signed: &[&str] = if matches!(verb, "over" | "back") { &signed } else { &[] };
    let path = config.path().to_str().ok_or("the path is not UTF-8")?;
    let base = ["adopt", verb, "--config", path];
    Ran::on(owner, &[&base[..], signed, more].concat()).await
}

/// Does the same with JSON output, and checks the exit code.
async fn adopted(config: &Config, owner: &str, verb: &str, code: i32) -> Result<Value, Failure> {
    adopt(config, owner, verb, &["--output", "json"]).await?.ended(code)?.json()
}

/// Producers that write until stopped, and roll some of their transactions back.
struct Writers {
    stop: watch::Sender<bool>,
    tasks: JoinSet<Outcome>,
}

impl Writers {
    /// Starts the producers. `statements` write a message: $1 is the account, $2 its number.
    fn start(pool: &PgPool, statements: &[String]) -> Self {
        let (stop, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        for writer in 0..WRITERS {
            let (pool, statements, stopped) = (pool.clone(), statements.to_vec(), stopped.clone());
            tasks.spawn(async move {
                for turn in 0.. {
                    if *stopped.borrow() {
                        break;
                    }
                    let key = format!("account-{}", 1 + (writer * 3 + turn) % 8);
                    write(&pool, &key, &statements, turn % 7 == 6).await?;
                    tokio::time::sleep(PAUSE).await;
                }
                Ok(())
            });
        }
        Self { stop, tasks }
    }

    /// Stops the producers. Each of their statements must have succeeded.
    async fn stop(mut self) -> Outcome {
        self.stop.send_replace(true);
        while let Some(ended) = self.tasks.join_next().await {
            ended??;
        }
        Ok(())
    }
}

async fn write(pool: &PgPool, key: &str, statements: &[String], is_rolled_back: bool) -> Outcome {
    let mut tx = pool.begin().await?;
    let next = "UPDATE account SET seq = seq + 1 WHERE key = $1 RETURNING seq";
    let seq: i64 = sqlx::query_scalar(next).bind(key).fetch_one(&mut *tx).await?;
    sqlx::query("INSERT INTO placed VALUES ($1, $2)").bind(key).bind(seq).execute(&mut *tx).await?;
    for statement in statements {
        let statement = AssertSqlSafe(statement.clone());
        sqlx::query(statement).bind(key).bind(seq).execute(&mut *tx).await?;
    }
    if is_rolled_back {
        tx.rollback().await?;
    } else {
        tx.commit().await?;
    }
    Ok(())
}

/// Returns the committed rows for the checker.
async fn placed(pool: &PgPool) -> Result<Vec<Fact>, Failure> {
    let rows: Vec<(String, i64)> = sqlx::query_as("SELECT key, seq FROM placed").fetch_all(pool).await?;
    Ok(rows.into_iter().map(|(key, seq)| Fact::new(key, seq)).collect())
}

/// Returns a message's payload as a fact.
fn fact(payload: &[u8]) -> Result<Fact, Failure> {
    let value: Value = serde_json::from_slice(payload)?;
    let key = value["key"].as_str().ok_or("a payload without a key")?;
    Ok(Fact::new(key, value["seq"].as_i64().ok_or("a payload without a number")?))
}

/// Waits until a count has reached `wanted`.
async fn at_least(database: &Database<Postgres>, count: &str, wanted: i64) -> Outcome {
    eventually(&format!("{wanted}: {count}"), || async {
        Ok((database.integer(count).await? >= wanted).then_some(()))
    })
    .await
}
