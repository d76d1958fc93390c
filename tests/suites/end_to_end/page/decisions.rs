//! Decisions about keys and sagas in a browser: each needs a confirmation and a reason, and appears
//! in the audit.

use tests::{Outcome, Stage};

use super::browser::logged_in;
use super::{ANN, Served, USERS};

/// Rights that the document recommends. An observer's rights are granted by column, because a
/// membership would apply to every database of the server.
const RIGHTS: &str = "GRANT SELECT (scope, operation, key, fingerprint, state, attempt, holder, lease_until, \
    claimed_at, processed_at, expires_at, decided_by, refuses, reported_at) ON idempotency_key TO outbox_test_relay; \
    GRANT SELECT (type, id, version, state, epoch, worker, wake_at, replies, attempts, error, reason, cancel, \
    waits_for, waiting_since, started_at, stuck_at, ended_at) ON saga TO outbox_test_relay; \
    GRANT SELECT (type, id, name, position, kind, state, undo, attempts, error, due_at, begun_at, ended_at, \
    undone_at) ON saga_step TO outbox_test_relay; \
    GRANT SELECT ON idempotency_audit, saga_audit TO outbox_test_relay; \
    GRANT UPDATE (state, lease_until, decided_by, processed_at, expires_at, claimed_at) ON idempotency_key \
    TO outbox_test_relay; \
    GRANT INSERT ON idempotency_audit, saga_audit TO outbox_test_relay; \
    GRANT UPDATE (state, reason, cancel, error, attempts, waits_for, waiting_since, wake_at, stuck_at) ON saga \
    TO outbox_test_relay; \
    GRANT INSERT, UPDATE (state, undo, result, ended_at, undone_at, error) ON saga_step TO outbox_test_relay";

/// Keys whose holder has disappeared.
const STUCK_KEY: &str = "INSERT INTO idempotency_key (scope, operation, key, fingerprint, state, attempt, holder, lease_until, \
    claimed_at, expires_at) SELECT 'tenant-1', 'POST /charges', key, '\\x00', 'in_progress', 1, gen_random_uuid(), \
    now() - interval '1 minute', now() - interval '2 minutes', now() + interval '1 day' \
    FROM unnest(ARRAY['again', 'never', 'claimed <b>anew</b>']) AS key";

/// Stuck sagas, and one running saga.
const SAGAS: &str = "INSERT INTO saga (type, id, version, input, wake_at, waits_for, stuck_at, error) VALUES \
    ('checkout', 'stuck', 1, '{}', NULL, 'ship', now(), 'ship: no lorry'), \
    ('checkout', 'skipped', 1, '{}', NULL, 'ship', now(), 'ship: no lorry'), \
    ('checkout', 'not-begun', 1, '{}', NULL, 'ship', now(), 'ship: no lorry'), \
    ('checkout', 'runs', 1, '{}', now() + interval '1 day', NULL, NULL, NULL); \
    INSERT INTO saga_step (type, id, name, position, kind, state, undo) \
    VALUES ('checkout', 'skipped', 'ship', 0, 'call', 'gave_up', 'none')";

const STALE: &str = "INSERT INTO saga (type, id, version, input, wake_at, waits_for, stuck_at, error) \
    VALUES ('checkout', 'stale', 1, '{}', NULL, 'ship', now() - interval '1 minute', 'ship: no lorry'); \
    INSERT INTO saga_step (type, id, name, position, kind, state, undo, result) \
    VALUES ('checkout', 'stale', 'ship', 0, 'step', 'done', 'pending', '1')";

/// Goal: keys are released and discarded, and a key that another process has claimed since is left
/// unchanged. Oracle: their states, and the audit of the page.
pub(crate) async fn keys(stage: Stage) -> Outcome {
    let served = Served::start(&stage, USERS, "").await?;
    let database = &served.workload.database;
    database.execute(STUCK_KEY).await?;
    let browser = logged_in(&stage, &served, "ann", ANN, true).await?;
    let page = format!("http://{}/keys", served.address);
    browser.go(&page).await?;
    browser.shows("permission denied").await?;
    database.execute(RIGHTS).await?;
    for (verb, key, state) in [("release", "again", "released"), ("discard", "never", "failed")] {
        browser.go(&page).await?;
        browser.press(&format!("form:has(input[value=\"{key}\"]) button[value={verb}]")).await?;
        browser.shows(&format!("the key {key}?")).await?;
        browser.fill("form.card input[name=reason]", &format!("asked about {key}")).await?;
        browser.press("form.card button.primary, form.card button.danger").await?;
        browser.shows(&format!("The key is {verb}")).await?;
        // The result has an address of its own: loading it again decides nothing.
        let result = browser.run("return location.href").await?;
        browser.go(result.as_str().ok_or("no address")?).await?;
        browser.shows(&format!("The key is {verb}")).await?;
        let found = format!(
            "SELECT count(*) FROM idempotency_key WHERE key = '{key}' AND state = '{state}' AND decided_by = 'ann'"
        );
        assert_eq!(database.integer(&found).await?, 1, "{key}");
    }
    browser.go(&page).await?;
    browser.press("button[value=discard]").await?;
    browser.shows("the key claimed <b>anew</b>?").await?;
    database
        .execute("UPDATE idempotency_key SET holder = gen_random_uuid() WHERE key LIKE 'claimed%'")
        .await?;
    browser.fill("form.card input[name=reason]", "too late").await?;
    browser.press("form.card button.danger").await?;
    browser.shows("not stuck").await?;
    assert_eq!(database.integer("SELECT count(*) FROM idempotency_audit").await?, 2);
    browser.go(&format!("http://{}/audit", served.address)).await?;
    browser.shows("asked about again").await?;
    browser.shows("discard a key").await?;
    browser.quit().await?;
    served.relay.stop().await
}

/// Goal: a stuck saga continues, a step of another one is skipped, and a running one is cancelled.
/// Oracle: their rows, and the audit of the page.
pub(crate) async fn sagas(stage: Stage) -> Outcome {
    let served = Served::start(&stage, USERS, "").await?;
    let database = &served.workload.database;
    database.execute(SAGAS).await?;
    database.execute(RIGHTS).await?;
    let browser = logged_in(&stage, &served, "ann", ANN, true).await?;
    browser.go(&format!("http://{}/sagas", served.address)).await?;
    browser.shows("no lorry").await?;
    for (id, verb, result, state) in [
        ("stuck", "retry", None, "stuck_at IS NULL AND wake_at IS NOT NULL"),
        ("skipped", "skip", Some("7"), "stuck_at IS NULL AND wake_at IS NOT NULL"),
        ("not-begun", "skip", Some("8"), "stuck_at IS NULL AND wake_at IS NOT NULL"),
        ("runs", "cancel", None, "cancel IS NOT NULL OR state = 'undoing'"),
    ] {
        let path = format!("/saga?database=pipeline:orders&type=checkout&id={id}");
        browser.go(&format!("http://{}{path}", served.address)).await?;
        browser.shows(id).await?;
        browser.press(&format!("a.button[href*='what={verb}']")).await?;
        browser.shows("Why (recorded in the audit)").await?;
        if let Some(result) = result {
            browser.fill("form.card input[name=result]", result).await?;
        }
        browser.fill("form.card input[name=reason]", &format!("{verb} of {id}")).await?;
        browser.press("form.card button.primary, form.card button.danger").await?;
        browser.shows("picks the saga up within seconds").await?;
        let found = format!("SELECT count(*) FROM saga WHERE id = '{id}' AND ({state})");
        assert_eq!(database.integer(&found).await?, 1, "{id}");
    }
    // The confirmation was loaded before the saga was cancelled elsewhere.
    let stale = format!("http://{}/saga?database=pipeline:orders&type=checkout&id=stale", served.address);
    database.execute(STALE).await?;
    browser.go(&stale).await?;
    browser.press("a.button[href*='what=skip']").await?;
    browser.shows("Why (recorded in the audit)").await?;
    database.execute("UPDATE saga SET state = 'undoing', stuck_at = now() WHERE id = 'stale'").await?;
    browser.fill("form.card input[name=result]", "9").await?;
    browser.fill("form.card input[name=reason]", "too late").await?;
    browser.press("form.card button.danger").await?;
    browser.shows("nothing was changed").await?;
    assert_eq!(database.integer("SELECT count(*) FROM saga_audit WHERE id = 'stale'").await?, 0);
    browser.go(&format!("http://{}/audit", served.address)).await?;
    for told in ["retry of stuck", "skip of skipped", "cancel of runs", "skip a saga"] {
        browser.shows(told).await?;
    }
    browser.quit().await?;
    served.relay.stop().await
}
