//! The SQL that `plan` prints, run by an administrator, for every kind of table.

use sqlx::{Executor as _, Postgres};
use tests::relay_process::Config;
use tests::{Database, Failure, Outcome, Role, Stage};

use super::{RELAY, adopt, adopted};
use crate::commands::Ran;

const BROKER: &str = "[pipeline.kafka]\nbootstrap_servers = [\"127.0.0.1:1\"]\n";

/// A kind of table: its columns except the id, the configuration section, a waiting row and a new
/// row. The expected messages are given as topic, key, kind, content type, headers and payload.
struct Kind {
    columns: &'static str,
    section: &'static str,
    rows: [&'static str; 2],
    messages: &'static [&'static str],
    /// Condition for rows that are not marked.
    unmarked: &'static str,
}

const KINDS: [Kind; 4] = [
    Kind {
        columns: "status text NOT NULL DEFAULT 'NEW', body bytea, tenant text",
        section: "topic = \"fixed\"\ncolumns = { key = \"\", kind = \"\", payload = \"body\" }\n\
                  pending = \"status\"\npending_value = \"NEW\"\nsent_value = \"it's $SENT$\"\n\
                  headers = { tenant = \"tenant\" }\nid_header = \"old\"\n",
        rows: ["(body, tenant) VALUES ('\\x00ff', 'a')", "(body) VALUES ('')"],
        messages: &[
            "fixed|-|-|application/octet-stream|{\"old\": \"1\", \"tenant\": \"a\"}|\\x00ff",
            "fixed|-|-|application/octet-stream|{\"old\": \"2\"}|\\x",
        ],
        unmarked: "status <> 'it''s $SENT$'",
    },
    Kind {
        columns: "sent boolean, aggregatetype text, aggregateid uuid, type text, payload text",
        section: "topic_prefix = \"events.\"\npending = \"sent\"\nnull_payload = \"empty\"\n\
                  content_type = \"application/json; it's {a} $test$\"\n",
        rows: [
            "(aggregatetype, aggregateid, payload) VALUES ('a', 'b1c9a1d4-0000-4000-8000-000000000001', '{}')",
            "(aggregatetype) VALUES ('b')",
        ],
        messages: &[
            "events.a|b1c9a1d4-0000-4000-8000-000000000001|-|application/json; it's {a} $test$|{\"legacy-id\": \"1\"}|\\x7b7d",
            "events.b|-|-|application/json; it's {a} $test$|{\"legacy-id\": \"2\"}|\\x",
        ],
        unmarked: "sent IS NOT TRUE",
    },
    Kind {
        columns: "at timestamptz, aggregatetype text, aggregateid bigint, type text, payload json",
        section: "pending = \"at\"\n",
        rows: [
            "(aggregatetype, aggregateid, type, payload) VALUES ('a', 5, 'k', '{ \"x\":1}')",
            "(aggregatetype, aggregateid, type, payload) VALUES ('a', 5, 'k', '2')",
        ],
        messages: &[
            "a|5|k|application/json|{\"legacy-id\": \"1\"}|\\x7b202278223a317d",
            "a|5|k|application/json|{\"legacy-id\": \"2\"}|\\x32",
        ],
        unmarked: "at IS NULL",
    },
    Kind {
        columns: "aggregatetype text, aggregateid text, type text, payload varchar(20)",
        section: "",
        rows: [
            "(aggregatetype, payload) VALUES ('old', 'stays')",
            "(aggregatetype, payload) VALUES ('a', 'ä')",
        ],
        messages: &["a|-|-|text/plain; charset=utf-8|{\"legacy-id\": \"2\"}|\\xc3a4"],
        unmarked: "false",
    },
];

/// Goal: an administrator can run the SQL for every kind of table. It does the same as `over` and
/// `back`, and `status` sees every kind of damage. Oracle: messages, byte for byte; marks; a row
/// that is not stored leaves no message; states and exit codes.
pub(super) async fn the_printed_sql(stage: Stage) -> Outcome {
    let database = Database::<Postgres>::migrated(&stage).await?;
    for (number, kind) in KINDS.into_iter().enumerate() {
        let table = format!("kind_{number}");
        database
            .execute(&format!("CREATE TABLE {table} (id bigserial PRIMARY KEY, {})", kind.columns))
            .await?;
        database.let_use(Role::Producer, &table).await?;
        let insert = |row: &str| format!("INSERT INTO {table} {row}");
        database.execute(&insert(kind.rows[0])).await?;
        let section = format!("[pipeline.adopt]\ntable = \"public.{table}\"\n{}", kind.section);
        let config = Config::with_section(&stage, RELAY, &database.url, BROKER, &section)?;
        let plan = adopt(&config, &database.url, "plan", &[]).await?.done()?;
        database.execute(&plan.out).await?;
        adopt(&config, &database.url, "status", &[]).await?.done()?;
        let again = adopted(&config, &database.url, "over", 0).await?;
        assert_eq!(again["outcome"], "unchanged", "{again}");
        produce(&database, &insert(kind.rows[1])).await?;
        let twice = format!("INSERT INTO {table} (id) VALUES (2) ON CONFLICT (id) DO NOTHING");
        produce(&database, &twice).await?;
        let messages = database
            .texts(
                "SELECT concat_ws('|', topic, coalesce(key, '-'), coalesce(kind, '-'), content_type, headers,
                    payload) FROM outbox_message ORDER BY id",
            )
            .await?;
        assert_eq!(messages, kind.messages, "{table}");
        let waiting = adopted(&config, &database.url, "status", 0).await?["waiting"].clone();
        assert_eq!(
            waiting,
            if kind.section.contains("pending") { 0.into() } else { serde_json::Value::Null }
        );
        let unmarked = format!("SELECT count(*) FROM {table} WHERE {}", kind.unmarked);
        assert_eq!(database.integer(&unmarked).await?, 0, "{table}");
        damages(&stage, &database, &config, &table, &section).await?;

        let back = adopt(&config, &database.url, "plan", &["--back"]).await?.done()?;
        database.execute(&back.out).await?;
        let state = adopted(&config, &database.url, "status", 2).await?["state"].clone();
        assert_eq!(state, "not-adopted");
        database.execute("TRUNCATE outbox_message").await?;
        produce(&database, &insert(kind.rows[1])).await?;
        assert_eq!(database.integer("SELECT count(*) FROM outbox_message").await?, 0);
    }
    let functions = "SELECT count(*) FROM pg_proc WHERE proname ~ '^outbox_adopt'";
    assert_eq!(database.integer(functions).await?, 0, "nothing stays behind");
    Ok(())
}

async fn produce(database: &Database<Postgres>, sql: &str) -> Outcome {
    database.producer.execute(sqlx::AssertSqlSafe(sql)).await?;
    Ok(())
}

/// Returns the doctor's findings about the old table.
async fn diagnosis(config: &Config) -> Result<String, Failure> {
    let report = Ran::with(config, &["doctor", "--output", "json"]).await?.json()?;
    let checks = report["pipelines"][0]["checks"].as_array().ok_or("no checks")?;
    let found: Vec<String> = checks
        .iter()
        .filter(|finding| finding["check"] == "adopted-table")
        .map(|finding| format!("{}: {}", finding["state"], finding["measured"]).replace('"', ""))
        .collect();
    Ok(found.join("; "))
}

/// Causes three kinds of damage: a disabled trigger, a different mapping, and a producer without
/// rights.
async fn damages(
    stage: &Stage,
    database: &Database<Postgres>,
    config: &Config,
    table: &str,
    section: &str,
) -> Result<(), Failure> {
    let url = &database.url;
    database.execute(&format!("ALTER TABLE {table} DISABLE TRIGGER outbox_adopt")).await?;
    let ran = adopt(config, url, "status", &[]).await?.ended(2)?;
    assert!(ran.out.contains("disabled") && ran.out.contains("ENABLE TRIGGER"), "{ran:?}");
    assert_eq!(diagnosis(config).await?, "fail: disabled");
    database.execute(&format!("ALTER TABLE {table} ENABLE TRIGGER outbox_adopt")).await?;
    assert_eq!(diagnosis(config).await?, "pass: adopted");

    database.execute(&format!("GRANT INSERT ON {table} TO outbox_test_observer")).await?;
    let lacking = adopted(config, url, "status", 2).await?["lacking"][0].clone();
    assert_eq!(lacking["role"], "outbox_test_observer");
    let remedy = lacking["remedy"].as_str().ok_or("no remedy")?;
    database.execute(remedy).await?;
    adopt(config, url, "status", &[]).await?.done()?;
    database.execute(&format!("REVOKE INSERT ON {table} FROM outbox_test_observer")).await?;
    // Revokes the rights to single columns as well.
    database.execute("REVOKE INSERT ON outbox_message FROM outbox_test_observer").await?;

    let other = section.replace("id_header = \"old\"\n", "") + "id_header = \"another\"\n";
    let other = Config::with_section(stage, RELAY, url, BROKER, &other)?;
    assert_eq!(adopted(&other, url, "status", 2).await?["state"], "differs");
    assert_eq!(adopted(&other, url, "over", 0).await?["outcome"], "replaced");
    adopt(&other, url, "status", &[]).await?.done()?;
    assert_eq!(adopted(config, url, "over", 0).await?["outcome"], "replaced");
    Ok(())
}
