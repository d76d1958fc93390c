//! From nothing to a running relay: `relay init`, `check`, `config show`, `config schema`, `man`,
//! and the job of the chart.

use std::sync::Arc;

use sqlx::{Connection as _, PgConnection, Postgres, Sqlite};
use tests::relay_process::Config;
use tests::{Backend, Broker, Cluster, Database, Dialect, Failure, Outcome, RelayProcess, Stage};

use super::Ran;

tests::cases! { "setup/{case}/{on}":
    postgres rabbitmq { what_init_writes_passes_check = what_init_writes }
    postgres { init_copies_no_password_from_a_file = init_copies_nothing }
    sqlite { init_writes_nothing_that_does_not_work = init_writes_nothing }
    postgres kafka { check_tells_a_mistake_from_an_outage = check_tells }
    anywhere {
        every_setting_is_shown_with_its_origin = every_setting,
        man_pages_and_completions_name_every_command = man_pages,
    }
    anywhere, if no_package_is_there { the_configuration_is_where_packages_put_it = default_places }
    night postgres rabbitmq + xtask { the_job_of_the_chart_prepares_an_empty_database = job }
}

/// The chart's job, and the values that it has by default.
const JOB: &str = include_str!("../../../../relay/packaging/helm/outbox-relay/templates/migrate.yaml");
const VALUES: &str = include_str!("../../../../relay/packaging/helm/outbox-relay/values.yaml");

/// The owner of the database, and the password of all users.
const OWNER: &str = "orders_owner";
const PASSWORD: &str = "outbox";

/// The configuration of an installed package.
const INSTALLED: &str = "/etc/relay/relay.toml";

fn no_package_is_there() -> Result<(), String> {
    let is_there = std::path::Path::new(INSTALLED).exists();
    if is_there { Err(format!("a relay is installed: {INSTALLED} exists")) } else { Ok(()) }
}

/// Goal: a new user gets a file that works, and never loses one. Oracle: `relay check` of the file;
/// the second `init` is refused and changes nothing; other users cannot read the password.
async fn what_init_writes(stage: Stage) -> Outcome {
    use std::os::unix::fs::PermissionsExt as _;
    let database = Database::<Postgres>::migrated(&stage).await?;
    let path = stage.folder().join("new.toml");
    let file = path.to_str().ok_or("the path is not UTF-8")?;
    let (url, broker) = (database.relay_url()?, Backend::Rabbitmq.address()?);
    let flags = ["init", "--out", file, "--name", "orders"];
    let variables = [("RELAY_DATABASE_URL", url.as_str()), ("RELAY_RABBITMQ_URL", &broker)];
    let ran = Ran::of_variables(&flags, &variables).await?.done()?;
    assert!(ran.out.contains("relay run --config"), "{ran:?}");
    let text = std::fs::read_to_string(&path)?;
    assert!(text.contains("# lease_ttl = \"15s\""), "{text}");
    assert_eq!(std::fs::metadata(&path)?.permissions().mode() & 0o777, 0o600);
    let checked = Ran::of(&["check", "--config", file, "--output", "json"]).await?.done()?.json()?;
    assert_eq!(checked[0]["checks"].as_array().map(Vec::len), Some(2), "{checked}");
    Ran::of_variables(&flags, &variables).await?.refused(2, &["exists", "--out"])?;
    assert_eq!(std::fs::read_to_string(&path)?, text);
    Ok(())
}

/// Goal: a password stays in the one file that has it. Oracle: what `init --database-file` writes
/// names this file, has no password, and passes the check of the database from another folder.
async fn init_copies_nothing(stage: Stage) -> Outcome {
    let database = Database::<Postgres>::migrated(&stage).await?;
    let url = database.relay_url()?;
    let secret = stage.folder().join("database-url");
    let path = stage.folder().join("new.toml");
    std::fs::write(&secret, format!("{url}\n"))?;
    let file = path.to_str().ok_or("the path is not UTF-8")?;
    let named = secret.to_str().ok_or("the path is not UTF-8")?;
    let flags = ["init", "--out", file, "--name", "orders", "--database-file", named, "--no-check"];
    Ran::of(&[&flags[..], &["--kafka", "127.0.0.1:1"]].concat()).await?.done()?;
    let text = std::fs::read_to_string(&path)?;
    assert!(text.contains(&format!("url_file = {named:?}")), "{text}");
    assert!(!text.contains(&url) && !text.contains("\nurl ="), "{text}");
    let listed = Ran::of(&["dead", "list", "--config", file]).await?.done()?;
    assert!(listed.err.contains("no inbox is configured"), "{listed:?}");
    Ok(())
}

/// Goal: `init` never writes a file that does not work. Oracle: exit code, remedy, and no file, for
/// a database without tables, an unavailable broker, and a question that has no terminal to answer
/// it.
async fn init_writes_nothing(stage: Stage) -> Outcome {
    let path = stage.folder().join("new.toml");
    let file = path.to_str().ok_or("the path is not UTF-8")?;
    let empty = Database::<Sqlite>::empty(&stage).await?;
    let base = ["init", "--out", file, "--name", "orders", "--kafka", "127.0.0.1:1"];
    Ran::of(&[&base[..], &["--database", &empty.url]].concat())
        .await?
        .refused(2, &["relay migrate up", "--no-check"])?;
    let database = Database::<Sqlite>::migrated(&stage).await?;
    Ran::of(&[&base[..], &["--database", &database.url]].concat()).await?.refused(3, &["127.0.0.1:1"])?;
    Ran::of(&["init", "--out", file, "--name", "orders"]).await?.refused(2, &["--database", "terminal"])?;
    assert!(!path.exists());
    Ran::of(&[&base[..], &["--database", &database.url, "--no-check"]].concat()).await?.done()?;
    assert!(path.exists());
    Ok(())
}

/// Goal: CI and operators see mistakes before a start. Oracle: 0; 2 for a missing schema, with the
/// command that helps; 3 for an unavailable broker.
async fn check_tells(stage: Stage) -> Outcome {
    let database = Database::<Postgres>::migrated(&stage).await?;
    let servers = Backend::Kafka.address()?;
    let section = format!("[pipeline.kafka]\nbootstrap_servers = [{servers:?}]\n");
    let config = Config::with_section(&stage, "orders", &database.relay_url()?, &section, "")?;
    let ran = Ran::with(&config, &["check"]).await?.done()?;
    assert!(ran.out.contains("postgresql") && ran.out.contains(&servers), "{ran:?}");
    let empty = Database::<Postgres>::empty(&stage).await?;
    let config = Config::with_section(&stage, "orders", &empty.relay_url()?, &section, "")?;
    let ran = Ran::with(&config, &["check"]).await?.ended(2)?;
    assert!(ran.out.contains("relay migrate up"), "{ran:?}");
    let section = "[pipeline.kafka]\nbootstrap_servers = [\"127.0.0.1:1\"]\nconnect_timeout_ms = 1000\n";
    let config = Config::with_section(&stage, "orders", &database.relay_url()?, section, "")?;
    Ran::with(&config, &["check"]).await?.ended(3)?;
    Ok(())
}

/// Goal: every setting in force can be displayed. Oracle: values whose origin is a file or the
/// default, no password, and a schema for editors that knows the sections.
async fn every_setting(stage: Stage) -> Outcome {
    let text = "[[pipeline]]\nname = \"orders\"\n[pipeline.database]\nurl = \"postgres://u:s3cret@127.0.0.1/d\"\n\
                [pipeline.kafka]\nbootstrap_servers = [\"127.0.0.1:1\"]\n[pipeline.engine]\nwindow = \"8MiB\"\n";
    let config = Config::text(&stage, text)?;
    let shown = Ran::with(&config, &["config", "show", "--output", "json"]).await?.done()?;
    assert!(!shown.out.contains("s3cret"), "{shown:?}");
    let settings = shown.json()?;
    let origin = |path: &str| {
        let rows = settings.as_array().into_iter().flatten();
        rows.filter(|row| row["setting"] == path).map(|row| row["origin"].clone()).next()
    };
    assert_eq!(origin("pipeline[0].engine.window"), Some("file".into()));
    assert_eq!(origin("pipeline[0].engine.lease_ttl"), Some("default".into()));
    let toml = Ran::with(&config, &["config", "show", "--toml"]).await?.done()?;
    assert!(toml.out.contains("# default") && !toml.out.contains("s3cret"), "{toml:?}");
    let schema = Ran::of(&["config", "schema"]).await?.done()?.json()?;
    assert!(schema["properties"]["pipeline"].is_object() && schema["$schema"].is_string(), "{schema}");
    Ok(())
}

/// Goal: a user who names no file learns where the relay looked for one. Oracle: the error, in a
/// folder without a file, where no package is installed.
async fn default_places(_: Stage) -> Outcome {
    for command in [&["status"][..], &["run"], &["config", "check"]] {
        let parts = ["neither relay.toml nor /etc/relay/relay.toml", "--config FILE", "RELAY_CONFIG"];
        Ran::of(command).await?.refused(2, &parts)?;
    }
    Ok(())
}

/// Goal: help is where users expect it. Oracle: a manual page for a command and its subcommands;
/// completion scripts for three shells name them.
async fn man_pages(stage: Stage) -> Outcome {
    let folder = stage.folder().join("man");
    Ran::of(&["man", "--out", folder.to_str().ok_or("the path is not UTF-8")?]).await?.done()?;
    for page in ["relay.1", "relay-doctor.1", "relay-config-schema.1"] {
        let text = std::fs::read_to_string(folder.join(page))?;
        assert!(text.contains(".TH"), "{page}: {text}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = Ran::of(&["completions", shell]).await?.done()?;
        assert!(script.out.contains("doctor") && script.out.contains("init"), "{shell}");
    }
    Ok(())
}

/// Returns the arguments of the job's containers, in the order in which these run.
fn steps_of_the_job() -> Result<Vec<Vec<String>>, Failure> {
    let defaults = VALUES.split("\nmigrate:\n").nth(1).ok_or("the chart has no values for its job")?;
    assert!(defaults.contains("\n  args: []\n"), "the chart adds arguments: {defaults}");
    let first = JOB.find("      initContainers:\n").ok_or("the job has no container that runs first")?;
    let then = JOB.find("      containers:\n").ok_or("the job has no container that runs then")?;
    assert!(first < then, "{JOB}");
    let lists = JOB.lines().filter_map(|line| line.trim().strip_prefix("args: {{ concat (list "));
    let words = |list: &str| {
        let (words, rest) = list.split_once(')').unwrap_or_default();
        assert_eq!(rest, " .Values.migrate.args | toJson }}", "{list}");
        words.split_whitespace().map(|word| word.trim_matches('"').to_owned()).collect()
    };
    let steps: Vec<Vec<String>> = lists.map(words).collect();
    assert_eq!(steps.len(), 2, "{steps:?}");
    Ok(steps)
}

/// Goal: with an owner that may create roles but is no superuser, the job of the chart turns an
/// empty database into one on which a relay runs with the role that the job made. An upgrade, which
/// repeats the job, changes nothing. Oracle: exit codes; a plain client finds in the topic what a
/// producer with its role has enqueued. The case has its own server, because the roles have their
/// standard names.
async fn job(stage: Stage, broker: Arc<dyn Broker>) -> Outcome {
    let cluster = Cluster::start(&stage, &[]).await?;
    let owner = format!("CREATE ROLE {OWNER} LOGIN NOSUPERUSER CREATEROLE PASSWORD '{PASSWORD}'");
    cluster.execute(&owner).await?;
    cluster.execute(&format!("CREATE DATABASE orders OWNER {OWNER}")).await?;
    let url = |user: &str| format!("postgres://{user}:{PASSWORD}@{}/orders", cluster.address());
    let steps = steps_of_the_job()?;
    for step in [&steps[..], &steps].concat() {
        let arguments: Vec<&str> = step.iter().map(String::as_str).collect();
        Ran::on(&url(OWNER), &arguments).await?.done()?;
    }
    let mut owner = PgConnection::connect(&url(OWNER)).await?;
    for (user, role) in [("orders_relay", "outbox_relay"), ("orders_shop", "outbox_producer")] {
        let login = format!("CREATE ROLE {user} LOGIN PASSWORD '{PASSWORD}' IN ROLE {role}");
        <Postgres as Dialect>::execute(&mut owner, &login).await?;
    }
    owner.close().await?;

    let topic = broker.topic_name("orders");
    broker.create_topic(&topic).await?;
    let config = Config::write(&stage, "orders", &url("orders_relay"), broker.as_ref(), "")?;
    let relay = RelayProcess::start(&stage, &config)?;
    let mut shop = PgConnection::connect(&url("orders_shop")).await?;
    let sent: Vec<String> = (0..20).map(|number| format!("order {number}")).collect();
    for payload in &sent {
        <Postgres as Dialect>::append(&mut shop, &topic, "customer-7", payload).await?;
    }
    shop.close().await?;
    let records = broker.drain(&topic, sent.len()).await?;
    let arrived: Vec<_> =
        records.iter().map(|record| String::from_utf8_lossy(&record.payload).into_owned()).collect();
    assert_eq!(arrived, sent);
    relay.stop().await
}
