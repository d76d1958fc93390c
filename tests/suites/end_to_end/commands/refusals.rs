//! The output of commands when a database or a broker refuses the relay.

use serde_json::Value;
use sqlx::{Postgres, Sqlite};
use tests::eventually::when;
use tests::relay_process::Config;
use tests::{Database, Failure, Outcome, RelayProcess, Stage, eventually};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::Ran;

tests::cases! { "refusals/{case}/{on}":
    sqlite { a_broker_that_is_away_is_shown = away }
    postgres { the_remedy_fits_the_cause = remedies }
}

/// Returns the broker's error from the status of the only pipeline.
pub(crate) async fn refusal(config: &Config) -> Result<Value, Failure> {
    let ran = Ran::with(config, &["status", "--output", "json"]).await?;
    Ok(ran.json()?[0]["broker_error"].clone())
}

/// Goal: the status, the page and a message's history show an operator why nothing is published:
/// the broker's error, its start, and the remedy. Oracle: a broker's port with no listener.
async fn away(stage: Stage) -> Outcome {
    let database = Database::<Sqlite>::migrated(&stage).await?;
    let section = "[pipeline.rabbitmq]\nurl = \"amqp://guest:s3cret@127.0.0.1:1\"\n";
    let page = "[page]\nlisten = \"127.0.0.1:0\"\n";
    let config = Config::with_section(&stage, "orders", &database.relay_url()?, section, page)?;
    database.append("orders", "k", "{}").await?;
    let relay = RelayProcess::start(&stage, &config)?;
    eventually("the status has it", || async { Ok(when(!refusal(&config).await?.is_null())) }).await?;

    let found = refusal(&config).await?;
    let error = found["error"].as_str().unwrap_or_default();
    let remedy = "listens there: start the broker, or correct host and port in rabbitmq.url";
    assert!(error.contains("Connection refused") && error.ends_with(remedy), "{found}");
    assert!(found["passes"] == true && found["since"].is_string(), "{found}");
    let status = Ran::with(&config, &["status"]).await?.ended(3)?;
    assert!(status.out.contains("orders: no message reaches the broker, for "), "{status:?}");
    let story = Ran::with(&config, &["show", "1"]).await?.done()?;
    let address = relay.address("serving the page").await?;
    // The page queries the database only once for several requests.
    let is_shown = async || Ok(when(page_of(&address).await?.contains("no message reaches the broker")));
    eventually("the page has it", is_shown).await?;
    let page = page_of(&address).await?;
    for text in [&status.out, &story.out, &page] {
        let is_named = text.contains("no message reaches the broker")
            || text.contains("no message has reached the broker since");
        assert!(is_named && text.contains(remedy), "{text}");
        assert!(!text.contains("s3cret"), "{text}");
    }
    relay.stop().await
}

/// Returns the start page.
async fn page_of(address: &str) -> Result<String, Failure> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut shown = String::new();
    stream.read_to_string(&mut shown).await?;
    Ok(shown)
}

/// Goal: for every cause that keeps the relay out of its database, every command names the same
/// remedy, including `check` and `doctor`. Oracle: each cause separately.
async fn remedies(stage: Stage) -> Outcome {
    let database = Database::<Postgres>::migrated(&stage).await?;
    let url = database.relay_url()?;
    let plain = TcpListener::bind("127.0.0.1:0").await?;
    let without_tls = plain.local_addr()?;
    let serving = tokio::spawn(async move {
        while let Ok((mut stream, _)) = plain.accept().await {
            // A request for TLS has eight bytes.
            if stream.read_exact(&mut [0; 8]).await.is_ok() {
                let _ = stream.write_all(b"N").await;
            }
        }
    });
    let no_pem = stage.folder().join("ca.pem");
    std::fs::write(&no_pem, "none")?;
    let no_pem = no_pem.to_str().ok_or("the path is not UTF-8")?;
    let (user, place) = url.rsplit_once('@').ok_or("a URL without a user")?;
    let (server, _) = place.split_once('/').ok_or("a URL without a database")?;
    let with = |query: &str| format!("{url}{}{query}", if url.contains('?') { '&' } else { '?' });
    for (url, code, parts) in [
        (url.replacen(":outbox@", ":s3cret@", 1), 2, ["password authentication failed", "ALTER ROLE"]),
        (format!("{user}@{server}/nowhere"), 2, ["\"nowhere\" does not exist", "CREATE DATABASE"]),
        (format!("{user}@127.0.0.1:1/d"), 3, ["Connection refused", "start the server"]),
        (format!("{user}@nowhere.invalid/d?sslmode=require"), 3, ["lookup address", "name resolution"]),
        (with("sslmode=verify-full"), 2, ["not trusted here", "sslrootcert of the URL"]),
        (with("sslmode=verify-full&sslrootcert=/nowhere/ca.pem"), 2, ["/nowhere/ca.pem", "correct the path"]),
        (with(&format!("sslmode=verify-full&sslrootcert={no_pem}")), 2, [no_pem, "BEGIN CERTIFICATE"]),
        (with("sslmode=s3cret"), 2, ["\"sslmode\"", "verify-full"]),
        (format!("{user}@{without_tls}/d?sslmode=require"), 2, ["offers no TLS", "ssl = on"]),
    ] {
        let file = stage.folder().join("url");
        std::fs::write(&file, &url)?;
        // The broker does not matter here; its port has no listener.
        let text = format!(
            "[[pipeline]]\nname = \"orders\"\n[pipeline.database]\nurl_file = {file:?}\n\
             [pipeline.rabbitmq]\nurl = \"amqp://127.0.0.1:1\"\n"
        );
        let config = Config::text(&stage, &text)?;
        for command in [&["check"][..], &["doctor"]] {
            let ran = Ran::with(&config, &[command, &["--output", "json"]].concat()).await?;
            let found = ran.json()?;
            let checks = found[0]["checks"].as_array().or(found["pipelines"][0]["checks"].as_array());
            let of_database = |it: &&Value| it["check"] == "connection" && it["subject"] == "database";
            let finding = checks.into_iter().flatten().find(of_database).ok_or("no such check")?;
            let told = format!("{} {}", finding["measured"], finding["remedy"]);
            let remedy = finding["remedy"].as_str().unwrap_or_default();
            assert!(told.contains(&parts[0].replace('"', "\\\"")), "{parts:?} in {command:?}: {finding}");
            assert!(remedy.contains(parts[1]), "{parts:?} in {command:?}: {finding}");
            assert!(!ran.out.contains("s3cret"), "{ran:?}");
        }
        let migrated = Ran::with(&config, &["migrate", "status"]).await?;
        migrated.refused(code, &parts)?;
        let status = Ran::with(&config, &["status"]).await?.ended(code)?;
        assert!(parts.iter().all(|part| status.err.contains(part)), "{parts:?}: {status:?}");
        assert!(!status.err.contains("s3cret"), "{status:?}");
    }
    serving.abort();
    Ok(())
}
