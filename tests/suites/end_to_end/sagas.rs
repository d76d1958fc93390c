//! `relay sagas`: an operator's view of sagas, and decisions about them.

use std::time::Duration;

use inbox::Backoff;
use outbox::Outbox;
use saga::{Run, Sagas, StepError, WorkerOptions};
use serde_json::Value;
use tests::eventually::when;
use tests::relay_process::relay_on;
use tests::{Database, Dialect, Failure, Outcome, Stage, eventually};

tests::cases! { "{case}/{on}":
    databases { an_operator_decides_about_stuck_sagas }
}

/// Goal: an operator finds stuck sagas, skips a step of one and cancels the other, and finds both
/// decisions in the audit. Oracle: the program's own lists; how the sagas end.
async fn an_operator_decides_about_stuck_sagas<DB: Dialect>(stage: Stage) -> Outcome {
    let database = Database::<DB>::migrated(&stage).await?;
    let mut options = WorkerOptions::default();
    options.attempts_max = 2;
    options.backoff = Backoff { first: Duration::from_millis(1), max: Duration::from_millis(1) };
    let sagas = Sagas::builder(database.service.clone(), Outbox::new())
        .options(options)
        .saga("checkout", 1, async |saga: &mut Run<DB>, _: i64| {
            saga.step("reserve", async |_| Ok(())).undo(async |_, (): &()| Ok(())).await?;
            let parcel: i64 = saga.step("ship", async |_| Err(StepError::retry("no lorry"))).await?;
            Ok(parcel)
        })
        .open()
        .await?;
    for id in ["skipped", "cancelled"] {
        let mut tx = Outbox::new().begin(&database.service).await?;
        assert_eq!(sagas.start(&mut tx, "checkout", id, &0).await?, saga::Started::Started);
        tx.commit().await?;
    }
    let running = sagas.clone();
    let worker = tokio::spawn(async move { running.run(std::future::pending()).await });
    let url = &database.url;
    let stuck = eventually("both are stuck", || async {
        let stuck = json(url, &["stuck"]).await?;
        Ok(when(stuck.as_array().is_some_and(|all| all.len() == 2)).map(|()| stuck))
    })
    .await?;
    assert_eq!(stuck[0]["error"], "ship: no lorry", "{stuck}");

    let which = |id| ["--type", "checkout", "--id", id];
    let shown = json(url, &[&["show"][..], &which("skipped")].concat()).await?;
    assert_eq!((&shown["saga"]["state"], &shown["steps"][0]["undo"]), (&"running".into(), &"pending".into()));
    let signed = ["--actor", "alice", "--note", "by lorry of our own"];
    let skip = ["skip", "--step", "ship", "--result", "7"];
    decide(url, &[&skip[..], &which("skipped"), &signed].concat(), 0, "skip").await?;
    decide(url, &[&["cancel"][..], &which("cancelled"), &signed].concat(), 0, "cancel").await?;
    eventually("both have ended", || async {
        let ended = json(url, &["list", "--ended"]).await?;
        let states = [&ended[0]["state"], &ended[1]["state"]];
        Ok(when(states == [&Value::from("finished"), &Value::from("undone")]))
    })
    .await?;
    worker.abort();
    decide(url, &[&["retry"][..], &which("skipped"), &signed].concat(), 2, "is finished").await?;
    decide(url, &[&["retry"][..], &which("nobody"), &signed].concat(), 2, "there is no saga").await?;
    let audit = json(url, &["audit"]).await?;
    let actions: Vec<_> = audit.as_array().into_iter().flatten().map(|one| one["action"].clone()).collect();
    assert_eq!(actions, ["cancel", "skip"], "{audit}");
    Ok(())
}

async fn json(url: &str, arguments: &[&str]) -> Result<Value, Failure> {
    let output = relay_on(url, &[&["sagas"][..], arguments, &["--output", "json"]].concat()).await?;
    if output.status.success() {
        return Ok(serde_json::from_slice(&output.stdout)?);
    }
    Err(String::from_utf8_lossy(&output.stderr).into())
}

/// Makes a decision. Checks the exit code and a part of the output.
async fn decide(url: &str, arguments: &[&str], code: i32, part: &str) -> Outcome {
    let output = relay_on(url, &[&["sagas"][..], arguments].concat()).await?;
    let told = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.code() == Some(code) && told.contains(part), "{told}");
    Ok(())
}
