//! Rows that stay in an adopted table that deletes them. Each would be sent twice.

use sqlx::{Executor as _, Postgres};
use tests::relay_process::Config;
use tests::{Database, Failure, Outcome, Role, Stage};

use super::{RELAY, adopt, adopted};

const BROKER: &str = "[pipeline.kafka]\nbootstrap_servers = [\"127.0.0.1:1\"]\n";
const TABLE: &str =
    "CREATE TABLE old (id bigserial PRIMARY KEY, tenant text, body json, sent timestamptz DEFAULT NULL)";
const DELETE: &str = "[pipeline.adopt]\ntable = \"old\"\ntopic = \"t\"\nwhen_sent = \"delete\"\n\
                      columns = { key = \"tenant\", kind = \"\", payload = \"body\" }\n";
const MARK: &str = "[pipeline.adopt]\ntable = \"old\"\ntopic = \"t\"\npending = \"sent\"\n\
                    columns = { key = \"tenant\", kind = \"\", payload = \"body\" }\n";

/// A trigger or rule that keeps a row of the table, and the statement that drops it.
const KEEPERS: [[&str; 2]; 3] = [
    [
        "CREATE TRIGGER keep BEFORE DELETE ON old FOR EACH ROW EXECUTE FUNCTION keep()",
        "DROP TRIGGER keep ON old",
    ],
    ["CREATE RULE keep AS ON DELETE TO old DO INSTEAD NOTHING", "DROP RULE keep ON old"],
    [
        "CREATE TRIGGER a_move AFTER INSERT ON old FOR EACH ROW EXECUTE FUNCTION move()",
        "DROP TRIGGER a_move ON old",
    ],
];

async fn scene(stage: &Stage, section: &str) -> Result<(Database<Postgres>, Config), Failure> {
    let database = Database::<Postgres>::migrated(stage).await?;
    database.execute(TABLE).await?;
    database.let_use(Role::Producer, "old").await?;
    let config = Config::with_section(stage, RELAY, &database.url, BROKER, section)?;
    Ok((database, config))
}

async fn produce(database: &Database<Postgres>, tenant: &str) -> Outcome {
    let insert = format!("INSERT INTO old (tenant, body) VALUES ('{tenant}', '1')");
    database.producer.execute(sqlx::AssertSqlSafe(insert)).await?;
    Ok(())
}

/// Checks that a producer gets an error for a row that would be sent twice.
async fn is_refused(database: &Database<Postgres>, tenant: &str, why: &str) {
    let told = produce(database, tenant).await.map_err(|error| error.to_string());
    let is_named = |text: &String| text.contains("row ") && text.contains(" of old would be sent twice");
    assert!(told.as_ref().is_err_and(is_named), "{told:?}: {why}");
}

async fn messages(database: &Database<Postgres>) -> Result<Vec<String>, Failure> {
    database.texts("SELECT key FROM outbox_message ORDER BY id").await
}

/// Goal: a producer whose row cannot be deleted gets an error and sends no message, whatever keeps
/// the row; `over` refuses what the catalogs show. Oracle: the errors of `over` and of the
/// producer's statements; messages and rows; the state that `status` reports.
pub(super) async fn undeletable(stage: Stage) -> Outcome {
    let (database, config) = scene(&stage, DELETE).await?;
    let url = &database.url;
    database
        .execute(
            "ALTER TABLE old ENABLE ROW LEVEL SECURITY;
             CREATE POLICY enters ON old FOR INSERT WITH CHECK (true);
             CREATE POLICY seen ON old FOR SELECT USING (true)",
        )
        .await?;
    let parts = ["under row level security: outbox_test_producer", "CREATE POLICY", "FOR DELETE"];
    adopt(&config, url, "over", &[]).await?.refused(2, &parts)?;
    database.execute("CREATE POLICY leaves ON old FOR DELETE USING (tenant = 'a')").await?;
    assert_eq!(adopted(&config, url, "over", 0).await?["outcome"], "adopted");
    produce(&database, "a").await?;
    is_refused(&database, "b", "no policy lets it delete this row").await;

    database
        .execute(
            "ALTER TABLE old DISABLE ROW LEVEL SECURITY;
             CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
             CREATE FUNCTION move() RETURNS trigger LANGUAGE plpgsql AS
                 'BEGIN UPDATE old SET id = -NEW.id WHERE id = NEW.id; RETURN NULL; END'",
        )
        .await?;
    for [keep, drop] in KEEPERS {
        database.execute(keep).await?;
        is_refused(&database, "c", keep).await;
        // The catalogs do not show that a trigger moves rows.
        let code = if keep.contains("a_move") { 0 } else { 2 };
        let ran = adopt(&config, url, "status", &[]).await?.ended(code)?;
        assert!(code == 0 || ran.out.contains("keep on old may prevent the deletion of rows"), "{ran:?}");
        database.execute(drop).await?;
    }
    adopt(&config, url, "status", &[]).await?.done()?;
    assert_eq!(messages(&database).await?, ["a"]);
    assert_eq!(database.integer("SELECT count(*) FROM old").await?, 0, "nothing waits");
    Ok(())
}

/// Goal: a row that was handed over and is in the table again, as after a restore, is sent again
/// neither by `over` nor after the way back, and `status` advises neither. Oracle: exit codes
/// and texts; messages; a row that no trigger has seen is still imported.
pub(super) async fn handed_over(stage: Stage) -> Outcome {
    let (database, config) = scene(&stage, DELETE).await?;
    let url = &database.url;
    assert_eq!(adopted(&config, url, "over", 0).await?["outcome"], "adopted");
    produce(&database, "a").await?;
    let unseen = |row: &str| {
        let insert = format!("INSERT INTO old (id, tenant, body) VALUES {row}");
        format!("BEGIN; SET LOCAL session_replication_role = replica; {insert}; COMMIT")
    };
    database.execute(&unseen("(1, 'a', '1')")).await?;
    let told =
        "handed over but not deleted: 1 row of old, the first with the id \"1\"; each would be sent twice";
    let ran = adopt(&config, url, "status", &[]).await?.ended(3)?;
    assert!(ran.out.contains(told) && !ran.out.contains("imports them"), "{ran:?}");
    for verb in ["over", "back"] {
        adopt(&config, url, verb, &[]).await?.refused(2, &[told, "delete them"])?;
    }
    assert_eq!(messages(&database).await?, ["a"]);
    database.execute("DELETE FROM old WHERE id = 1").await?;
    adopt(&config, url, "status", &[]).await?.done()?;

    database.execute(&unseen("(9, 'x', '1')")).await?;
    let ran = adopt(&config, url, "status", &[]).await?.ended(3)?;
    assert!(ran.out.contains("relay adopt over imports them"), "{ran:?}");
    let over = adopted(&config, url, "over", 0).await?;
    assert_eq!((&over["outcome"], &over["imported"]), (&"imported".into(), &1.into()), "{over}");
    assert_eq!(messages(&database).await?, ["a", "x"]);
    assert_eq!(adopted(&config, url, "back", 0).await?["outcome"], "given back");
    Ok(())
}

/// Goal: an import whose rows still wait afterwards is undone: the next one would send them again.
/// Oracle: the error; no trigger and no message; the import succeeds without the trigger at fault.
pub(super) async fn undone(stage: Stage) -> Outcome {
    let (database, config) = scene(&stage, MARK).await?;
    let url = &database.url;
    database
        .execute(
            "CREATE FUNCTION unmark() RETURNS trigger LANGUAGE plpgsql AS
                 'BEGIN NEW.sent := NULL; RETURN NEW; END';
             CREATE TRIGGER unmark BEFORE UPDATE ON old FOR EACH ROW EXECUTE FUNCTION unmark()",
        )
        .await?;
    produce(&database, "a").await?;
    let parts = ["row 1 of old would be sent twice: it was imported but still waits"];
    adopt(&config, url, "over", &[]).await?.refused(2, &parts)?;
    assert_eq!(messages(&database).await?, [""; 0]);
    let state = adopted(&config, url, "status", 2).await?["state"].clone();
    assert_eq!(state, "not-adopted");
    database.execute("DROP TRIGGER unmark ON old").await?;
    assert_eq!(adopted(&config, url, "over", 0).await?["imported"], 1);
    assert_eq!(messages(&database).await?, ["a"]);
    Ok(())
}
