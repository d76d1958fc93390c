//! `relay keys`: an operator's decisions about idempotency keys whose holder has disappeared.

use std::time::Duration;

use idempotency::{Claim, ClaimOptions, Claimed, Ending, IdempotencyKeys, KeyId, KeyOptions, OnExpired};
use message::Fingerprint;
use serde_json::Value;
use tests::eventually::when;
use tests::relay_process::relay_on;
use tests::{Database, Dialect, Failure, Outcome, Stage, eventually};
use uuid::Uuid;

tests::cases! { "{case}/{on}":
    databases { an_operator_decides_about_stuck_keys }
}

const OPERATION: &str = "POST /charges";

/// Goal: an operator finds the keys of a service that died, lets one run again and discards the
/// other. Oracle: the program's list; the outcome of the next claims.
async fn an_operator_decides_about_stuck_keys<DB: Dialect>(stage: Stage) -> Outcome {
    let database = Database::<DB>::migrated(&stage).await?;
    let keys = IdempotencyKeys::open(database.service.clone(), KeyOptions::default()).await?;
    for key in ["again", "never"] {
        assert!(matches!(claim(&keys, key).await?, Claimed::Acquired(_)), "{key}");
    }
    let listed = eventually("both leases are over", || async {
        let listed = json(&database.url, "list").await?;
        Ok(when(listed.len() == 2).map(|()| listed))
    })
    .await?;
    for line in &listed {
        let told = [&line["scope"], &line["operation"], &line["attempt"]];
        assert_eq!(told, [&Value::from("tenant-1"), &Value::from(OPERATION), &Value::from(1)], "{line}");
    }
    assert!(matches!(claim(&keys, "again").await?, Claimed::Stuck { .. }), "nobody runs it meanwhile");

    for (verb, key, word) in [("release", "again", "released"), ("discard", "never", "discarded")] {
        let line = listed.iter().find(|line| line["key"] == key).ok_or("the list lacks it")?;
        let holder = line["holder"].as_str().ok_or("the list has no holder")?;
        let (code, told) = decide(&database.url, verb, key, &Uuid::nil().to_string()).await?;
        assert!(code == Some(2) && told.contains("not stuck"), "of another holder: {told}");
        let (code, told) = decide(&database.url, verb, key, holder).await?;
        assert!(code == Some(0) && told.contains(word), "{told}");
        let (code, told) = decide(&database.url, verb, key, holder).await?;
        assert!(code == Some(2) && told.contains("not stuck"), "decided twice: {told}");
    }
    let Claimed::Acquired(again) = claim(&keys, "again").await? else { return Err("not released".into()) };
    assert_eq!(again.attempt(), 2);
    again.complete(Ending::Succeeded, b"charged").await?;
    assert!(matches!(claim(&keys, "never").await?, Claimed::Discarded { .. }));
    assert!(json(&database.url, "list").await?.is_empty(), "nothing is left to decide");
    let audit = json(&database.url, "audit").await?;
    let told =
        |line: &Value| ["action", "key", "actor", "note"].map(|name| line[name].as_str().map(str::to_owned));
    let expected = |action: &str, key: &str| [action, key, "alice", "asked"].map(|it| Some(it.to_owned()));
    let audit: Vec<_> = audit.iter().map(told).collect();
    assert_eq!(audit, [expected("discard", "never"), expected("release", "again")]);
    Ok(())
}

async fn claim<DB: Dialect>(keys: &IdempotencyKeys<DB>, key: &str) -> Result<Claimed<Claim<DB>>, Failure> {
    let options = ClaimOptions::default().lease(Duration::from_secs(1)).on_expired(OnExpired::Refuse);
    let id = KeyId::of_texts("tenant-1", OPERATION, key)?;
    Ok(keys.claim(&id, Fingerprint::of_parts("charge", "", b"1250"), &options).await?)
}

async fn json(url: &str, list: &str) -> Result<Vec<Value>, Failure> {
    let output = relay_on(url, &["keys", list, "--output", "json"]).await?;
    if output.status.success() {
        return Ok(serde_json::from_slice(&output.stdout)?);
    }
    Err(String::from_utf8_lossy(&output.stderr).into())
}

/// Decides about a key. Returns the exit code and the whole output.
async fn decide(url: &str, verb: &str, key: &str, holder: &str) -> Result<(Option<i32>, String), Failure> {
    let which = [
        "--scope",
        "tenant-1",
        "--operation",
        OPERATION,
        "--key",
        key,
        "--holder",
        holder,
        "--actor",
        "alice",
        "--note",
        "asked",
    ];
    let output = relay_on(url, &[&["keys", verb][..], &which[..]].concat()).await?;
    let told = [output.stdout, output.stderr].concat();
    Ok((output.status.code(), String::from_utf8_lossy(&told).into_owned()))
}
