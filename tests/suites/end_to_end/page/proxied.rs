//! People whom a proxy has logged in, and everybody who forges its headers. The proxy has an
//! address of its own: 127.0.0.2.

use std::net::Ipv4Addr;

use tests::{Outcome, Stage, eventually};

use super::client::{Answer, Client};
use super::surface::{CHANGES, READ};
use super::{Served, USERS};

/// The address of the proxy.
const PROXY: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const SECRET: &str = "secret-of-the-proxy";
const NAME: &str = "X-Auth-Request-Email";
const GROUPS: &str = "X-Auth-Request-Groups";
const KEY: &str = "X-Relay-Proxy-Secret";

/// Returns the settings of a page behind a proxy that logs people in. `more` is appended to them.
fn behind_proxy(more: &str) -> String {
    format!(
        "behind_proxy = true\nhosts = [\"ops.example.com\"]\n[page.proxy_login]\nviewers = [\"staff\"]\n\
         operators = [\"on-call\"]\nlogout_url = \"/oauth2/sign_out\"\n{more}"
    )
}

/// Returns a browser whose requests the proxy passes on, with what it knows about a person.
fn person(served: &Served, name: &str, groups: &str) -> Client {
    Client::new(&served.address)
        .from(PROXY)
        .host("ops.example.com")
        .with("Origin", "https://ops.example.com")
        .with(NAME, name)
        .with(GROUPS, groups)
}

fn is_refused(answer: &Answer, told: &str) {
    assert!(answer.status == 403 && answer.body.contains(told), "{told}: {} {}", answer.status, answer.body);
}

/// Goal: a person whom the proxy names views and decides as their groups permit, and the audit has
/// their name. The proxy's additions to every request do not make a request from another site's
/// page valid. Oracle: the answers, and the lines of the audit.
pub(crate) async fn named(stage: Stage) -> Outcome {
    let more = behind_proxy("from = [\"127.0.0.2\"]\n");
    let served = Served::start(&stage, USERS, &more).await?.with_dead(1).await?;
    let ann = person(&served, "ann@example.com", "staff,on-call");
    let page = ann.get("/").await?;
    assert!(page.body.contains(">ann@example.com<") && page.body.contains("operator"), "{}", page.body);
    let pause = [("pipeline", "orders"), ("scope", "key"), ("name", "key-9"), ("reason", "look first")];
    assert_eq!(ann.post("/pause", &pause).await?.status, 303);
    let told = served.workload.database.texts("SELECT actor || ':' || action FROM outbox_operation").await?;
    assert_eq!(told, ["ann@example.com:pause"]);

    let eve = person(&served, "eve@example.com", "staff");
    assert_eq!(eve.get("/dead").await?.status, 200);
    is_refused(&eve.post("/pause", &pause).await?, "eve@example.com has the role viewer and may not");
    is_refused(&person(&served, "bob@example.com", "guests").get("/").await?, "is in no group");
    is_refused(&person(&served, "bob@example.com", "").get("/").await?, "is in no group");
    is_refused(&person(&served, "eve", "on-call").get("/").await?, "[[page.user]]");
    is_refused(&person(&served, "", "on-call").get("/").await?, "an empty name");
    let twice = person(&served, "eve@example.com", "on-call").with(NAME, "ann@example.com");
    is_refused(&twice.get("/").await?, "twice");
    let unnamed = Client::new(&served.address).from(PROXY).host("ops.example.com").with(GROUPS, "on-call");
    assert_eq!(unnamed.get("/").await?.status, 401, "groups name nobody");

    let foreign = |origin: Option<&str>| {
        let client = Client::new(&served.address)
            .from(PROXY)
            .host("ops.example.com")
            .with(NAME, "ann@example.com")
            .with(GROUPS, "on-call")
            .with("Authorization", "Bearer token-that-the-proxy-passes-on");
        match origin {
            Some(origin) => client.with("Origin", origin),
            None => client,
        }
    };
    for origin in [None, Some("https://evil.example"), Some("null")] {
        is_refused(&foreign(origin).post("/resume", &pause).await?, "comes from another page");
    }
    let login = ann.get("/login").await?;
    assert_eq!((login.status, login.value("location")), (303, Some("/")));
    let left = ann.post("/logout", &[]).await?;
    assert_eq!((left.status, left.value("location")), (303, Some("/oauth2/sign_out")));
    // The page's own users can log in as well.
    assert_eq!(served.ann().get("/").await?.status, 200);
    assert_eq!(served.audited().await?, 1, "nobody else has decided");
    served.relay.stop().await
}

/// Goal: the same headers from anywhere else open nothing, even beside a good login, and their
/// sender is told. Oracle: the answer to every path of the page and to every change; nothing was
/// decided; the log.
pub(crate) async fn forged(stage: Stage) -> Outcome {
    let more = behind_proxy("from = [\"127.0.0.2\", \"10.0.0.0/8\"]\n");
    let served = Served::start(&stage, "", &more).await?.with_dead(1).await?;
    let forger = Client::new(&served.address)
        .with("Origin", &format!("http://{}", served.address))
        .with("X-Forwarded-For", "127.0.0.2")
        .with("Forwarded", "for=127.0.0.2")
        .with("X-Real-IP", "127.0.0.2");
    let told = "is believed only from the proxy, and this request came from 127.0.0.1";
    let operator = forger.clone().with(NAME, "root@example.com").with(GROUPS, "on-call");
    for path in READ {
        is_refused(&operator.get(path).await?, told);
    }
    for (path, fields) in CHANGES {
        is_refused(&operator.post(path, fields).await?, told);
    }
    for (name, value) in [(GROUPS, "on-call"), (KEY, SECRET), (NAME, "")] {
        is_refused(&forger.clone().with(name, value).get("/").await?, told);
    }
    is_refused(&forger.clone().with(&NAME.to_lowercase(), "root").get("/login").await?, told);
    // Headers with other names mean nothing, and let nobody in.
    for name in ["X_Auth_Request_Email", "X-Forwarded-User", "X-Forwarded-Email", "Remote-User"] {
        let answer = forger.clone().with(name, "root@example.com").get("/").await?;
        assert_eq!(answer.status, 401, "{name}");
        assert!(answer.body.contains("the proxy has named no user"), "{}", answer.body);
    }
    // Guesses are slowed down like those of passwords.
    let tries = (0..24).map(|_| operator.get("/"));
    let mut statuses = Vec::new();
    for answer in futures_util::future::join_all(tries).await {
        statuses.push(answer?.status);
    }
    assert!(statuses.contains(&429) && statuses.iter().all(|it| matches!(it, 403 | 429)), "{statuses:?}");
    assert_eq!(person(&served, "ann@example.com", "on-call").get("/").await?.status, 200);
    assert_eq!((served.parked("dead").await?, served.audited().await?), (1, 0), "nothing was decided");
    let log = served.relay.log()?;
    assert!(log.contains("believed only from the proxy") && log.contains("127.0.0.1"), "{log}");
    served.relay.stop().await
}

/// Goal: a proxy with a secret is believed only with it, and a replaced secret counts without a
/// restart. Oracle: the answers to the right and to wrong secrets, before and after.
pub(crate) async fn secret(stage: Stage) -> Outcome {
    let file = stage.folder().join("proxy");
    std::fs::write(&file, SECRET)?;
    let more = behind_proxy(&format!("from = [\"127.0.0.2\"]\nsecret_file = {file:?}\n"));
    let served = Served::start(&stage, "", &more).await?;
    let ann = person(&served, "ann@example.com", "on-call");
    assert_eq!(ann.clone().with(KEY, SECRET).get("/").await?.status, 200);
    let told = "is believed only from the proxy";
    for wrong in ["", "secret-of-the-prox", "secret-of-the-proxies"] {
        is_refused(&ann.clone().with(KEY, wrong).get("/").await?, told);
    }
    is_refused(&ann.get("/").await?, told);
    is_refused(&ann.clone().with(KEY, SECRET).with(KEY, SECRET).get("/").await?, told);
    let elsewhere = Client::new(&served.address).host("ops.example.com");
    let elsewhere = elsewhere.with(NAME, "ann@example.com").with(GROUPS, "on-call").with(KEY, SECRET);
    is_refused(&elsewhere.get("/").await?, told);
    let aside = stage.folder().join("proxy.new");
    std::fs::write(&aside, "another-secret-of-the-proxy")?;
    std::fs::rename(&aside, &file)?;
    eventually("the old secret has ended", || async {
        Ok((ann.clone().with(KEY, SECRET).get("/").await?.status == 403).then_some(()))
    })
    .await?;
    assert_eq!(ann.clone().with(KEY, "another-secret-of-the-proxy").get("/").await?.status, 200);
    let log = served.relay.log()?;
    assert!(!log.contains(SECRET) && !log.contains("another-secret"), "{log}");
    served.relay.stop().await
}
