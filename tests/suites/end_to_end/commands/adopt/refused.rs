//! Tables that cannot be adopted, and a situation in which no table can be adopted.

use sqlx::{Postgres, Sqlite};
use tests::relay_process::Config;
use tests::{Database, Failure, Outcome, Role, Stage};

use super::{RELAY, adopt};
use crate::commands::Ran;

const BROKER: &str = "[pipeline.kafka]\nbootstrap_servers = [\"127.0.0.1:1\"]\n";

/// A table that can be adopted. `@` stands for its name in a case.
const TABLE: &str = "CREATE TABLE @ (id bigint, topic text, aggregate_id text, type text, payload jsonb, \
                     sent_at timestamptz);";
const ROW: &str = "INSERT INTO @ VALUES (7, 'orders', 'a', 'placed', '{\"n\": 1}', NULL);";
const MAPPING: &str = "columns = { topic = \"topic\", key = \"aggregate_id\" }\n";
const PENDING: &str = "columns = { topic = \"topic\", key = \"aggregate_id\" }\npending = \"sent_at\"\n";

const DELETE: &str = "columns = { topic = \"topic\", key = \"aggregate_id\" }\nwhen_sent = \"delete\"\n";

/// SQL to run after the table was created, the section after its table name, and the expected parts
/// of the error: problem and remedy.
type Case = (&'static str, &'static str, &'static [&'static str]);

const CASES: [Case; 43] = [
    (
        "ALTER TABLE @ ALTER payload TYPE integer USING 1",
        PENDING,
        &["columns.payload = payload has the type integer", "jsonb, json, text, varchar or bytea"],
    ),
    (
        "ALTER TABLE @ DROP COLUMN type",
        PENDING,
        &["has no column type", "columns.kind", "the columns are id, topic"],
    ),
    ("DROP TABLE @", PENDING, &["there is no table @", "check `table`"]),
    ("CREATE SCHEMA s@; ALTER TABLE @ SET SCHEMA s@", PENDING, &["there is no table", "table = \"s@.@\""]),
    (
        "ALTER TABLE @ RENAME TO base_@; CREATE VIEW @ AS SELECT * FROM base_@",
        PENDING,
        &["@ is a view", "the table that it reads"],
    ),
    (
        "DROP TABLE @; CREATE TABLE @ (id bigint, topic text, aggregate_id text, type text, payload jsonb, \
      sent_at timestamptz) PARTITION BY RANGE (id)",
        PENDING,
        &["@ is a partitioned table", "plain table"],
    ),
    (
        "DROP TABLE @; CREATE TABLE p_@ (id bigint, topic text, aggregate_id text, \
      type text, payload jsonb, sent_at timestamptz) PARTITION BY RANGE (id); \
      CREATE TABLE @ PARTITION OF p_@ DEFAULT",
        PENDING,
        &["@ is a partition;"],
    ),
    (
        "INSERT INTO @ SELECT 8, NULL, 'a', 'placed', '1', NULL",
        PENDING,
        &["1 waiting row in @ with no topic (column topic)", "the id \"8\"", "set `topic`"],
    ),
    (
        "UPDATE @ SET topic = 'no spaces'",
        PENDING,
        &["an invalid topic", "the id \"7\": \"no spaces\"", "A-Z a-z 0-9"],
    ),
    ("UPDATE @ SET aggregate_id = repeat('k', 256)", PENDING, &["an invalid key", "1 to 255 bytes"]),
    ("UPDATE @ SET type = ''", PENDING, &["an invalid kind"]),
    ("UPDATE @ SET id = NULL", PENDING, &["an id that does not fit into a header", "columns.id"]),
    ("UPDATE @ SET payload = NULL", PENDING, &["with no payload", "null_payload = \"empty\""]),
    (ROW, PENDING, &["id is not unique: \"7\" is in several rows", "another column"]),
    (ROW, MAPPING, &["id is not unique: \"7\" is in several rows"]),
    (
        "ALTER TABLE @ ALTER sent_at TYPE text",
        PENDING,
        &["pending = sent_at has the type text", "pending_value = \"NEW\""],
    ),
    ("UPDATE @ SET sent_at = now(); ALTER TABLE @ ALTER sent_at SET NOT NULL", PENDING, &["never null"]),
    (
        "ALTER TABLE @ ALTER id TYPE uuid USING gen_random_uuid()",
        PENDING,
        &["order_by is missing, and id has the type uuid"],
    ),
    (
        "ALTER TABLE @ ALTER topic TYPE bytea USING 'x'",
        PENDING,
        &["columns.topic = topic has the type bytea"],
    ),
    (
        "ALTER TABLE @ ALTER aggregate_id TYPE timestamptz USING now()",
        PENDING,
        &[
            "columns.key = aggregate_id has the type timestamp with time zone",
            "settings of the producer's session",
        ],
    ),
    (
        "ALTER TABLE @ ALTER id TYPE money USING 7",
        PENDING,
        &["columns.id = id has the type money", "texts, numbers or UUIDs"],
    ),
    (
        "SELECT 1",
        "columns = { topic = \"topic\", key = \"aggregate_id\" }\npublication = \"nope_@\"\n",
        &["there is no publication nope_@", "publications here:"],
    ),
    (
        "CREATE PUBLICATION all_@ FOR ALL TABLES",
        "columns = { topic = \"topic\", key = \"aggregate_id\" }\n\
      publication = \"all_@\"\n",
        &["all_@ is FOR ALL TABLES", "FOR TABLE"],
    ),
    (
        "CREATE PUBLICATION schema_@ FOR TABLES IN SCHEMA public",
        "columns = { topic = \"topic\", key = \
      \"aggregate_id\" }\npublication = \"schema_@\"\n",
        &["schema_@ has all tables of the schema"],
    ),
    (
        "CREATE PUBLICATION part_@ FOR TABLE @ WHERE (id > 5); ALTER TABLE @ REPLICA IDENTITY FULL",
        "columns = { topic = \"topic\", key = \"aggregate_id\" }\npublication = \"part_@\"\n",
        &["part_@ has only some rows or columns of @"],
    ),
    (
        "CREATE PUBLICATION empty_@",
        "columns = { topic = \"topic\", key = \"aggregate_id\" }\n\
      publication = \"empty_@\"\n",
        &["empty_@ does not have @"],
    ),
    (
        "CREATE FUNCTION by_hand_@() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM outbox_enqueue_json(''x'', \
      NEW.payload); RETURN NULL; END'; CREATE TRIGGER by_hand AFTER INSERT ON @ FOR EACH ROW \
      EXECUTE FUNCTION by_hand_@()",
        PENDING,
        &["the trigger by_hand of @ already hands rows over", "drop the trigger"],
    ),
    (
        "GRANT INSERT ON @ TO outbox_test_observer",
        PENDING,
        &["may not append messages: outbox_test_observer", "TO outbox_test_observer", "GRANT"],
    ),
    (
        "DO $$ BEGIN EXECUTE format('ALTER TABLE @ RENAME TO %I', upper('@')); END $$",
        PENDING,
        &["there is no table @", "including upper case", "table = \"public.CASE_"],
    ),
    (
        "SELECT 1",
        "columns = { topic = \"Topic\", key = \"aggregate_id\" }\n",
        &["has no column Topic", "columns.topic", "the columns are id, topic"],
    ),
    (
        "SELECT 1",
        "columns = { topic = \"topic\", key = \"aggregate_id\", payload = { column = \"id\", path = [\"a\"] } }\n",
        &["columns.payload has a path into id, which has the type bigint", "jsonb, json, text or varchar"],
    ),
    (
        "ALTER TABLE @ ALTER payload TYPE text USING 'no JSON'",
        "columns = { topic = \"topic\", key = { column = \"payload\", path = [\"n\"] } }\npending = \"sent_at\"\n",
        &["a waiting row in @ has invalid JSON in a column with a path", "without a path"],
    ),
    (
        "SELECT 1",
        "columns = { topic = \"topic\", key = \"aggregate_id\", payload = { column = \"payload\", path = [\"m\"] } }\n\
      pending = \"sent_at\"\n",
        &["with no payload", "the id \"7\""],
    ),
    (
        "SELECT 1",
        "columns = { topic = \"topic\", key = \"aggregate_id\" }\ntopics = { bills = \"bills\" }\n\
      pending = \"sent_at\"\n",
        &["with no topic (column topic)", "the id \"7\""],
    ),
    (
        "SELECT 1",
        "columns = { topic = \"topic\", key = \"aggregate_id\" }\nonly = { column = \"listener\", value = \"a\" }\n",
        &["has no column listener, which only"],
    ),
    ("SELECT 1", DELETE, &["@ has no primary key", "`pending`"]),
    (
        "ALTER TABLE @ ADD PRIMARY KEY (id); CREATE TABLE refers_@ (old bigint REFERENCES @)",
        DELETE,
        &["rows of refers_@ reference rows of @", "drop these foreign keys"],
    ),
    (
        "ALTER TABLE @ ALTER id TYPE uuid USING gen_random_uuid(); ALTER TABLE @ ADD PRIMARY KEY (id)",
        DELETE,
        &["order_by is missing, and id has the type uuid"],
    ),
    (
        "ALTER TABLE @ ADD PRIMARY KEY (id); GRANT INSERT ON @ TO outbox_test_producer",
        DELETE,
        &["may not delete its rows: outbox_test_producer", "GRANT SELECT, DELETE ON public.@ TO"],
    ),
    (
        "ALTER TABLE @ ADD PRIMARY KEY (id); GRANT INSERT, DELETE ON @ TO outbox_test_producer",
        DELETE,
        &["may not delete its rows: outbox_test_producer", "GRANT SELECT, DELETE ON public.@ TO"],
    ),
    (
        "ALTER TABLE @ ADD PRIMARY KEY (id); CREATE FUNCTION keep_@() RETURNS trigger LANGUAGE plpgsql AS \
      'BEGIN RETURN NULL; END'; CREATE TRIGGER keep BEFORE DELETE ON @ FOR EACH ROW EXECUTE FUNCTION keep_@()",
        DELETE,
        &["the trigger keep on @ may prevent the deletion of rows", "AFTER DELETE"],
    ),
    (
        "ALTER TABLE @ ADD PRIMARY KEY (id); CREATE RULE keep AS ON DELETE TO @ DO INSTEAD NOTHING",
        DELETE,
        &["the rule keep on @ may prevent the deletion of rows", "mark rows"],
    ),
    (
        "CREATE TABLE child_@ () INHERITS (@)",
        PENDING,
        &["child_@ inherit from @; only a plain table can be adopted", "NO INHERIT @"],
    ),
];

/// Returns everything that a refusal must not change: triggers, functions, messages, audit,
/// publications and rows.
async fn footprint(database: &Database<Postgres>, table: &str) -> Result<Vec<String>, Failure> {
    let mut footprint = database
        .texts(
            "SELECT concat_ws(' ', (SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal),
                (SELECT count(*) FROM pg_proc WHERE proname ~ '^outbox_adopt'),
                (SELECT count(*) FROM outbox_message), (SELECT count(*) FROM outbox_operation),
                (SELECT string_agg(r::text, ' ' ORDER BY oid) FROM pg_publication_rel AS r))",
        )
        .await?;
    let is_there = database.integer(&format!("SELECT count(to_regclass('{table}'))")).await?;
    if is_there == 1 {
        footprint.extend(database.texts(&format!("SELECT t::text FROM {table} AS t ORDER BY 1")).await?);
    }
    Ok(footprint)
}

fn config(stage: &Stage, url: &str, section: &str) -> Result<Config, Failure> {
    Config::with_section(stage, RELAY, url, BROKER, section)
}

/// Goal: every fault of a table is reported before anything changes, with the value and the remedy.
/// Oracle: exit code 2 and the words, of `over` and of `plan`; triggers, functions, messages,
/// audit, publications and rows are the same afterwards.
pub(super) async fn refused(stage: Stage) -> Outcome {
    let database = Database::<Postgres>::migrated(&stage).await?;
    for (number, (sql, mapping, parts)) in CASES.into_iter().enumerate() {
        let table = format!("case_{number}");
        let named = |text: &str| text.replace('@', &table);
        database.execute(&named(&format!("{TABLE}{ROW}{sql}"))).await?;
        let section = format!("[pipeline.adopt]\ntable = {table:?}\n{}", named(mapping));
        let config = config(&stage, &database.url, &section)?;
        let before = footprint(&database, &table).await?;
        let parts: Vec<String> = parts.iter().map(|part| named(part)).collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let about = |failure: Failure| Failure::from(format!("case {number}, {sql}: {failure}"));
        adopt(&config, &database.url, "over", &[]).await?.refused(2, &parts).map_err(about)?;
        // `plan` reports missing grants beside its SQL instead of refusing.
        if parts.iter().all(|part| !part.contains("GRANT")) {
            adopt(&config, &database.url, "plan", &[]).await?.refused(2, &parts).map_err(about)?;
        }
        assert_eq!(footprint(&database, &table).await?, before, "case {number}, {sql}");
        // Otherwise the publication of this case would cause a refusal in the next case.
        database.execute(&named("DROP PUBLICATION IF EXISTS all_@, schema_@")).await?;
    }

    // The remaining cases are about the users who run the commands, about databases without an
    // outbox, and about databases other than PostgreSQL.
    database.execute(&format!("{TABLE}{ROW}").replace('@', "good")).await?;
    let section = format!("[pipeline.adopt]\ntable = \"good\"\n{PENDING}");
    let good = config(&stage, &database.url, &section)?;
    let observer = Role::Observer.url(&database.url)?;
    let parts = ["outbox_test_observer does not own good", "--database postgres://outbox@"];
    adopt(&good, &observer, "over", &[]).await?.refused(2, &parts)?;
    let own = section.replace("\"good\"", "\"outbox_message\"");
    let own = config(&stage, &database.url, &own)?;
    adopt(&own, &database.url, "over", &[]).await?.refused(2, &["this toolkit's own outbox"])?;
    let plain = config(&stage, &database.url, "")?;
    adopt(&plain, &database.url, "over", &[]).await?.refused(2, &["no section [pipeline.adopt]"])?;
    let empty = Database::<Postgres>::empty(&stage).await?;
    empty.execute(&TABLE.replace('@', "good")).await?;
    adopt(&good, &empty.url, "over", &[]).await?.refused(2, &["relay migrate up --line outbox"])?;
    let sqlite = Database::<Sqlite>::migrated(&stage).await?;
    let other = config(&stage, &sqlite.url, &section)?;
    for verb in ["plan", "over", "back", "status"] {
        let ran = adopt(&other, &sqlite.url, verb, &[]).await?;
        ran.refused(2, &["SQLite", "only tables in PostgreSQL"])?;
    }
    let config = config(&stage, &database.url, &section)?;
    let unsigned = ["adopt", "over", "--actor", " ", "--note", "a test"];
    Ran::with(&config, &unsigned).await?.refused(2, &["the name of the operator is empty"])
}

/// Goal: an open writer delays the move briefly, with no other effect. Oracle: exit code 3 with the
/// writer's name; nothing has changed; a second writer was delayed no longer than the timeout; the
/// same command succeeds when the writer is done.
pub(super) async fn an_open_writer(stage: Stage) -> Outcome {
    let database = Database::<Postgres>::migrated(&stage).await?;
    database.execute(&format!("{TABLE}{ROW}").replace('@', "old")).await?;
    let config = config(&stage, &database.url, &format!("[pipeline.adopt]\ntable = \"old\"\n{PENDING}"))?;
    let before = footprint(&database, "old").await?;
    let mut open = database.admin.begin().await?;
    let insert = "INSERT INTO old VALUES (8, 'orders', 'a', 'placed', '{\"n\": 2}', NULL)";
    sqlx::query(insert).execute(&mut *open).await?;
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut *open).await?;
    let pid = format!("pid {pid} of outbox");
    let parts = ["old within 300ms; nothing has changed", &pid, "idle in transaction"];
    adopt(&config, &database.url, "over", &["--lock-timeout", "300ms"]).await?.refused(3, &parts)?;
    database.execute("INSERT INTO old VALUES (9, 'orders', 'b', 'placed', '{\"n\": 3}', NULL)").await?;
    assert_eq!(
        footprint(&database, "old").await?[..2],
        before[..],
        "and the row of the open writer is its own"
    );
    open.commit().await?;
    adopt(&config, &database.url, "over", &[]).await?.done()?;
    let order = database.texts("SELECT headers ->> 'legacy-id' FROM outbox_message ORDER BY id").await?;
    assert_eq!(order, ["7", "8", "9"]);
    Ok(())
}
