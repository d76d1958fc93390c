//! Documents with escapes that JSON allows and PostgreSQL does not read.

use sqlx::{Executor as _, Postgres};
use tests::relay_process::Config;
use tests::{Database, Outcome, Role, Stage};

use super::{RELAY, adopted};

const BROKER: &str = "[pipeline.kafka]\nbootstrap_servers = [\"127.0.0.1:1\"]\n";
const TABLE: &str = "CREATE TABLE old (id bigserial PRIMARY KEY, body text, sent timestamptz)";
const SECTION: &str = "[pipeline.adopt]\ntable = \"old\"\ntopic = \"t\"\npending = \"sent\"\n\
    columns = { kind = \"\", key = { column = \"body\", path = [\"key\"] }, \
    payload = { column = \"body\", path = [\"größe\"] } }\n";

/// A document, and key and payload of its message.
struct Case {
    document: &'static str,
    key: &'static str,
    payload: &'static str,
}

const CASES: [Case; 9] = [
    Case { document: r#"{"key":"k","größe":"NUL \u0000"}"#, key: "k", payload: r#""NUL \u0000""# },
    Case {
        document: r#"{"größe":{"half":"\ud83d","other":"\ude00"},"key":"k\ud83d"}"#,
        key: "k\u{fffd}",
        payload: r#"{"half":"\ud83d","other":"\ude00"}"#,
    },
    Case {
        document: r#"{"key":"\ud83d\ude00","größe":"\ude00\ud83d\ud83d\ude00"}"#,
        key: "\u{1f600}",
        payload: r#""\ude00\ud83d\ud83d\ude00""#,
    },
    // A backslash that is escaped itself, before an escape and instead of one.
    Case {
        document: r#"{"größe":["\\u0000","\\\u0000","\"\u0000\""],"key":"k"}"#,
        key: "k",
        payload: r#"["\\u0000","\\\u0000","\"\u0000\""]"#,
    },
    // The second of two backslashes begins no escape, so the half behind it is alone.
    Case {
        document: r#"{"größe":"\\ud83d\ude00","key":"a\\ud83d\ude00"}"#,
        key: "a\\ud83d\u{fffd}",
        payload: r#""\\ud83d\ude00""#,
    },
    // Names of members may be escaped.
    Case {
        document: r#"{"gr\u00f6\u00dfe":"\ud83d\ude00","k\u0065y":"k"}"#,
        key: "k",
        payload: r#""\ud83d\ude00""#,
    },
    // Also beside an escape that is not readable, and beside a backslash that is escaped itself.
    Case {
        document: r#"{"gr\u00f6\u00dfe":"NUL \u0000","\ud83d":"\\","k\u0065y":"k"}"#,
        key: "k",
        payload: r#""NUL \u0000""#,
    },
    Case {
        document: r#"{"gr\u00F6\u00DFe":["\\u0000\\\u0000","\u00f6\\"],"key":"k\u0000"}"#,
        key: "k\u{fffd}",
        payload: r#"["\\u0000\\\u0000","\u00f6\\"]"#,
    },
    Case { document: r#"{"größe": 1.50, "key": "k"}"#, key: "k", payload: "1.50" },
];

/// Goal: a producer whose document has NUL or half of a surrogate pair in any text commits as
/// before the adoption, and so does the import of such a row. Oracle: the messages, whose payloads
/// have the bytes of the documents.
pub(super) async fn handed_over(stage: Stage) -> Outcome {
    let database = Database::<Postgres>::migrated(&stage).await?;
    database.execute(TABLE).await?;
    database.let_use(Role::Producer, "old").await?;
    let config = Config::with_section(&stage, RELAY, &database.url, BROKER, SECTION)?;
    let produce = async || {
        for case in &CASES {
            let insert = sqlx::query("INSERT INTO old (body) VALUES ($1)").bind(case.document);
            database.producer.execute(insert).await?;
        }
        Ok::<_, tests::Failure>(())
    };
    produce().await?;
    assert_eq!(adopted(&config, &database.url, "over", 0).await?["imported"], CASES.len());
    produce().await?;
    let messages = database
        .texts("SELECT key || ' ' || convert_from(payload, 'UTF8') FROM outbox_message ORDER BY id")
        .await?;
    let expected = CASES.iter().map(|case| format!("{} {}", case.key, case.payload));
    assert_eq!(messages, expected.clone().chain(expected).collect::<Vec<_>>());
    assert_eq!(adopted(&config, &database.url, "status", 0).await?["state"], "adopted");
    Ok(())
}
