//! Relays that run while a table of Debezium is to be handed over.

use std::time::{Duration, Instant};

use sqlx::Postgres;
use tests::relay_process::Config;
use tests::{Database, Outcome, Stage};

use super::{RELAY, adopt, adopted};

const BROKER: &str = "[pipeline.kafka]\nbootstrap_servers = [\"127.0.0.1:1\"]\n";

/// The lease of a running relay.
const LEASE: &str = "INSERT INTO outbox_relay (relay, epoch, holder, lease_until, lease_seconds, cursor) \
                     VALUES ('@', 1, '@-1', clock_timestamp() + interval '10 minutes', 600, '{}')";
const PAUSE: &str = "INSERT INTO outbox_pause (relay, kind, name, actor, reason) \
                     VALUES ('@', 'pipeline', '', 'ann', 'a move')";

/// Goal: a table is not taken from Debezium while any relay of the outbox may publish, and a pause
/// counts only when the relay must have seen it. Oracle: the exit codes; when the trigger exists,
/// if the relay was paused immediately before.
pub(super) async fn relays(stage: Stage) -> Outcome {
    let database = Database::<Postgres>::migrated(&stage).await?;
    database.execute("CREATE TABLE slotted (id bigserial PRIMARY KEY, body json)").await?;
    database.execute("CREATE PUBLICATION of_slot FOR TABLE slotted").await?;
    let section = "[pipeline.adopt]\ntable = \"slotted\"\ntopic = \"t\"\npublication = \"of_slot\"\n\
                   columns = { key = \"\", kind = \"\", payload = \"body\" }\n";
    let config = Config::with_section(&stage, RELAY, &database.url, BROKER, section)?;
    let triggers = "SELECT count(*) FROM pg_trigger WHERE tgname ~ '^outbox_adopt'";

    for relay in [RELAY, "others"] {
        let of = |text: &str| text.replace('@', relay);
        database.execute(&of(LEASE)).await?;
        let parts = [of("the relay @ is running (@-1)"), of("relay pause --all --pipeline @")];
        let parts = parts.each_ref().map(String::as_str);
        adopt(&config, &database.url, "over", &[]).await?.refused(2, &parts)?;
        assert_eq!(database.integer(triggers).await?, 0);
        database.execute(&of(PAUSE)).await?;
    }
    let begun = Instant::now();
    adopted(&config, &database.url, "over", 0).await?;
    assert_eq!(database.integer(triggers).await?, 1);
    let lasted = begun.elapsed();
    // Both clocks are of this machine.
    assert!(lasted > Duration::from_secs(30), "the relay may not have seen its pause after {lasted:?}");
    Ok(())
}
