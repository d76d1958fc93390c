//! `relay migrate up`, `status` and `sql`.

use migrations::Line;
use sqlx::Postgres;
use tests::relay_process::Config;
use tests::{Backend, Database, Dialect, Outcome, Stage};

use super::{Ran, column};

tests::cases! { "{case}/{on}":
    databases {
        what_is_missing_is_applied_once,
        a_script_makes_the_same_tables,
        a_database_that_is_away_hides_no_other,
    }
    postgres { roles_are_made_without_another_client }
}

const LINES: [&str; 4] = ["outbox", "inbox", "idempotency", "saga"];

fn url<DB: Dialect>(database: &Database<DB>) -> String {
    database.url.clone()
}

/// Goal: an empty database gets every table, once, and an up-to-date database is distinguished from
/// an outdated one. Oracle: exit codes 2, 0, 0, 0; the lines with their versions in table and JSON;
/// the rows of the migration bookkeeping.
async fn what_is_missing_is_applied_once<DB: Dialect>(stage: Stage) -> Outcome {
    let database = Database::<DB>::empty(&stage).await?;
    let url = url(&database);
    let on = |command: &'static str, more: &[&'static str]| {
        let arguments = [&["migrate", command][..], more].concat();
        let url = url.clone();
        async move { Ran::on(&url, &arguments).await }
    };
    // A missing file counts as an empty database only after it was created.
    if DB::BACKEND == Backend::Sqlite {
        database.execute("SELECT 1").await?;
    }
    let missing = on("status", &["--output", "json"]).await?.ended(2)?.json()?;
    assert_eq!(column(&missing, "line"), LINES, "{missing}");
    assert!(
        missing[0]["problem"].as_str().is_some_and(|text| text.contains("relay migrate up")),
        "{missing}"
    );

    let one = on("up", &["--line", "outbox", "--output", "json"]).await?.done()?.json()?;
    assert_eq!(column(&one, "line"), ["outbox"]);
    assert_eq!(one[0]["version"], one[0]["version_needed"], "{one}");
    assert!(one[0]["migrations"].as_array().is_some_and(|applied| !applied.is_empty()), "{one}");

    let table = on("up", &[]).await?.done()?.out;
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with("DATABASE") && lines.len() == 1 + LINES.len(), "{table}");
    assert!(lines[1].contains("up to date") && lines[2].contains("applied 0001"), "{table}");
    let again = on("up", &["--output", "json"]).await?.done()?.json()?;
    assert!((0..LINES.len()).all(|line| again[line]["migrations"] == serde_json::json!([])), "{again}");
    on("status", &[]).await?.done()?;
    let applied = database.integer("SELECT count(*) FROM outbox_toolkit_migration").await?;
    let known: usize = Line::ALL.iter().map(|line| line.migrations(DB::DIALECT).len()).sum();
    assert_eq!(usize::try_from(applied)?, known);
    Ok(())
}

/// Goal: the image is enough for an installation: the program creates roles and grants, and
/// repeating it does no harm. Oracle: PostgreSQL's own answer about the relay's rights, before and
/// after.
async fn roles_are_made_without_another_client(stage: Stage) -> Outcome {
    let database = Database::<Postgres>::empty(&stage).await?;
    let url = url(&database);
    let roles = ["migrator", "producer", "relay", "observer"].map(|role| (role, stage.unique(role)));
    let flags: Vec<String> = roles.iter().map(|(role, name)| format!("--{role}={name}")).collect();
    let file = stage.folder().join("url");
    std::fs::write(&file, format!("{url}\n"))?;
    let file = file.to_str().ok_or("the path is not UTF-8")?;
    let up = ["migrate", "up", "--line", "outbox"];
    Ran::of(&[&up[..], &["--database", &url]].concat()).await?.refused(2, &["RELAY_DATABASE_URL"])?;
    Ran::of(&[&up[..], &["--database-file", file]].concat()).await?.done()?;
    let apply = ["migrate", "roles", "--line", "outbox", "--apply", "--database-file", file];
    let arguments: Vec<&str> = apply.into_iter().chain(flags.iter().map(String::as_str)).collect();
    for _ in 0..2 {
        assert_eq!(Ran::of(&arguments).await?.done()?.out, "");
    }
    let relay = &roles[2].1;
    for (right, expected) in [("SELECT", 1), ("TRUNCATE", 0)] {
        let asked =
            format!("SELECT has_table_privilege('{relay}', 'outbox_message', '{right}')::int::bigint");
        assert_eq!(database.integer(&asked).await?, expected, "{right}");
    }
    for (_, role) in &roles {
        database.execute(&format!("DROP OWNED BY {role}")).await?;
        database.execute(&format!("DROP ROLE {role}")).await?;
    }
    Ran::of(&["migrate", "roles", "--apply", "--database", "sqlite:none.db"]).await?.refused(2, &["no roles"])
}

/// Goal: an administrator can run the SQL by hand. Oracle: the output of `migrate sql`, run by
/// another client, satisfies `migrate status`; an unknown version is refused.
async fn a_script_makes_the_same_tables<DB: Dialect>(stage: Stage) -> Outcome {
    let database = Database::<DB>::empty(&stage).await?;
    let dialect = DB::DIALECT.to_string();
    for line in LINES {
        let script = Ran::of(&["migrate", "sql", "--dialect", &dialect, "--line", line]).await?.done()?;
        database.execute(&script.out).await?;
    }
    Ran::on(&url(&database), &["migrate", "status"]).await?.done()?;
    let all = Ran::of(&["migrate", "sql", "--dialect", &dialect]).await?.done()?;
    let named = Ran::on(&url(&database), &["migrate", "sql"]).await?.done()?;
    // If nothing is missing, a comment states this, and the script is the same.
    let (comment, script) = named.out.split_once("\n\n").ok_or("no comment")?;
    assert!(comment.starts_with("-- ") && comment.contains("is up to date"), "{comment}");
    assert_eq!(all.out, script);
    let beyond = ["migrate", "sql", "--dialect", &dialect, "--line", "outbox", "--from", "99"];
    Ran::of(&beyond).await?.refused(2, &["99"])?;
    Ran::of(&["migrate", "sql", "--dialect", &dialect, "--from", "0"]).await?.refused(2, &["--from"])
}

/// Goal: the command reports its results even when another database is unavailable. Oracle: exit
/// code 3, or 2 for a missing file; that database on standard error, and the other one's rows on
/// standard output; its tables are up to date.
async fn a_database_that_is_away_hides_no_other<DB: Dialect>(stage: Stage) -> Outcome {
    let database = Database::<DB>::empty(&stage).await?;
    let (away, place, code) = match DB::BACKEND {
        Backend::Sqlite => ("sqlite:///nowhere/orders.db", "/nowhere/orders.db", 2),
        _ => ("postgres://relay@127.0.0.1:1/orders", "127.0.0.1:1", 3),
    };
    let pipeline = |name: &str, url: &str| {
        format!(
            "[[pipeline]]\nname = {name:?}\n[pipeline.database]\nurl = {url:?}\n\
             [pipeline.kafka]\nbootstrap_servers = [\"127.0.0.1:1\"]\n"
        )
    };
    let text = format!("{}{}", pipeline("there", &url(&database)), pipeline("away", away));
    let config = Config::text(&stage, &text)?;
    let up = Ran::with(&config, &["migrate", "up", "--output", "json"]).await?.ended(code)?;
    assert_eq!(column(&up.json()?, "line"), LINES, "{up:?}");
    assert!(up.err.contains(place), "{up:?}");
    Ran::with(&config, &["migrate", "status", "--pipeline", "there"]).await?.done()?;
    Ran::with(&config, &["migrate", "up", "--pipeline", "nobody"])
        .await?
        .refused(2, &["nobody", "there, away"])
}
