//! A night with very many dead messages: one decision about all that matches, stopped and
//! continued.

use tests::{Outcome, Stage, eventually};

use super::{RELAY, Served, USERS};

tests::cases! { "{case}":
    anywhere + postgres { very_many_dead_messages_are_one_decision = many }
}

/// Number of dead messages, of three causes: more than are decided about before the answer.
const DEAD: i64 = 100_000;

const COUNT: &str = "SELECT count(*) FROM outbox_audit";

/// Goal: an operator sees what has happened, discards one cause, stops, and discards the rest.
/// Oracle: the numbers on the pages, the audit, and the states of the messages; each message is
/// decided about once, and one that becomes dead after the confirmation is left alone.
async fn many(stage: Stage) -> Outcome {
    let served = Served::start(&stage, USERS, "").await?;
    let database = &served.workload.database;
    let dead = |from: i64, to: i64| {
        format!(
            "INSERT INTO outbox_exception (relay, id, message_id, topic, key, state, error, fault) \
             SELECT '{RELAY}', 1000000 + n, gen_random_uuid(), 'parcels', 'key-' || n, 'dead', \
             CASE WHEN n % 10 < 7 THEN 'the carrier refused parcel ' || n || ': no address' \
             WHEN n % 10 < 9 THEN 'no price for zone ' || n ELSE 'customer ' || n || ' is unknown' END, \
             'message' FROM generate_series({from}, {to}) AS n"
        )
    };
    database.execute(&dead(1, DEAD)).await?;
    let ann = served.ann();
    let list = ann.get("/dead?topic=parcels").await?.body;
    assert!(list.contains("100,000 messages, 3 causes"), "{list}");
    assert!(
        list.contains("Discard all 100,000…")
            && list.contains("for example: </span>the carrier refused parcel "),
        "{list}"
    );

    let which = [
        ("what", "discard-all"),
        ("topic", "parcels"),
        ("error_like", "the carrier refused parcel #: no address"),
    ];
    let asked = ann.post("/dead/confirm", &which).await?;
    assert!(asked.body.contains(">Discard 70,000 messages</button>"), "{}", asked.body);
    database.execute(&dead(DEAD + 1, DEAD + 5)).await?;
    let form = [&which[..], &asked.decision()?, &[("reason", "sent by hand")]].concat();
    let (address, running) = ann.follow("/dead/decide", &form).await?;
    let mut fields = vec![("id", asked.field("decision")?)];
    fields.push(("topic", "parcels"));
    let stopped = ann.post("/decision/stop", &fields).await?;
    let ended = eventually("it has ended", || async {
        let page = ann.get(&address).await?.body;
        Ok((!page.contains("<progress")).then_some(page))
    })
    .await?;
    // A fast machine may have finished the decision before it was stopped.
    assert_eq!(stopped.status == 303, running.body.contains("<progress"), "{}", stopped.body);
    assert!(ended.contains("of 70,000 messages discarded</h1>") && ended.contains("By <span"), "{ended}");
    let first = database.integer(COUNT).await?;
    if stopped.status == 303 {
        assert!(first > 0 && first < 70_000 && first % 500 == 0, "{first}");
        assert!(
            ended.contains("It was stopped.") && ended.contains("Discard all that still match…"),
            "{ended}"
        );
    }
    let (same, _) = ann.follow("/dead/decide", &form).await?;
    assert_eq!((same, database.integer(COUNT).await?), (address, first), "one form is one decision");

    let asked = ann.post("/dead/confirm", &which).await?;
    // The five that became dead later also have this cause.
    let left = 70_000 - first + 5;
    let form = [&which[..], &asked.decision()?, &[("reason", "the rest")]].concat();
    let begun_at = std::time::Instant::now();
    let (address, _) = ann.follow("/dead/decide", &form).await?;
    eventually("the rest is discarded", || async {
        let page = ann.get(&address).await?.body;
        Ok((!page.contains("<progress")).then_some(()))
    })
    .await?;
    println!("{left} messages were discarded from the page in {:.1?}", begun_at.elapsed());
    assert_eq!(database.integer(COUNT).await?, first + left);
    let each = "SELECT count(DISTINCT message_id) FROM outbox_audit WHERE action = 'discard'";
    assert_eq!(database.integer(each).await?, first + left, "each of them once");
    assert_eq!(served.parked("dead").await?, DEAD + 5 - first - left);
    served.relay.stop().await
}
