//! Sessions of the page that end before their time.

use tests::{Failure, Outcome, RelayProcess, Stage, eventually};

use super::client::{Answer, Client};
use super::{ANN, EVE, SERVING, Served, USERS};
use crate::commands::Ran;

/// Logs a user in through the form. Returns a browser with the cookie.
async fn logged_in(address: &str, name: &str, secret: &str) -> Result<Client, Failure> {
    let origin = format!("http://{address}");
    let browser = Client::new(address).with("Origin", &origin);
    let entered = browser.post("/login", &[("name", name), ("secret", secret)]).await?;
    let cookie = entered.value("set-cookie").and_then(|cookie| cookie.split(';').next());
    let cookie = cookie.ok_or_else(|| format!("no cookie: {} {}", entered.status, entered.body))?;
    Ok(browser.with("Cookie", cookie))
}

/// Returns a browser with the same cookie at another process. Without TLS the cookie is called
/// after the port, and its value is the same.
fn elsewhere(browser: &Client, from: &str, to: &str) -> Result<Client, Failure> {
    let port = |address: &str| Some(format!("relay-{}=", address.rsplit_once(':')?.1));
    let (old, new) = (port(from).ok_or("no port")?, port(to).ok_or("no port")?);
    let cookie = browser.head("Cookie").ok_or("no cookie")?.replace(&old, &new);
    Ok(Client::new(to).with("Origin", &format!("http://{to}")).with("Cookie", &cookie))
}

async fn is_ended(browser: &Client) -> Result<Answer, Failure> {
    eventually("the session has ended", || async {
        let answer = browser.get("/dead").await?;
        Ok((answer.status == 401).then_some(answer))
    })
    .await
}

/// Goal: a session ends in every process that reads the same database when an operator ends it or
/// all of its user's, or when its user logs out; others go on. Oracle: the answers of two processes
/// to the cookies, the list of the command, the lines of the audit.
pub(crate) async fn revoked(stage: Stage) -> Outcome {
    let served = Served::start(&stage, USERS, "").await?;
    let other = RelayProcess::start(&stage, &served.config)?;
    let there = other.address(SERVING).await?;
    let here = served.address.clone();
    let list = || async {
        let ran = Ran::with(&served.config, &["sessions", "list", "--output", "json"]).await?;
        let listed = ran.json()?;
        Ok::<_, Failure>(listed.as_array().cloned().unwrap_or_default())
    };
    // A login is listed once its line is written, after the answer.
    let list = &list;
    let listed_after = |count: usize| async move {
        eventually("the session is listed", || async {
            let listed = list().await?;
            Ok((listed.len() == count).then_some(listed))
        })
        .await
    };
    let phone = logged_in(&here, "eve", EVE).await?;
    listed_after(1).await?;
    let desk = logged_in(&there, "eve", EVE).await?;
    listed_after(2).await?;
    let ann = logged_in(&here, "ann", ANN).await?;
    let listed = listed_after(3).await?;
    assert_eq!((&listed[0]["user"], &listed[0]["role"]), (&"ann".into(), &"operator".into()), "{listed:?}");
    assert_eq!(
        elsewhere(&phone, &here, &there)?.get("/dead").await?.status,
        200,
        "it is known there as well"
    );

    // A stolen copy of the phone's session ends, in both processes, and the desk goes on.
    let of_phone = listed[2]["session"].as_str().ok_or("no id")?;
    let revoke = ["sessions", "revoke", "--session", of_phone, "--note", "a lost phone", "--actor", "ann"];
    Ran::with(&served.config, &revoke).await?.done()?;
    let answer = is_ended(&phone).await?;
    assert!(answer.body.contains("ann has ended your session"), "{}", answer.body);
    is_ended(&elsewhere(&phone, &here, &there)?).await?;
    let pause = [("pipeline", "orders"), ("scope", "key"), ("name", "key-9"), ("reason", "late")];
    assert_eq!(phone.post("/pause", &pause).await?.status, 401);
    assert_eq!(desk.get("/dead").await?.status, 200);
    let ended =
        Ran::with(&served.config, &["sessions", "list", "--ended", "--output", "json"]).await?.json()?;
    assert_eq!(ended[2]["ended"]["reason"], "a lost phone", "{ended}");

    // A stream of events does not outlive its session.
    let mut stream = desk.open("GET", "/events", "").await?;
    let all = ["sessions", "revoke", "--user", "eve", "--note", "she has left", "--actor", "ann"];
    Ran::with(&served.config, &all).await?.done()?;
    is_ended(&desk).await?;
    is_ended(&elsewhere(&desk, &there, &here)?).await?;
    let closed = async {
        let mut rest = Vec::new();
        tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut rest).await
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), closed).await??;
    let origin = format!("http://{here}");
    let form = Client::new(&here).with("Origin", &origin);
    let again = form.post("/login", &[("name", "eve"), ("secret", EVE)]).await?;
    assert!(again.status == 409 && again.body.contains("log in again in"), "{} {}", again.status, again.body);
    // A program without a session is not affected.
    assert_eq!(served.eve().get("/").await?.status, 200);

    assert_eq!(ann.post("/logout", &[]).await?.status, 303);
    assert_eq!(ann.get("/").await?.status, 401, "at once in this process");
    is_ended(&elsewhere(&ann, &here, &there)?).await?;
    assert!(list().await?.is_empty());
    let words = "SELECT DISTINCT actor || ':' || action FROM outbox_operation ORDER BY 1";
    let told = served.workload.database.texts(words).await?;
    assert_eq!(told, ["ann:login", "ann:logout", "ann:revoke", "eve:login"]);
    other.stop().await?;
    served.relay.stop().await
}

/// Goal: what is known of ended sessions outlives the processes, and a replaced secret ends
/// sessions without a database. Oracle: the answers of a process that starts later; of one whose
/// secret changes.
pub(crate) async fn kept(stage: Stage) -> Outcome {
    let file = stage.folder().join("bob");
    std::fs::write(&file, "password-of-bob")?;
    let bob = format!("[[page.user]]\nname = \"bob\"\nrole = \"viewer\"\npassword_file = {file:?}\n");
    let served = Served::start(&stage, &format!("{USERS}{bob}"), "").await?;
    let here = served.address.clone();
    let eve = logged_in(&here, "eve", EVE).await?;
    let all = ["sessions", "revoke", "--all", "--note", "ticket 12", "--actor", "ann"];
    Ran::with(&served.config, &all).await?.done()?;
    let later = RelayProcess::start(&stage, &served.config)?;
    let there = later.address(SERVING).await?;
    assert_eq!(elsewhere(&eve, &here, &there)?.get("/").await?.status, 401, "it reads before it answers");
    let hurried = logged_in(&here, "bob", "password-of-bob").await.err().ok_or("let in at once")?;
    assert!(hurried.to_string().contains("log in again in"), "{hurried}");
    // A revocation of all is over after a minute.
    let back = || async { Ok(logged_in(&here, "bob", "password-of-bob").await.ok()) };
    let bob = eventually("a new login is possible", back).await?;
    eventually("its line is written", || async {
        let listed = Ran::with(&served.config, &["sessions", "list", "--output", "json"]).await?.json()?;
        Ok(listed.as_array().is_some_and(|listed| listed.len() == 1).then_some(()))
    })
    .await?;
    assert_eq!(elsewhere(&bob, &here, &there)?.get("/").await?.status, 200, "nobody has ended it");
    std::fs::write(file.with_extension("new"), "another-password")?;
    std::fs::rename(file.with_extension("new"), &file)?;
    is_ended(&bob).await?;
    later.stop().await?;
    served.relay.stop().await
}
