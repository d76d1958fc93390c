//! Changes to an adopted table that produce no message. They are refused, or imported later.

use sqlx::{Executor as _, Postgres};
use tests::relay_process::Config;
use tests::{Database, Outcome, Role, Stage};

use super::{RELAY, adopt, adopted};

const BROKER: &str = "[pipeline.kafka]\nbootstrap_servers = [\"127.0.0.1:1\"]\n";

/// Type of the column that marks waiting rows, its value for a waiting row, and the matching
/// section.
const MARKS: [(&str, &str, &str); 3] = [
    ("timestamptz", "NULL", ""),
    ("boolean", "false", ""),
    ("text", "'NEW'", "pending_value = \"NEW\"\nsent_value = \"SENT\"\n"),
];

/// Adopts a table with one row for each account, like a producer that keeps only the latest state.
async fn table(
    stage: &Stage,
    database: &Database<Postgres>,
    number: usize,
) -> Result<Config, tests::Failure> {
    let (kind, waits, words) = MARKS[number];
    let table = format!("latest_{number}");
    database
        .execute(&format!(
            "CREATE TABLE {table} (id bigserial PRIMARY KEY, account text UNIQUE, body json, note text,
                 sent {kind} DEFAULT {waits})"
        ))
        .await?;
    database.let_use(Role::Producer, &table).await?;
    let section = format!(
        "[pipeline.adopt]\ntable = {table:?}\ntopic = \"t\"\npending = \"sent\"\n{words}\
         columns = {{ key = \"account\", kind = \"\", payload = \"body\" }}\n"
    );
    let config = Config::with_section(stage, RELAY, &database.url, BROKER, &section)?;
    assert_eq!(adopted(&config, &database.url, "over", 0).await?["outcome"], "adopted");
    Ok(config)
}

/// Goal: a producer that changes a row after its handover, by an upsert or later, gets an error,
/// because no message would carry the change. A change that the old relay would not have sent
/// either succeeds. Oracle: the error of the producer's statement, and the messages.
pub(super) async fn changes(stage: Stage) -> Outcome {
    let database = Database::<Postgres>::migrated(&stage).await?;
    for (number, (_, waits, _)) in MARKS.into_iter().enumerate() {
        let config = table(&stage, &database, number).await?;
        let of_table = |sql: &str| sql.replace('@', &format!("latest_{number}")).replace("WAITS", waits);
        let produce = async |sql: &str| database.producer.execute(sqlx::AssertSqlSafe(of_table(sql))).await;
        produce("INSERT INTO @ (account, body) VALUES ('a', '1')").await?;
        for sql in [
            "INSERT INTO @ (account, body) VALUES ('a', '2') ON CONFLICT (account) DO UPDATE
                 SET body = EXCLUDED.body, sent = EXCLUDED.sent",
            "INSERT INTO @ (account, body) VALUES ('a', '1') ON CONFLICT (account) DO UPDATE SET sent = WAITS",
            "UPDATE @ SET sent = WAITS",
            "UPDATE @ SET body = '2'",
            "UPDATE @ SET account = 'b'",
        ] {
            let told = produce(sql).await.map_err(|error| error.to_string());
            assert!(
                told.as_ref().is_err_and(|text| text.contains("no message tells of this change")),
                "{told:?}: {sql}"
            );
        }
        for sql in [
            "INSERT INTO @ (account, body) VALUES ('a', '2') ON CONFLICT DO NOTHING",
            "UPDATE @ SET note = 'looked at', body = body",
            "DELETE FROM @ WHERE account = 'none'",
        ] {
            produce(sql).await?;
        }
        // A trigger that runs after the one that marks the row.
        database
            .execute(&of_table(
                "CREATE FUNCTION late_@() RETURNS trigger LANGUAGE plpgsql AS
                     'BEGIN NEW.sent := DEFAULT_@(); RETURN NEW; END';
                 CREATE FUNCTION DEFAULT_@() RETURNS text LANGUAGE sql AS $$ SELECT WAITS::text $$;
                 CREATE TRIGGER z_late BEFORE INSERT ON @ FOR EACH ROW EXECUTE FUNCTION late_@()",
            ))
            .await?;
        let told =
            produce("INSERT INTO @ (account, body) VALUES ('c', '3')").await.map_err(|it| it.to_string());
        assert!(told.as_ref().is_err_and(|text| text.contains("would be sent twice")), "{told:?}");
        database.execute(&of_table("DROP TRIGGER z_late ON @")).await?;
        let status = adopted(&config, &database.url, "status", 0).await?;
        assert_eq!((&status["state"], &status["waiting"]), (&"adopted".into(), &0.into()), "{status}");
        assert_eq!(database.texts("SELECT convert_from(payload, 'UTF8') FROM outbox_message").await?, ["1"]);
        database.execute("TRUNCATE outbox_message").await?;
        assert_eq!(adopted(&config, &database.url, "back", 0).await?["outcome"], "given back");
        produce("UPDATE @ SET body = '9'").await?;
    }
    Ok(())
}

/// Goal: rows that no trigger has seen are shown as waiting, and `over` hands them over although
/// the table is already adopted. Oracle: exit codes, the outcome, messages, and a second `over`.
pub(super) async fn rows(stage: Stage) -> Outcome {
    let database = Database::<Postgres>::migrated(&stage).await?;
    let config = table(&stage, &database, 0).await?;
    for replicated in ["x", "y"] {
        database
            .execute(&format!(
                "BEGIN; SET LOCAL session_replication_role = replica;
                 INSERT INTO latest_0 (account, body) VALUES ('{replicated}', '1'); COMMIT"
            ))
            .await?;
    }
    let ran = adopt(&config, &database.url, "status", &[]).await?.ended(3)?;
    assert!(ran.out.contains("no trigger has seen the waiting rows"), "{ran:?}");
    let over = adopted(&config, &database.url, "over", 0).await?;
    assert_eq!((&over["outcome"], &over["imported"]), (&"imported".into(), &2.into()), "{over}");
    adopt(&config, &database.url, "status", &[]).await?.done()?;
    assert_eq!(adopted(&config, &database.url, "over", 0).await?["outcome"], "unchanged");
    assert_eq!(database.texts("SELECT key FROM outbox_message ORDER BY id").await?, ["x", "y"]);
    let off = "ALTER TABLE latest_0 DISABLE TRIGGER outbox_adopt_update";
    database.execute(off).await?;
    let ran = adopt(&config, &database.url, "status", &[]).await?.ended(2)?;
    assert!(ran.out.contains("updates of rows are lost"), "{ran:?}");
    Ok(())
}

/// Goal: a poller's table can be adopted on a server that does not report the position of its
/// write-ahead log, such as Aurora. Oracle: exit codes, and the messages; with a publication, whose
/// slot would have to reach the position, `over` fails and changes nothing.
pub(super) async fn position(stage: Stage) -> Outcome {
    let database = Database::<Postgres>::migrated(&stage).await?;
    database.execute("CREATE TABLE slotted (id bigserial PRIMARY KEY, body json)").await?;
    database.execute("CREATE PUBLICATION of_slot FOR TABLE slotted").await?;
    database.refuse_wal_functions().await?;
    let config = table(&stage, &database, 0).await?;
    database.producer.execute("INSERT INTO latest_0 (account, body) VALUES ('a', '1')").await?;
    assert_eq!(database.texts("SELECT key FROM outbox_message").await?, ["a"]);
    adopt(&config, &database.url, "status", &[]).await?.done()?;
    assert_eq!(adopted(&config, &database.url, "back", 0).await?["outcome"], "given back");

    let section = "[pipeline.adopt]\ntable = \"slotted\"\ntopic = \"t\"\npublication = \"of_slot\"\n\
                   columns = { key = \"\", kind = \"\", payload = \"body\" }\n";
    let config = Config::with_section(&stage, RELAY, &database.url, BROKER, section)?;
    let parts = ["read the position in the write-ahead log"];
    adopt(&config, &database.url, "over", &[]).await?.refused(2, &parts)?;
    let triggers = "SELECT count(*) FROM pg_trigger WHERE tgname ~ '^outbox_adopt'";
    assert_eq!(database.integer(triggers).await?, 0);
    Ok(())
}
