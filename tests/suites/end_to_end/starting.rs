//! A starting relay waits, like a running relay, for every problem that can resolve itself.

use std::path::Path;

use migrations::{Line, Migrator};
use sqlx::Postgres;
use tests::eventually::when;
use tests::relay_process::Config;
use tests::workload::Workload;
use tests::{Backend, Database, Failure, Outcome, RelayProcess, Stage, brokers, eventually, roles};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::observability::get;

tests::cases! { "{case}/{on}":
    postgres kafka {
        a_start_waits_for_what_can_come_right = what_can_come_right,
        a_pipeline_that_is_refused_ends_alone = refused_alone,
        a_run_that_ends_by_itself_waits_for_nobody = once_waits_for_nobody,
    }
    postgres rabbitmq + kafka { files_that_come_later_are_waited_for = files_that_come_later }
}

/// Returns a pipeline with this database setting and a short lease.
fn pipeline(name: &str, database: &str, broker: &str) -> String {
    format!(
        "[[pipeline]]\nname = {name:?}\n[pipeline.database]\n{database}\n{broker}[pipeline.engine]\nlease_ttl = \"3s\"\n"
    )
}

/// Replaces a file atomically.
fn put(file: &Path, text: &str) -> Outcome {
    let new = file.with_extension("new");
    std::fs::write(&new, text)?;
    std::fs::rename(&new, file)?;
    Ok(())
}

/// Waits until these payloads are in the topic.
async fn arrive(workload: &Workload<Postgres>, payloads: &[&str]) -> Outcome {
    let records = workload.broker.drain(&workload.topic, payloads.len()).await?;
    let mut found: Vec<String> =
        records.iter().map(|record| String::from_utf8_lossy(&record.payload).into_owned()).collect();
    found.sort();
    found.dedup();
    assert_eq!(found, payloads);
    Ok(())
}

/// Goal: a problem that keeps one pipeline from starting affects no other pipeline, and passes
/// without a restart: a temporarily wrong password, tables that are restored later, an address in
/// use. Oracle: the records in the topic while each is broken and after each is repaired; the text
/// of `/readyz`; the same process throughout.
async fn what_can_come_right(stage: Stage) -> Outcome {
    let workload = Workload::<Postgres>::open(&stage, brokers::open(&stage, Backend::Kafka).await?).await?;
    let rotating = Database::<Postgres>::migrated(&stage).await?;
    let restored = Database::<Postgres>::empty(&stage).await?;
    let file = stage.folder().join("url");
    let right = rotating.relay_url()?;
    put(&file, &right.replacen(":outbox@", ":not-yet@", 1))?;
    let taken = TcpListener::bind("127.0.0.1:0").await?;
    let address = taken.local_addr()?.to_string();
    let section = workload.broker.relay_section().ok_or("no section")?;
    let text = [
        pipeline("healthy", &format!("url = {:?}", workload.database.relay_url()?), &section),
        pipeline("restored", &format!("url = {:?}", restored.relay_url()?), &section),
        pipeline("rotating", &format!("url_file = {file:?}"), &section),
        format!("[http]\nlisten = {address:?}\nunready_after = \"1s\"\n"),
    ];
    let mut relay = RelayProcess::start(&stage, &Config::text(&stage, &text.concat())?)?;
    workload.database.append(&workload.topic, "k", "healthy").await?;
    rotating.append(&workload.topic, "k", "rotating").await?;
    arrive(&workload, &["healthy"]).await?;
    relay.tells("password authentication failed").await?;
    relay.tells("relay migrate up").await?;
    relay.tells(&format!("http.listen: {address} cannot be used")).await?;

    drop(taken);
    relay.tells("serving /metrics").await?;
    eventually("two pipelines need an operator, one leads", || async {
        let (code, lines) = get(&address, "/readyz").await?;
        let waits = lines.matches("an operator must act").count();
        // The response names the remedy, but no server or user.
        let helps = lines.contains("ALTER ROLE") && lines.contains("relay migrate up");
        let is_discreet = !lines.contains("127.0.0.1") && !lines.contains("outbox@");
        Ok(when(code == 503 && waits == 2 && helps && is_discreet && lines.contains("healthy: leading")))
    })
    .await?;

    put(&file, &right)?;
    arrive(&workload, &["healthy", "rotating"]).await?;

    let mut connection = restored.admin.acquire().await?;
    for line in Line::ALL {
        Migrator::<Postgres>::new(line).up(&mut connection).await?;
    }
    roles::grant(&mut connection, &Line::ALL, None).await?;
    drop(connection);
    restored.append(&workload.topic, "k", "restored").await?;
    arrive(&workload, &["healthy", "restored", "rotating"]).await?;
    eventually("everything is ready", || async {
        let (code, lines) = get(&address, "/readyz").await?;
        Ok(when(code == 200 && lines.matches(": leading").count() == 3))
    })
    .await?;
    assert!(relay.has_ended()?.is_none(), "the relay has ended");
    let log = relay.log()?;
    assert!(!log.contains("not-yet"), "the log holds a password");
    relay.stop().await
}

/// Goal: the relay waits for a file that is mounted or written after the start: the URL of a
/// database, the password of a broker, the certificate of the page. Oracle: the broker's and the
/// database's messages before and after, and the log; the same process throughout.
async fn files_that_come_later(stage: Stage) -> Outcome {
    let workload =
        Workload::<Postgres>::open(&stage, brokers::open(&stage, Backend::Rabbitmq).await?).await?;
    let late = Database::<Postgres>::migrated(&stage).await?;
    let (url, password) = (stage.folder().join("url"), stage.folder().join("password"));
    let place = Backend::Rabbitmq.address()?;
    let (_, place) = place.rsplit_once('@').ok_or("an address without a user")?;
    let file = format!(
        "[pipeline.rabbitmq]\nurl = \"amqp://{place}\"\nusername = \"guest\"\npassword_file = {password:?}\n"
    );
    let section = workload.broker.relay_section().ok_or("no section")?;
    let kafka = Backend::Kafka.address()?;
    // The test cluster has no such user, because only the file matters here.
    let sasl = format!(
        "[pipeline.kafka]\nbootstrap_servers = [{kafka:?}]\n[pipeline.kafka.sasl]\nusername = \"u\"\n\
         password_file = {password:?}\n"
    );
    let third = Database::<Postgres>::migrated(&stage).await?;
    let text = [
        pipeline("broker", &format!("url = {:?}", workload.database.relay_url()?), &file),
        pipeline("database", &format!("url_file = {url:?}"), &section),
        pipeline("kafka", &format!("url = {:?}", third.relay_url()?), &sasl),
        String::from(
            "[page]\nlisten = \"127.0.0.1:0\"\ntls = { cert_file = \"/nowhere\", key_file = \"/nowhere\" }\n",
        ),
    ];
    let mut relay = RelayProcess::start(&stage, &Config::text(&stage, &text.concat())?)?;
    workload.database.append(&workload.topic, "k", "broker").await?;
    late.append(&workload.topic, "k", "database").await?;
    let missing = |file: &Path| format!("{}: No such file", file.display());
    relay.tells(&missing(&url)).await?;
    relay.tells("rabbitmq.password_file").await?;
    relay.tells("kafka.sasl.password_file").await?;
    relay.tells("the page is not served: page.tls.cert_file").await?;
    put(&url, &late.relay_url()?)?;
    let records = workload.broker.drain(&workload.topic, 1).await?;
    assert_eq!(records[0].payload, b"database");
    put(&password, "guest")?;
    let records = workload.broker.drain(&workload.topic, 1).await?;
    assert_eq!(records[0].payload, b"broker");
    assert!(relay.has_ended()?.is_none(), "the relay has ended");
    relay.stop().await
}

/// Goal: a pipeline that waiting cannot repair ends alone, and the process reports it until it
/// stops. Oracle: the other pipeline's records, the log, `/readyz`, the exit code after an orderly
/// stop.
async fn refused_alone(stage: Stage) -> Outcome {
    let workload = Workload::<Postgres>::open(&stage, brokers::open(&stage, Backend::Kafka).await?).await?;
    let newer = Database::<Postgres>::migrated(&stage).await?;
    let future = "INSERT INTO outbox_toolkit_migration (line, version, name, checksum) \
                  VALUES ('outbox', 99, '0099_future', 'x')";
    newer.execute(future).await?;
    let section = workload.broker.relay_section().ok_or("no section")?;
    let text = [
        pipeline("healthy", &format!("url = {:?}", workload.database.relay_url()?), &section),
        pipeline("newer", &format!("url = {:?}", newer.relay_url()?), &section),
        String::from("[http]\nlisten = \"127.0.0.1:0\"\n[page]\nlisten = \"127.0.0.1:0\"\n"),
    ];
    let mut relay = RelayProcess::start(&stage, &Config::text(&stage, &text.concat())?)?;
    relay.tells("refused and not retried; other pipelines run: pipeline newer").await?;
    let page = relay.address("serving the page").await?;
    let mut stream = TcpStream::connect(&page).await?;
    stream
        .write_all(format!("GET / HTTP/1.1\r\nHost: {page}\r\nConnection: close\r\n\r\n").as_bytes())
        .await?;
    let mut shown = String::new();
    stream.read_to_string(&mut shown).await?;
    assert!(
        shown.contains("this process does not run the pipeline, because the pipeline was refused"),
        "{shown}"
    );
    let address = relay.address("serving /metrics").await?;
    workload.database.append(&workload.topic, "k", "healthy").await?;
    arrive(&workload, &["healthy"]).await?;
    let (code, lines) = get(&address, "/readyz").await?;
    assert!(code == 503 && lines.contains("newer: refused") && lines.contains("healthy: leading"), "{lines}");
    relay.signal("TERM").await?;
    assert_eq!(relay.ended().await?.code(), Some(2));
    Ok(())
}

/// Goal: a run with `--once` ends: it publishes what it can, and does not wait for an operator.
/// Oracle: the records of the healthy pipeline, exit code 2, and the suggested command.
async fn once_waits_for_nobody(stage: Stage) -> Outcome {
    let workload = Workload::<Postgres>::open(&stage, brokers::open(&stage, Backend::Kafka).await?).await?;
    let empty = Database::<Postgres>::empty(&stage).await?;
    let section = workload.broker.relay_section().ok_or("no section")?;
    let healthy = pipeline("healthy", &format!("url = {:?}", workload.database.relay_url()?), &section);
    let restored = pipeline("restored", &format!("url = {:?}", empty.relay_url()?), &section);
    workload.database.append(&workload.topic, "k", "healthy").await?;
    let ran = run_once(&stage, &[&*healthy, &restored].concat()).await?;
    assert!(ran.1.contains("relay migrate up"), "{}", ran.1);
    assert_eq!(ran.0, Some(2), "{}", ran.1);
    arrive(&workload, &["healthy"]).await?;
    let (code, text) = run_once(&stage, &restored).await?;
    assert!(code == Some(2) && text.contains("relay migrate up --config"), "{code:?} {text}");
    Ok(())
}

async fn run_once(stage: &Stage, text: &str) -> Result<(Option<i32>, String), Failure> {
    let config = Config::text(stage, text)?;
    let path = config.path().to_str().ok_or("the path is not UTF-8")?;
    let output = tests::relay_process::relay(&["run", "--once", "--config", path]).await?;
    Ok((output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned()))
}
