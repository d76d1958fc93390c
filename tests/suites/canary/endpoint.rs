//! The path of messages to HTTP endpoints that repeat everything they get in their answers.

use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use base64::Engine as _;
use brokers::http::Verifier;
use message::MaxInFlightPerKey;
use outbox::NewMessage;
use sqlx::Postgres;
use tests::brokers::Memory;
use tests::relay_process::{Config, relay};
use tests::stage::random;
use tests::workload::Workload;
use tests::{Database, Failure, Outcome, RelayProcess, Stage, eventually};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use crate::capture::{DIRECTIVES, Told};

/// The topics, each with the status of its endpoint. The last two have no receiver.
const TOPICS: [(&str, u16); 12] = [
    ("taken", 204),
    ("moved", 307),
    ("denied", 401),
    ("unknown", 404),
    ("timed-out", 408),
    ("gone", 410),
    ("invalid", 422),
    ("throttled", 429),
    ("failed", 500),
    ("unavailable", 503),
    ("away", 0),
    ("no-tls", 0),
];

/// Texts that must not be shown: parts of URLs, the key of signatures, payload and header.
struct Canaries {
    path: String,
    query: String,
    secret: String,
    payload: String,
    header: String,
}

impl Canaries {
    fn new() -> Self {
        let canary = |what: &str| format!("CANARY{what}{}{}", random(), random());
        Self {
            path: canary("path"),
            query: canary("query"),
            secret: canary("secret"),
            payload: canary("payload"),
            header: canary("header"),
        }
    }

    fn all(&self) -> [&str; 5] {
        [&self.path, &self.query, &self.secret, &self.payload, &self.header]
    }
}

/// The topics that were posted, with the whole requests.
type Seen = Arc<Mutex<Vec<(String, String)>>>;

/// Answers with the status of the topic, and repeats the request: its URL, its headers and its
/// body.
async fn answer(State(seen): State<Seen>, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    let topic = uri.path().rsplit('/').next().unwrap_or_default().to_owned();
    let status = TOPICS.iter().find(|(name, _)| *name == topic).map_or(404, |(_, status)| *status);
    let said = format!("cannot post {uri} with {headers:?} and {}", String::from_utf8_lossy(&body));
    seen.lock().unwrap_or_else(PoisonError::into_inner).push((topic, said.clone()));
    let mut response = (StatusCode::from_u16(status).unwrap_or_default(), said).into_response();
    let elsewhere = format!("https://elsewhere.example{uri}");
    if let (307, Ok(to)) = (status, HeaderValue::try_from(elsewhere)) {
        response.headers_mut().insert(header::LOCATION, to);
    }
    response
}

/// Goal: nothing that is logged or printed holds a part of an endpoint's URL, the key of its
/// signatures, a payload or a header's value, although the endpoints repeat all that they know.
/// Oracle: all text of the relay and its commands, while the requests arrive with all of it.
pub(crate) async fn play(stage: Stage) -> Outcome {
    let (canaries, mut told) = (Canaries::new(), Told::default());
    let database = Database::<Postgres>::migrated(&stage).await?;
    // Only for the tables: nothing is sent through it.
    let broker = Arc::new(Memory::new(&stage, MaxInFlightPerKey::One));
    let workload = Workload::<Postgres>::on(database, broker).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    let seen = Seen::default();
    let router = Router::new().fallback(post(answer)).with_state(Arc::clone(&seen));
    let _serving =
        AbortOnDropHandle::new(tokio::spawn(async move { drop(axum::serve(listener, router).await) }));
    let secret_file = stage.folder().join("webhook-secret");
    let secret = base64::engine::general_purpose::STANDARD.encode(&canaries.secret);
    std::fs::write(&secret_file, format!("whsec_{secret}"))?;

    let mut tx = workload.begin().await?;
    for (topic, _) in TOPICS {
        let message =
            NewMessage::new(topic).header("authorization", &canaries.header).json(&canaries.payload);
        workload.outbox().enqueue(&mut tx, message).await?;
    }
    tx.commit().await?;
    let section = section(&address, &secret_file.display().to_string(), &canaries);
    let config = Config::with_section(&stage, "orders", &workload.database.relay_url()?, &section, "")?;
    let relay_process = RelayProcess::start_with(&stage, &config, &[("RELAY_LOG", DIRECTIVES)])?;
    for (topic, status) in TOPICS {
        let line = if status == 0 { format!("of topic {topic}") } else { format!("status {status}") };
        if status != 204 {
            relay_process.tells(&line).await?;
        }
    }
    eventually("what the endpoints refuse is dead", || async {
        let listed = relay(&["dead", "list", "--config", &config.path().display().to_string()]).await?;
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        Ok((listed.contains("unknown") && listed.contains("invalid")).then_some(()))
    })
    .await?;
    commands(&config, &mut told).await?;
    arrived(&seen, &canaries)?;
    let log = relay_process.log()?;
    assert!(log.contains("TRACE") && log.contains("hyper"), "{log}");
    told.add("the relay's log", log);
    relay_process.kill().await?;

    let verifier = Verifier::new(&[secret_file])?;
    let Err(error) = verifier.read("t", &HeaderMap::new(), Bytes::from(canaries.payload.clone())) else {
        return Err("a request without a signature was accepted".into());
    };
    told.error("a request without a signature", &error);
    told.add("the verifier", format!("{verifier:?}"));
    match told.leaks(&canaries.all()).as_slice() {
        [] => Ok(()),
        leaks => Err(leaks.join("\n\n").into()),
    }
}

/// Returns a section with an endpoint for each topic.
fn section(address: &str, secret_file: &str, canaries: &Canaries) -> String {
    let Canaries { path, query, .. } = canaries;
    let endpoint = |(topic, _): (&str, u16)| {
        let origin = match topic {
            "away" => String::from("http://127.0.0.1:1"),
            "no-tls" => format!("https://{address}"),
            _ => format!("http://{address}"),
        };
        format!(
            "[pipeline.http.endpoints.{topic}]\nurl = \"{origin}/{path}/{topic}?token={query}\"\n\
             secret_files = [{secret_file:?}]\n"
        )
    };
    let endpoints = TOPICS.map(endpoint).concat();
    format!(
        "[pipeline.http]\nprivate_networks = [\"127.0.0.1\"]\nstopping_statuses = [401]\n\
         connect_timeout_ms = 5000\n{endpoints}"
    )
}

/// Runs the commands that show something of endpoints or messages.
async fn commands(config: &Config, told: &mut Told) -> Outcome {
    let path = config.path().display().to_string();
    let file = ["--config", path.as_str()];
    for command in [
        &["status"][..],
        &["doctor"],
        &["dead", "list"],
        &["dead", "list", "--state", "retrying"],
        &["dead", "audit"],
        &["config", "check"],
        &["config", "show"],
    ] {
        let output = relay(&[command, &file[..]].concat()).await?;
        told.add(format!("{command:?}, results"), String::from_utf8_lossy(&output.stdout));
        told.add(format!("{command:?}, errors"), String::from_utf8_lossy(&output.stderr));
    }
    for id in 1..=TOPICS.len() {
        let output = relay(&[&["dead", "show", "--id", &id.to_string()], &file[..]].concat()).await?;
        told.add(format!("dead show {id}"), String::from_utf8_lossy(&output.stdout));
    }
    Ok(())
}

/// Demands that the requests had everything that must not be shown: otherwise the case proves
/// nothing.
fn arrived(seen: &Seen, canaries: &Canaries) -> Result<(), Failure> {
    let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    for (topic, status) in TOPICS {
        let found = seen.iter().find(|(of, _)| of == topic);
        let Some((_, request)) = found else {
            if status == 0 {
                continue;
            }
            return Err(format!("nothing was posted to {topic}").into());
        };
        for canary in [&canaries.path, &canaries.query, &canaries.payload, &canaries.header] {
            assert!(request.contains(canary.as_str()), "{request}");
        }
        assert!(request.contains("webhook-signature"), "{request}");
    }
    Ok(())
}
