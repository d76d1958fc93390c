//! Access to the page: who is admitted, and how.

use std::sync::Arc;

use rustls::pki_types::ServerName;
use tests::relay_process::{Config, relay};
use tests::workload::Workload;
use tests::{Backend, Outcome, RelayProcess, Stage, brokers, eventually};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::client::{Answer, Client};
use super::{ANN, EVE, SERVING, Served, USERS, config};

/// Every address that is read with GET.
pub(crate) const READ: [&str; 27] = [
    "/",
    "/pipeline?name=orders",
    "/messages",
    "/messages?key=order-7&header=tenant&value=acme",
    "/topics",
    "/held",
    "/dead",
    "/decision?id=01a21987-9bca-7af8-8184-ba681445d351",
    "/message?id=1",
    "/consumers",
    "/keys",
    "/sagas",
    "/saga?database=pipeline:orders&type=a&id=b",
    "/saga/decide?database=pipeline:orders&type=a&id=b&what=retry",
    "/audit",
    "/audit/export?format=csv",
    "/dead/export?format=json",
    "/doctor?pipeline=orders",
    "/verify?pipeline=orders",
    "/replay?pipeline=orders",
    "/events",
    "/assets/page.css",
    "/assets/page.js",
    "/assets/htmx.js",
    "/assets/icon.svg",
    "/pause?pipeline=orders",
    "/nothing",
];

const KEY: [(&str, &str); 7] = [
    ("what", "release"),
    ("database", "pipeline:orders"),
    ("scope", "a"),
    ("operation", "POST /a"),
    ("key", "k"),
    ("holder", "01a21987-9bca-7af8-8184-ba681445d351"),
    ("reason", "forged"),
];

/// Every address that changes something, with valid fields.
pub(crate) const CHANGES: [(&str, &[(&str, &str)]); 18] = [
    ("/dead/confirm", &[("what", "requeue-all")]),
    (
        "/dead/decide",
        &[
            ("what", "discard-all"),
            ("decision", "01a21987-9bca-7af8-8184-ba681445d351"),
            ("at", "outbox/4000000000000000/2/0/orders"),
            ("reason", "forged"),
        ],
    ),
    ("/decision/stop", &[("id", "01a21987-9bca-7af8-8184-ba681445d351")]),
    ("/message/payload", &[("id", "1"), ("reason", "forged")]),
    ("/message/edit", &[("id", "1"), ("reason", "forged")]),
    ("/message/edit/decide", &[("pipeline", "orders"), ("place", "1"), ("reason", "forged")]),
    ("/message/edit/content", &[("pipeline", "orders"), ("number", "1"), ("reason", "forged")]),
    ("/pause", &[("pipeline", "orders"), ("scope", "pipeline"), ("reason", "forged")]),
    ("/resume", &[("pipeline", "orders"), ("scope", "pipeline"), ("reason", "forged")]),
    ("/doctor", &[("pipeline", "orders")]),
    ("/verify", &[("pipeline", "orders")]),
    ("/verify/stop", &[("pipeline", "orders")]),
    ("/replay/confirm", &[("pipeline", "orders"), ("all", "yes")]),
    ("/replay", &[("pipeline", "orders"), ("all", "yes"), ("chosen", "1"), ("reason", "forged")]),
    ("/replay/stop", &[("pipeline", "orders")]),
    ("/keys/confirm", &KEY),
    ("/keys/decide", &KEY),
    (
        "/saga/decide",
        &[
            ("what", "retry"),
            ("database", "pipeline:orders"),
            ("type", "a"),
            ("id", "b"),
            ("reason", "forged"),
        ],
    ),
];

/// Goal: an operator cannot expose the page to a network by mistake. Oracle: the exit code and the
/// text.
pub(crate) async fn refused_starts(stage: Stage) -> Outcome {
    let pipeline = "[[pipeline]]\nname = \"orders\"\n[pipeline.database]\nurl = \"sqlite:orders.db?mode=rwc\"\n\
                    [pipeline.kafka]\nbootstrap_servers = [\"127.0.0.1:1\"]\n";
    let short = USERS.replace("token-of-ann-the-operator", "short");
    for (page, told) in [
        ("[page]\nlisten = \"0.0.0.0:0\"\n", "no login is configured"),
        (&format!("[page]\nlisten = \"0.0.0.0:0\"\nhosts = [\"relay.internal\"]\n{USERS}"), "unencrypted"),
        (
            &format!("[page]\nlisten = \"0.0.0.0:0\"\nbehind_proxy = true\n{USERS}"),
            "its host names are unknown",
        ),
        (&format!("[page]\nlisten = \"127.0.0.1:0\"\n{short}"), "the minimum is 12"),
        (
            "[page]\nlisten = \"127.0.0.1:0\"\ntls = { cert_file = \"/nowhere\", key_file = \"/nowhere\" }\n",
            "cert_file",
        ),
    ] {
        let config = Config::text(&stage, &format!("{pipeline}{page}"))?;
        let path = config.path().to_str().ok_or("the path is not UTF-8")?;
        // A certificate may be mounted later, so the relay starts and publishes meanwhile.
        let commands: &[&str] = if told == "cert_file" { &["check"] } else { &["check", "run"] };
        for command in commands {
            let output = relay(&[*command, "--config", path]).await?;
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(2), "{command} {page}: {text}");
            assert!(text.contains(told) && !text.contains("password-of-eve"), "{command} {page}: {text}");
        }
    }
    Ok(())
}

/// Goal: without credentials only the login form is shown. Oracle: the answer to every address: as
/// it is, under a foreign host name, with a token in the address, and with a wrong token.
pub(crate) async fn nobody_unknown(stage: Stage) -> Outcome {
    let served = Served::start(&stage, USERS, "hosts = [\"relay.internal\"]\nbehind_proxy = true\n").await?;
    let nobody = Client::new(&served.address);
    for path in READ {
        let answer = nobody.get(path).await?;
        assert_eq!(answer.status, 401, "{path}: {}", answer.body);
        assert!(!answer.body.contains("workload") && !answer.body.contains("Leader"), "{path}");
        sealed(&answer);
    }
    let here = format!("http://{}", served.address);
    for (path, fields) in CHANGES {
        let answer = nobody.clone().with("Origin", &here).post(path, fields).await?;
        assert_eq!(answer.status, 401, "{path}");
    }
    for path in ["/login", "/login.css"] {
        let answer = nobody.get(path).await?;
        assert_eq!(answer.status, 200, "{path}");
        sealed(&answer);
    }
    let ann = served.ann();
    let no_answer = ["/events", "/saga?", "/saga/"];
    for path in READ.iter().filter(|path| !no_answer.iter().any(|begin| path.starts_with(*begin))) {
        let answer = ann.get(path).await?;
        let known = if *path == "/nothing" || path.starts_with("/decision?") {
            404
        } else if path.starts_with("/message?") {
            422
        } else {
            200
        };
        assert_eq!(answer.status, known, "{path}: {}", answer.body);
        sealed(&answer);
    }
    for host in ["evil.example", "127.0.0.1.evil.example", "relay.internal.evil.example", "0.0.0.0", ""] {
        let answer = ann.clone().host(host).get("/").await?;
        assert!(matches!(answer.status, 400 | 421), "{host}: {}", answer.status);
    }
    assert_eq!(ann.clone().host("relay.internal:443").get("/").await?.status, 200);
    assert_eq!(ann.get("http://evil.example/").await?.status, 421, "an address of another host");
    for secret in ["/?token=x", "/dead?access_token=x", "/login?password=x"] {
        let answer = ann.get(secret).await?;
        assert!(answer.status == 400 && answer.body.contains("logs and histories"), "{secret}");
    }
    for wrong in
        ["Bearer token-of-ann-the-operatoR", "Bearer ", "Bearer password-of-eve", "Basic eHg=", "Digest x"]
    {
        assert_eq!(nobody.clone().with("Authorization", wrong).get("/").await?.status, 401, "{wrong}");
    }
    let long = format!("/dead?topic={}", "a".repeat(9_000));
    assert_eq!(ann.get(&long).await?.status, 414);
    let large = [("pipeline", "orders"), ("reason", &*"a".repeat(170_000))];
    assert_eq!(ann.post("/pause", &large).await?.status, 413);
    assert_eq!(ann.send("PUT", "/pause", "").await?.status, 405);
    assert_eq!(ann.send("TRACE", "/", "").await?.status, 405);
    served.relay.stop().await
}

/// Checks the headers that every response carries, and that it has no inline code.
pub(crate) fn sealed(answer: &Answer) {
    let policy = answer.value("content-security-policy").unwrap_or_default();
    assert!(policy.contains("default-src 'none'") && policy.contains("script-src 'self'"), "{}", answer.head);
    assert!(!policy.contains("unsafe") && policy.contains("frame-ancestors 'none'"), "{policy}");
    assert_eq!(answer.value("x-content-type-options"), Some("nosniff"));
    assert_eq!(answer.value("x-frame-options"), Some("DENY"));
    assert!(answer.value("cache-control").is_some());
    for inline in [" style=\"", " onclick=", " onload=", "<style", "javascript:"] {
        let is_script = answer.value("content-type").is_some_and(|kind| kind.contains("javascript"));
        assert!(is_script || !answer.body.contains(inline), "{inline} in {}", answer.body);
    }
}

/// Goal: a user logs in through the form and out again. Oracle: the cookie and its attributes; the
/// answers to this cookie, to a changed cookie, and after many wrong passwords.
pub(crate) async fn login(stage: Stage) -> Outcome {
    let served = Served::start(&stage, USERS, "").await?;
    let browser = Client::new(&served.address).with("Origin", &format!("http://{}", served.address));
    let fields = [("name", "ann"), ("secret", ANN), ("next", "/held?page=1")];
    let entered = browser.post("/login", &fields).await?;
    assert_eq!((entered.status, entered.value("location")), (303, Some("/held?page=1")), "{}", entered.head);
    let cookie = entered.value("set-cookie").ok_or("no cookie")?.to_owned();
    for attribute in ["HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=43200"] {
        assert!(cookie.contains(attribute), "{cookie}");
    }
    assert!(!cookie.contains(ANN), "{cookie}");
    let pair = cookie.split(';').next().unwrap_or_default().to_owned();
    let known = Client::new(&served.address).with("Cookie", &pair);
    let page = known.get("/").await?;
    assert!(
        page.status == 200 && page.body.contains(">ann<") && page.body.contains("operator"),
        "{}",
        page.body
    );
    // Cookies of one port are sent to all other ports of this machine.
    let port = served.address.rsplit_once(':').ok_or("no port")?.1;
    let (name, value) = pair.split_once('=').ok_or("no value")?;
    assert_eq!(name, format!("relay-{port}"));
    let wrong = [format!("{name}=A{value}"), format!("{name}="), format!("relay-1={value}")];
    for wrong in wrong.into_iter().chain([format!("{name}=YW5u.99999999999.AAAA")]) {
        assert_eq!(
            Client::new(&served.address).with("Cookie", &wrong).get("/").await?.status,
            401,
            "{wrong}"
        );
    }
    let away = [("name", "eve"), ("secret", EVE), ("next", "//evil.example/")];
    assert_eq!(browser.post("/login", &away).await?.value("location"), Some("/"));
    let foreign = Client::new(&served.address).with("Origin", "https://evil.example");
    assert_eq!(foreign.post("/login", &fields).await?.status, 403, "nobody is logged in by a foreign page");
    let wrong = [("name", "ann"), ("secret", "guessed-secret")];
    let tries = (0..24).map(|_| browser.post("/login", &wrong));
    let answers = futures_util::future::join_all(tries).await;
    let mut statuses = Vec::new();
    for answer in answers {
        statuses.push(answer?.status);
    }
    assert!(statuses.iter().all(|status| matches!(status, 401 | 429)), "{statuses:?}");
    assert!(statuses.contains(&429), "a flood of guesses is slowed down: {statuses:?}");
    let left =
        known.clone().with("Origin", &format!("http://{}", served.address)).post("/logout", &[]).await?;
    assert!(left.value("set-cookie").is_some_and(|cookie| cookie.contains("Max-Age=0")), "{}", left.head);
    served.relay.stop().await
}

/// Goal: the page speaks TLS with the configured certificate. Oracle: a client that trusts only the
/// authority of that certificate.
pub(crate) async fn tls(stage: Stage) -> Outcome {
    let certified = rcgen::generate_simple_self_signed([String::from("localhost")])?;
    let (cert, key) = (stage.folder().join("page.pem"), stage.folder().join("page.key"));
    std::fs::write(&cert, certified.cert.pem())?;
    std::fs::write(&key, certified.signing_key.serialize_pem())?;
    let more = format!("tls = {{ cert_file = {cert:?}, key_file = {key:?} }}\n");
    let served = Served::start(&stage, USERS, &more).await?;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certified.cert.der().clone())?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(&served.address).await?;
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let mut stream = connector.connect(ServerName::try_from("localhost")?, stream).await?;
    let ann = served.ann().host("localhost");
    stream.write_all(ann.request("GET", "/", "").as_bytes()).await?;
    let mut text = Vec::new();
    // A server may close without a close_notify.
    let _ = stream.read_to_end(&mut text).await;
    let answer = Answer::read(&String::from_utf8_lossy(&text))?;
    assert_eq!(answer.status, 200);
    assert!(answer.value("strict-transport-security").is_some(), "{}", answer.head);
    assert!(served.ann().get("/").await.is_err(), "nothing is answered in the clear");
    served.relay.stop().await
}

/// Goal: without users the page is reachable only from this machine, and accepts no decisions.
/// Oracle: the text shown, and the answer to each form.
pub(crate) async fn open(stage: Stage) -> Outcome {
    let workload =
        Workload::<sqlx::Postgres>::open(&stage, brokers::open(&stage, Backend::KafkaMock).await?).await?;
    let relay = RelayProcess::start(&stage, &config(&stage, &workload, "", "")?)?;
    let address = relay.address(SERVING).await?;
    let anybody = Client::new(&address);
    eventually("the page shows the leader", || async {
        Ok(anybody.get("/pipeline?name=orders").await?.body.contains("leading").then_some(()))
    })
    .await?;
    for (path, fields) in CHANGES {
        let answer = anybody.clone().with("Origin", &format!("http://{address}")).post(path, fields).await?;
        assert_eq!(answer.status, 403, "{path}: {}", answer.body);
    }
    relay.stop().await
}
