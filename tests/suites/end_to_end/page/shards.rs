//! A consumer that has a database for each shard.

use sqlx::Postgres;
use tests::{Database, Failure, Outcome, Stage};

use super::client::Answer;
use super::{Served, USERS};

/// The id is the same in every shard: ids are order numbers, which each shard counts separately.
const RUNS: &str = "INSERT INTO saga (type, id, version, input, wake_at) \
    VALUES ('checkout', '42', 1, '{}', now() + interval '1 day')";
const IS_STUCK: &str = "INSERT INTO saga (type, id, version, input, wake_at, waits_for, stuck_at, error) \
    VALUES ('checkout', '42', 1, '{}', NULL, 'ship', now(), 'ship: no lorry'); \
    INSERT INTO idempotency_key (scope, operation, key, fingerprint, state, attempt, holder, lease_until, \
    claimed_at, expires_at) VALUES ('tenant-1', 'POST /charges', 'of-42', '\\x00', 'in_progress', 1, \
    '01890000-0000-7000-8000-000000000001', now() - interval '1 minute', now() - interval '2 minutes', \
    now() + interval '1 day')";

fn section(database: &Database<Postgres>) -> String {
    format!("[[verify.inbox]]\nconsumer = \"billing\"\nurl = {:?}\n", database.url)
}

/// Returns the only link on a page to a saga of this database.
fn link(page: &Answer, database: &Database<Postgres>) -> Result<String, Failure> {
    let links = page.body.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next());
    let of_database = format!("{}&amp;", database.name()?);
    let mut links = links.filter(|link| link.starts_with("/saga?") && link.contains(&of_database));
    match (links.next(), links.next()) {
        (Some(link), None) => Ok(link.replace("&amp;", "&")),
        _ => Err(format!("not one link to a saga of {of_database}: {}", page.body).into()),
    }
}

/// Goal: where a consumer has a database for each shard, each is shown under its own name, and a
/// decision reaches the saga, or the key, that it was made for. Oracle: rows and audits of both
/// databases; the name stays the same when a relay starts again with a different order of sections.
pub(crate) async fn one_consumer(stage: Stage) -> Outcome {
    let one = Database::<Postgres>::migrated(&stage).await?;
    let two = Database::<Postgres>::migrated(&stage).await?;
    one.execute(RUNS).await?;
    two.execute(IS_STUCK).await?;
    let served = Served::start(&stage, USERS, &(section(&one) + &section(&two))).await?;
    let ann = served.ann();

    let saga = link(&ann.get("/sagas").await?, &two)?;
    let shown = ann.get(&saga).await?;
    assert!(shown.status == 200 && shown.body.contains("what=cancel\""), "{}", shown.body);
    let form = ann.get(&format!("{}&what=cancel", saga.replacen("/saga?", "/saga/decide?", 1))).await?;
    assert!(form.status == 200 && form.body.contains("no lorry"), "{}", form.body);
    let name = form.field("database")?;
    assert!(name.starts_with("inbox:billing at ") && name.ends_with(two.name()?), "{name}");
    let consumers = ann.get("/consumers").await?.body;
    for database in [&one, &two] {
        assert!(consumers.contains(&format!("/{}", database.name()?)), "{consumers}");
    }
    let place = [("database", name), ("type", "checkout"), ("id", "42")];
    let choice = [("what", "cancel"), ("as_of", form.field("as_of")?), ("reason", "no lorry will come")];
    let (address, done) = ann.follow("/saga/decide", &[&place[..], &choice[..]].concat()).await?;
    assert!(address.contains("&done=cancel-"), "{address}");
    assert!(done.body.contains("The saga is cancelled"), "{}", done.body);
    let keys = ann.get("/keys").await?;
    let key = [("what", "release"), ("reason", "no effect"), ("database", keys.field("database")?)];
    let field = |name| Ok::<_, Failure>((name, keys.field(name)?));
    let id = [field("scope")?, field("operation")?, field("key")?, field("holder")?];
    let (address, done) = ann.follow("/keys/decide", &[&key[..], &id[..]].concat()).await?;
    assert!(address.starts_with("/keys?done=release-"), "{address}");
    assert!(done.body.contains("The key is released"), "{}", done.body);
    let audits = "SELECT (SELECT count(*) FROM saga_audit) * 10 + (SELECT count(*) FROM idempotency_audit)";
    assert_eq!((one.integer(audits).await?, two.integer(audits).await?), (0, 11));
    let short = ann.get("/saga?database=inbox:billing&type=checkout&id=42").await?;
    assert!(short.status == 400 && short.body.contains("no database is called"), "{}", short.body);
    served.relay.stop().await?;

    let served = Served::start(&stage, USERS, &(section(&two) + &section(&one))).await?;
    let form = served.ann().get(&saga).await?;
    assert!(form.status == 200 && form.body.contains("no lorry"), "{}", form.body);
    served.relay.stop().await
}
