//! Metrics, health, the service manager and SIGHUP of the real program.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use message::MetricKind;
use outbox::NewMessage;
use sqlx::Postgres;
use tests::eventually::when;
use tests::relay_process::{Config, relay};
use tests::workload::Workload;
use tests::{Backend, Failure, Outcome, RelayProcess, Role, Stage, brokers, eventually};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream, UnixDatagram};

const RELAY: &str = "orders";

tests::cases! { "{case}":
    anywhere + postgres kafka {
        every_metric_of_the_table_is_scraped_from_a_running_relay = every_metric,
        held_messages_are_backlog_in_metrics_and_status = held_messages_are_backlog,
        a_relay_is_ready_only_while_its_database_is_near = readiness,
        probes_are_answered_beside_silent_connections = silent_connections,
        a_reload_applies_the_level_and_names_the_rest = reload,
        the_service_manager_is_told = service_manager,
        rows_held_back_are_measured_without_the_right_to_see_it = hidden_transaction,
    }
}

/// Address with a port that the relay chooses and logs.
pub(crate) const ANY: &str = "127.0.0.1:0";
/// Log line that names the address.
pub(crate) const SERVING: &str = "serving /metrics";

/// Sends a GET request. Returns the status code and the body.
pub(crate) async fn get(address: &str, path: &str) -> Result<(u16, String), Failure> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: relay\r\n\r\n").as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let answer = String::from_utf8(answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("no head")?;
    let code = head.split(' ').nth(1).ok_or("no status")?.parse()?;
    Ok((code, body.to_owned()))
}

pub(crate) fn served(stage: &Stage, config: &Config, address: &str) -> Result<Config, Failure> {
    let text = std::fs::read_to_string(config.path())?;
    let http = format!("[http]\nlisten = {address:?}\npoll_interval = \"1s\"\nunready_after = \"2s\"\n");
    Config::text(stage, &format!("{text}{http}"))
}

/// Returns the value of the first series whose name and labels begin with `series`.
fn value(text: &str, series: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(series)?.rsplit_once(' ')?.1.parse().ok())
}

/// Goal: a running relay exports exactly the metrics of the table, with these types and labels.
/// Oracle: the text of a scrape, parsed here.
async fn every_metric(stage: Stage) -> Outcome {
    let workload = Workload::<Postgres>::open(&stage, brokers::open(&stage, Backend::Kafka).await?).await?;
    let url = workload.database.relay_url()?;
    let written = Config::write(&stage, RELAY, &url, workload.broker.as_ref(), "")?;
    let filter = "[[pipeline.filter]]\ntopics = [\"!left-out\"]\n";
    let text = format!("{}\n{filter}", std::fs::read_to_string(written.path())?);
    let config = served(&stage, &Config::text(&stage, &text)?, ANY)?;
    let relay = RelayProcess::start(&stage, &config)?;
    relay.tells("connected").await?;
    let address = relay.address(SERVING).await?;
    workload.place_many(5, 25).await?;
    let missing = workload.broker.topic_name("missing");
    let mut tx = workload.begin().await?;
    workload.outbox().enqueue(&mut tx, NewMessage::new(&missing).key("k").json(&1)).await?;
    workload.outbox().enqueue(&mut tx, NewMessage::new("left-out").json(&2)).await?;
    tx.commit().await?;
    let published = format!("relay_published_total{{relay=\"{RELAY}\",topic=\"{}\"}}", workload.topic);
    let text = eventually("the metrics show what was published and what failed", || async {
        let (code, text) = get(&address, "/metrics").await?;
        assert_eq!(code, 200);
        let failed = text.contains("relay_publish_failures_total{") && text.contains("relay_parked_total{");
        let looked = value(&text, "relay_history_seconds").is_some();
        Ok((value(&text, &published) == Some(25.0) && failed && looked).then_some(text))
    })
    .await?;
    for kind in ["relay_publish_seconds", "relay_delivery_seconds"] {
        let count = format!("{kind}_count{{relay=\"{RELAY}\",topic=\"{}\"}}", workload.topic);
        assert_eq!(value(&text, &count), Some(25.0), "{count}\n{text}");
        let sum = value(&text, &count.replace("_count", "_sum")).ok_or("no sum")?;
        assert!(sum > 0.0 && sum < 25.0 * 30.0, "{kind}: {sum}");
    }
    assert_eq!(value(&text, "relay_leading{"), Some(1.0));
    assert_eq!(value(&text, "relay_database_up{"), Some(1.0));
    let found = exported(&text);
    // These need a bug in the program, an old history, a failure of the database, RabbitMQ, or a
    // destination that is slower than its messages come.
    let rare = [
        "relay_maintenance_faults_total",
        "relay_expired_segments_total",
        "relay_database_failures_total",
        "relay_unrouted_total",
        "relay_busy_total",
    ];
    for metric in engine::telemetry::METRICS {
        match found.get(metric.name) {
            Some((kind, labels)) => {
                assert_eq!(*kind, metric.kind.as_str(), "{}", metric.name);
                assert_eq!(*labels, metric.labels.iter().copied().collect(), "{}", metric.name);
            }
            None => assert!(rare.contains(&metric.name), "{} is not exported:\n{text}", metric.name),
        }
        assert_eq!(metric.name.ends_with("_total"), metric.kind == MetricKind::Counter, "{}", metric.name);
    }
    for name in found.keys() {
        assert!(
            engine::telemetry::METRICS.iter().any(|metric| metric.name == *name),
            "{name} is in no table"
        );
    }
    assert_eq!(get(&address, "/nothing").await?.0, 404);
    relay.stop().await
}

/// Returns the metrics of a scrape, with the type and the names of the labels.
fn exported(text: &str) -> BTreeMap<&str, (&str, BTreeSet<&str>)> {
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let mut found: BTreeMap<_, _> = types.map(|(name, kind)| (name, (kind, BTreeSet::new()))).collect();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((name, rest)) = line.split_once('{') else { continue };
        let stripped = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        let name = stripped.filter(|name| found.contains_key(name)).unwrap_or(name);
        let labels = rest.rsplit_once('}').map_or("", |(labels, _)| labels);
        if let Some((_, known)) = found.get_mut(name) {
            let names = labels.split("\",").filter_map(|label| Some(label.split_once('=')?.0));
            known.extend(names.filter(|name| *name != "le"));
        }
    }
    found
}

/// Goal: messages that wait for an operator are visible in every view. Oracle: metrics and `relay
/// status` while a topic is missing; the exit code.
async fn held_messages_are_backlog(stage: Stage) -> Outcome {
    let workload = Workload::<Postgres>::open(&stage, brokers::open(&stage, Backend::Kafka).await?).await?;
    let url = workload.database.relay_url()?;
    let config = served(&stage, &Config::write(&stage, RELAY, &url, workload.broker.as_ref(), "")?, ANY)?;
    let missing = workload.broker.topic_name("missing");
    let mut tx = workload.begin().await?;
    for number in 0..20 {
        workload.outbox().enqueue(&mut tx, NewMessage::new(&missing).key("k").json(&number)).await?;
    }
    tx.commit().await?;
    let process = RelayProcess::start(&stage, &config)?;
    process.tells("topic stopped").await?;
    let address = process.address(SERVING).await?;
    eventually("the metrics count all of them", || async {
        let (_, text) = get(&address, "/metrics").await?;
        let held = value(&text, &format!("relay_parked_messages{{relay=\"{RELAY}\",state=\"held\""));
        let backlog = value(&text, "relay_backlog_messages{");
        let is_old = value(&text, "relay_oldest_pending_seconds{").is_some_and(|age| age > 0.0);
        Ok((held.is_some_and(|held| held >= 10.0) && backlog >= Some(20.0) && is_old).then_some(()))
    })
    .await?;
    let path = config.path().to_str().ok_or("the path is not UTF-8")?;
    let output = relay(&["status", "--config", path, "--output", "json"]).await?;
    let status: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(output.status.code(), Some(3), "{status}");
    assert!(status[0]["backlog_entries_max"].as_u64() >= Some(20), "{status}");
    assert!(status[0]["oldest_pending_age_seconds"].as_f64() > Some(0.0), "{status}");
    process.stop().await
}

/// Goal: traffic is sent only to processes that can work. Oracle: `/readyz` of a leader and a
/// standby, and of a relay whose database does not answer.
async fn readiness(stage: Stage) -> Outcome {
    let workload = Workload::<Postgres>::open(&stage, brokers::open(&stage, Backend::Kafka).await?).await?;
    let url = workload.database.relay_url()?;
    let config = Config::write(&stage, RELAY, &url, workload.broker.as_ref(), "")?;
    let both = served(&stage, &config, ANY)?;
    let leader = RelayProcess::start(&stage, &both)?;
    leader.tells("connected").await?;
    let standby = RelayProcess::start(&stage, &both)?;
    standby.tells("standing by").await?;
    let (leading, standing) = (leader.address(SERVING).await?, standby.address(SERVING).await?);
    assert_eq!(get(&leading, "/livez").await?, (200, String::from("alive\n")));
    assert_eq!(get(&leading, "/readyz").await?, (200, String::from("orders: leading\n")));
    assert_eq!(get(&standing, "/readyz").await?, (200, String::from("orders: standby\n")));
    leader.stop().await?;
    standby.stop().await?;
    // A port without a listener.
    let nowhere = "127.0.0.1:1";
    let text = std::fs::read_to_string(config.path())?;
    let line = text.lines().find(|line| line.starts_with("url = ")).ok_or("no url")?;
    let elsewhere = text.replace(line, &format!("url = \"postgres://relay@{nowhere}/orders\""));
    let config = served(&stage, &Config::text(&stage, &elsewhere)?, ANY)?;
    let relay = RelayProcess::start(&stage, &config)?;
    let away = relay.address(SERVING).await?;
    let unready = || async { Ok(get(&away, "/readyz").await.ok().filter(|(code, _)| *code == 503)) };
    eventually("it is alive and not ready", unready).await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(
        get(&away, "/readyz").await?,
        (503, String::from("orders: waiting for the database or the broker\n"))
    );
    assert_eq!(get(&away, "/livez").await?.0, 200);
    relay.stop().await
}

/// Goal: a client that reaches the port of metrics and health cannot get the process killed: probes
/// are answered whatever other clients do there. 200 connections from the prober's own address send
/// nothing. Before each probe, more such connections are opened, some of them from other addresses,
/// and some begin a request. Oracle: 20 probes, each answered with 200; the connections that the
/// relay has closed.
async fn silent_connections(stage: Stage) -> Outcome {
    const PROBES: usize = 20;
    /// The beginning of a request.
    const HEAD: &[u8] = b"GET /livez HTTP/1.1\r\nHost: ";
    let workload = Workload::<Postgres>::open(&stage, brokers::open(&stage, Backend::Kafka).await?).await?;
    let url = workload.database.relay_url()?;
    let config = Config::write(&stage, RELAY, &url, workload.broker.as_ref(), "")?;
    let relay = RelayProcess::start(&stage, &served(&stage, &config, "0.0.0.0:0")?)?;
    relay.tells("connected").await?;
    let address = relay.address(SERVING).await?;
    let (_, port) = address.rsplit_once(':').ok_or("no port")?;
    let address = format!("127.0.0.1:{port}");
    let mut silent = Vec::new();
    for _ in 0..200 {
        silent.push(connect_from(1, &address).await?);
    }
    let mut answered = 0;
    for round in 0..PROBES {
        for host in 1..=8 {
            for number in 0..8 {
                let mut stream = connect_from(host, &address).await?;
                // The relay may already have closed the connection.
                if number % 2 == 0 && stream.write_all(HEAD).await.is_err() {
                    continue;
                }
                silent.push(stream);
            }
        }
        let path = if round % 2 == 0 { "/livez" } else { "/readyz" };
        let (code, body) = tokio::time::timeout(PROBE_MAX, get(&address, path))
            .await
            .map_err(|_| format!("probe {round} was not answered within {PROBE_MAX:?}"))??;
        assert_eq!(code, 200, "probe {round}: {body}");
        answered += 1;
    }
    assert_eq!(answered, PROBES);
    // Silent connections are closed, whatever follows them.
    eventually("all silent connections are closed", || {
        silent.retain(is_open);
        let closed = silent.is_empty();
        async move { Ok(closed.then_some(())) }
    })
    .await?;
    relay.stop().await
}

/// Much longer than a probe takes, but shorter than the total time of the test's silent connections
/// one after the other.
const PROBE_MAX: Duration = Duration::from_secs(20);

/// Connects from the loopback address that ends in `host`.
async fn connect_from(host: u8, address: &str) -> Result<TcpStream, Failure> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((std::net::Ipv4Addr::new(127, 0, 0, host), 0).into())?;
    Ok(socket.connect(address.parse()?).await?)
}

/// Returns whether the other end has kept the connection open.
fn is_open(stream: &TcpStream) -> bool {
    let mut bytes = [0; 512];
    loop {
        match stream.try_read(&mut bytes) {
            Ok(0) => return false,
            // A response, which does not matter.
            Ok(_) => {}
            Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
        }
    }
}

/// Goal: SIGHUP applies the settings that can change at run time and names the rest; an error
/// changes nothing. Oracle: the log; the process continues.
async fn reload(stage: Stage) -> Outcome {
    let workload = Workload::<Postgres>::open(&stage, brokers::open(&stage, Backend::Kafka).await?).await?;
    let url = workload.database.relay_url()?;
    let config = Config::write(&stage, RELAY, &url, workload.broker.as_ref(), "[log]\nlevel = \"info\"\n")?;
    let relay = RelayProcess::start_with(&stage, &config, &[])?;
    relay.tells("leading").await?;
    let text = std::fs::read_to_string(config.path())?;
    std::fs::write(config.path(), text.replace("level = \"info\"", "level = \"lout,\u{1}=\""))?;
    relay.signal("HUP").await?;
    relay.tells("the previous settings stay in effect").await?;
    let changed = text.replace("level = \"info\"", "level = \"info,relay=debug\"");
    std::fs::write(config.path(), changed.replace("attempts_max = 2", "attempts_max = 3"))?;
    relay.signal("HUP").await?;
    relay.tells("log.level is now").await?;
    relay.tells("apply after a restart: pipeline[0].engine.attempts_max").await?;
    workload.place("k").await?;
    relay.tells("telemetry: published").await?;
    relay.stop().await
}

/// Goal: the relay works as a unit of `Type=notify` with a watchdog. Oracle: the datagrams,
/// received by the test's own socket.
async fn service_manager(stage: Stage) -> Outcome {
    let workload = Workload::<Postgres>::open(&stage, brokers::open(&stage, Backend::Kafka).await?).await?;
    let url = workload.database.relay_url()?;
    let config = Config::write(&stage, RELAY, &url, workload.broker.as_ref(), "")?;
    let path = stage.folder().join("notify");
    let socket = UnixDatagram::bind(&path)?;
    let path = path.to_str().ok_or("the path is not UTF-8")?;
    let variables = [("NOTIFY_SOCKET", path), ("WATCHDOG_USEC", "200000"), ("RELAY_LOG", "info,relay=debug")];
    let mut relay = RelayProcess::start_with(&stage, &config, &variables)?;
    told(&socket, "READY=1").await?;
    told(&socket, "WATCHDOG=1").await?;
    told(&socket, "WATCHDOG=1").await?;
    relay.signal("HUP").await?;
    told(&socket, "RELOADING=1").await?;
    told(&socket, "READY=1").await?;
    relay.signal("TERM").await?;
    told(&socket, "STOPPING=1").await?;
    assert_eq!(relay.ended().await?.code(), Some(0));
    Ok(())
}

/// Waits for a datagram with this line.
async fn told(socket: &UnixDatagram, text: &str) -> Outcome {
    let waited = async {
        let mut buffer = [0; 1024];
        loop {
            let length = socket.recv(&mut buffer).await?;
            if String::from_utf8_lossy(&buffer[..length]).lines().any(|line| line == text) {
                return Ok(());
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), waited).await.map_err(|_| format!("{text} was not told"))?
}

/// Goal: a transaction that holds rows back raises the alert even under the documented roles, which
/// cannot see its age, and the hidden age is not shown as 0. Oracle: the metric, which grows; the
/// pid; `relay status` before and after the grant that `relay doctor` names.
async fn hidden_transaction(stage: Stage) -> Outcome {
    let workload = Workload::<Postgres>::open(&stage, brokers::open(&stage, Backend::Kafka).await?).await?;
    let (user, group) = (stage.unique("relay"), Role::Relay.user());
    workload.database.execute(&format!("CREATE ROLE {user} LOGIN PASSWORD 'outbox' IN ROLE {group}")).await?;
    let (database, gone) = (workload.database.clone(), user.clone());
    stage.afterwards(
        format!("role {user}"),
        async move { database.execute(&format!("DROP ROLE {gone}")).await },
    );
    let url = workload.database.relay_url()?.replacen(&format!("//{group}:"), &format!("//{user}:"), 1);
    let config = served(&stage, &Config::write(&stage, RELAY, &url, workload.broker.as_ref(), "")?, ANY)?;
    let process = RelayProcess::start(&stage, &config)?;
    let address = process.address(SERVING).await?;
    let mut tx = workload.begin().await?;
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut *tx).await?;
    workload.outbox().enqueue(&mut tx, NewMessage::new(&workload.topic).key("k").json(&1)).await?;
    eventually("the metric counts from the first look", || async {
        let (_, text) = get(&address, "/metrics").await?;
        let named = value(&text, "relay_held_back_pid{") == Some(f64::from(pid));
        Ok((named && value(&text, "relay_held_back_seconds{").is_some_and(|age| age >= 2.0)).then_some(()))
    })
    .await?;
    let path = config.path().to_str().ok_or("the path is not UTF-8")?;
    let status = || async {
        let output = relay(&["status", "--config", path, "--output", "json"]).await?;
        let told: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        Ok::<_, Failure>(told[0]["held_back_by"].clone())
    };
    let hidden = status().await?;
    assert_eq!(hidden["pid"], pid, "{hidden}");
    assert!(hidden["age_seconds"].is_null() && hidden["state"].is_null(), "{hidden}");
    let table = relay(&["status", "--config", path]).await?;
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(table.contains("age hidden (needs pg_read_all_stats)"), "{table}");
    workload.database.execute(&format!("GRANT pg_read_all_stats TO {user}")).await?;
    let shown = status().await?;
    assert!(shown["age_seconds"].is_number() && shown["state"] == "idle in transaction", "{shown}");
    tx.commit().await?;
    eventually("nothing holds rows back", || async {
        let (_, text) = get(&address, "/metrics").await?;
        Ok(when(value(&text, "relay_held_back_seconds{") == Some(0.0)))
    })
    .await?;
    process.stop().await
}
