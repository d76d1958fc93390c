//! Searches through the log: what they find, how far one step goes, and the history of one message.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use message::Fault;
use migrations::{Line, Migrator};
use operate::search::{HeaderIs, Search, SearchResult, search};
use operate::story::{Story, story};
use operate::{MessageState, Operator, Places, Role};
use outbox::NewMessage;
use outbox_log::admin::{self, ChosenEntry, Decision, OperatorDecision};
use outbox_log::entries::{LogEntries, Search as LogSearch};
use outbox_log::{EntryId, ExceptionChange, ExceptionState, LogOptions, Parked, RelayName};
use tests::Backend;

use crate::outbox::retention::{Relay, messages, parked};
use crate::outbox::support::{Database, TestDialect, inbox_config, pipeline, relay, source};

tests::cases! { "outbox/searches/{on}/{case}":
    every {
        a_search_lists_each_match_once_with_its_state_newest_first,
        a_header_is_compared_exactly,
        one_step_of_a_search_looks_at_a_bounded_part_of_the_log,
        a_search_begins_at_a_time_or_a_position,
        a_database_that_is_away_is_named_and_hides_no_other,
        a_story_names_the_consumers_of_its_own_pipeline_only,
        a_held_message_names_the_one_that_it_waits_behind,
        a_held_message_does_not_name_anothers_fault,
    }
}

fn viewer() -> Operator {
    Operator::new("ann", Role::Viewer)
}

pub(super) fn places<DB: TestDialect>(db: &Database<DB>) -> Places {
    Places::new().outbox(&pipeline(&relay(), &db.relay_url()))
}

fn entries<DB: TestDialect>(db: &Database<DB>) -> Arc<dyn LogEntries> {
    outbox_log::entries::open(db.relay_url().as_str(), source(), LogOptions::default()).unwrap().1
}

/// Follows a search of one outbox to its end. Returns each result.
async fn follow(places: &Places, mut asked: Search) -> Vec<SearchResult> {
    let mut results = Vec::new();
    loop {
        let result = search(places, &viewer(), &asked).await.unwrap();
        assert_eq!(result.away, []);
        let below = result.searched[0].below;
        assert!(asked.below.is_none_or(|before| below.is_none_or(|below| below < before)), "it goes on");
        results.push(result);
        match below {
            Some(below) => asked.below = Some(below),
            None => return results,
        }
    }
}

fn found(results: &[SearchResult]) -> Vec<(i64, MessageState)> {
    results.iter().flat_map(|result| &result.messages).map(|message| (message.id, message.state)).collect()
}

/// Goal: an operator finds a message although it has long been published, and sees its state.
/// Oracle: the ids and keys that were written, and the decisions about some of them; each slice of
/// the result.
async fn a_search_lists_each_match_once_with_its_state_newest_first<DB: TestDialect>(db: &Database<DB>) {
    const COUNT: i32 = 300;
    let of_key = |n: i32| NewMessage::new(["orders", "bills"][n as usize % 2]).key(format!("key-{}", n % 5));
    db.enqueue((0..COUNT).map(|n| of_key(n).json(&n))).await;
    let mut main = Relay::new(db, &relay()).await;
    let passed = main.follower.all().await;
    let park = |n: usize| ExceptionChange::Park(parked(&passed[n], ExceptionState::Dead));
    main.pass(&[park(0), park(10)]).await;
    let admin = admin::open(db.relay_url().as_str(), source(), LogOptions::default()).unwrap();
    let decree =
        OperatorDecision { decision: Decision::Discard, signature: outbox::Signature::new("ann", "a test") };
    let chosen = [ChosenEntry { id: passed[10].id, message_id: passed[10].message_id(), edited_at: None }];
    admin.decide(&relay(), &chosen, decree).await.unwrap().remove(0).unwrap();
    main.pass(&[ExceptionChange::Resolve(passed[10].id)]).await;
    db.enqueue([of_key(0).json(&COUNT)]).await;
    let places = places(db);

    let newest = db.number("SELECT max(id) FROM outbox_message").await;
    let mut expected = vec![(newest, MessageState::Waiting)];
    for (n, entry) in passed.iter().enumerate().rev().filter(|(n, _)| n % 10 == 0) {
        let state = match n {
            0 => MessageState::Dead,
            10 => MessageState::Discarded,
            _ => MessageState::Published,
        };
        expected.push((entry.id.0, state));
    }
    let asked =
        Search { topic: Some("orders".into()), key: Some("key-0".into()), limit: 7, ..Search::default() };
    let results = follow(&places, asked.clone()).await;
    assert_eq!(found(&results), expected);
    assert!(results.iter().all(|result| result.messages.len() <= 7), "{}", results.len());
    let looked_at: u64 = results.iter().map(|result| result.searched[0].searched).sum();
    assert_eq!(looked_at, COUNT as u64 + 1, "each message once");
    assert_eq!(results[0].searched[0].of_about, COUNT as u64 + 1);

    let all = follow(&places, Search { limit: 100, ..Search::default() }).await;
    assert_eq!(found(&all).len(), COUNT as usize + 1);
    assert_eq!(found(&all)[0], expected[0]);
    assert!(all.iter().all(|result| result.messages.len() <= 100));
    // Exactly this key: no pattern, and no SQL.
    for key in ["key-", "key-%", "KEY-0", "key-0 ", "' OR '1' = '1", "key-0\u{202e}"] {
        let other = Search { key: Some(key.into()), ..asked.clone() };
        assert_eq!(found(&follow(&places, other).await), [], "{key:?}");
    }
    places.close().await;
}

/// Goal: a business header finds the messages that have exactly this value, whatever else producers
/// wrote. Oracle: the keys of the messages that were written with it.
async fn a_header_is_compared_exactly<DB: TestDialect>(db: &Database<DB>) {
    let with =
        |key: &str, name: &str, value: &str| NewMessage::new("orders").key(key).header(name, value).json(&1);
    let long = "x".repeat(8_000);
    db.enqueue([
        with("acme", "tenant", "acme"),
        with("two", "tenant", "acme").header("order.id", "it's \"7\" \\ ä"),
        with("case", "tenant", "Acme"),
        with("name", "Tenant", "acme"),
        with("space", "tenant", "acme "),
        with("longer", "tenant", "acme2"),
        with("seven", "tenant", "7"),
        with("empty", "tenant", ""),
        with("long", "tenant", &long),
        NewMessage::new("orders").key("none").json(&1),
    ])
    .await;
    let payload = if DB::BACKEND == Backend::Postgres { "'\\x00'" } else { "x'00'" };
    // The relay parks a row that is not a message, and a search passes over it.
    for (key, headers) in [
        ("number", r#"{"tenant": 7}"#),
        ("nested", r#"{"tenant": {"tenant": "acme"}}"#),
        ("inner", r#"{"other": {"tenant": "acme"}}"#),
        ("null", r#"{"tenant": null}"#),
    ] {
        let values = format!("'orders', '{key}', '{headers}', {payload}");
        db.produce(&format!("INSERT INTO outbox_message (topic, key, headers, payload) VALUES ({values})"))
            .await;
    }
    let places = places(db);
    for (name, value, keys) in [
        ("tenant", "acme", &["two", "acme"][..]),
        ("order.id", "it's \"7\" \\ ä", &["two"]),
        ("tenant", "7", &["seven"]),
        ("tenant", "", &["empty"]),
        ("tenant", long.as_str(), &["long"]),
        ("tenant", "%", &[]),
        ("tenant", "null", &[]),
        ("$.tenant", "acme", &[]),
        ("\"tenant\"", "acme", &[]),
    ] {
        let header = Some(HeaderIs { name: name.into(), value: value.into() });
        let result = follow(&places, Search { header, limit: 50, ..Search::default() }).await.remove(0);
        let found: Vec<&str> = result.messages.iter().filter_map(|message| message.key.as_deref()).collect();
        assert_eq!(found, keys, "{name} = {value:.20}");
    }
    places.close().await;
}

/// Goal: a search of a log of any length reads a few thousand rows at a time, and reports how far
/// it came. Oracle: the rows of each step; the two matches at the ends of the log.
async fn one_step_of_a_search_looks_at_a_bounded_part_of_the_log<DB: TestDialect>(db: &Database<DB>) {
    const COUNT: i64 = 25_000;
    let payload = if DB::BACKEND == Backend::Postgres { "'\\x00'" } else { "x'00'" };
    db.run(&format!(
        "INSERT INTO outbox_message (topic, key, headers, payload) \
         WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {COUNT}) \
         SELECT 'orders', CASE WHEN n IN (1, {COUNT}) THEN 'ends' ELSE 'inner' END, '{{\"tenant\": \"acme\"}}', \
         {payload} FROM numbers ORDER BY n"
    ))
    .await;
    let log = entries(db);
    let extent = log.extent(&relay()).await.unwrap();
    let header = Some(HeaderIs { name: "tenant".into(), value: "other".into() });
    let key = Some(String::from("ends"));
    for (search, steps, matches) in [
        (LogSearch { key, ..LogSearch::default() }, vec![10_000, 10_000, 5_000], 2),
        (LogSearch { header, ..LogSearch::default() }, [vec![2_000; 12], vec![1_000]].concat(), 0),
    ] {
        let mut below = EntryId(i64::MAX);
        let (mut looked_at, mut found) = (Vec::new(), Vec::new());
        loop {
            let step = log.search(&relay(), &extent, &search, below, 50).await.unwrap();
            looked_at.push(step.looked_at);
            found.extend(step.entries.iter().map(|entry| entry.id));
            assert!(step.back_to.is_some());
            let Some(next) = step.below else { break };
            below = next;
        }
        assert_eq!(looked_at, steps);
        assert_eq!(found.len(), matches);
    }
    let end = log.search(&relay(), &extent, &LogSearch::default(), EntryId(1), 50).await.unwrap();
    assert_eq!((end.looked_at, end.below, end.entries.len()), (0, None, 0), "nothing lies below");
    let all = log.search(&relay(), &extent, &LogSearch::default(), EntryId(i64::MAX), 50).await.unwrap();
    assert_eq!((all.looked_at, all.entries.len()), (50, 50), "what is shown is what is read");

    let places = places(db);
    let asked = Search { key: Some("ends".into()), limit: 50, ..Search::default() };
    let result = follow(&places, asked).await.remove(0);
    assert_eq!((result.messages.len(), result.searched[0].searched), (2, COUNT as u64));
    assert!(result.searched[0].told().contains("back to the oldest one"), "{}", result.searched[0].told());
    let header = Some(HeaderIs { name: "tenant".into(), value: "other".into() });
    let asked = Search { header, limit: 50, ..Search::default() };
    let first = search(&places, &viewer(), &asked).await.unwrap();
    let part = &first.searched[0];
    assert!(part.below.is_some() && part.searched <= 20_000, "{part:?}");
    assert!(
        part.told().contains(&format!("searched {} of about {COUNT} messages", part.searched)),
        "{part:?}"
    );
    assert_eq!(first.none_text(), "nothing found so far: continue the search for older messages");
    places.close().await;
}

async fn listed(places: &Places, asked: Search) -> Vec<i64> {
    let result = search(places, &viewer(), &Search { limit: 9, ..asked }).await.unwrap();
    result.messages.iter().map(|message| message.id).collect()
}

/// Goal: an operator searches the time of an incident without reading everything later. Oracle: the
/// ids of messages with known times.
async fn a_search_begins_at_a_time_or_a_position<DB: TestDialect>(db: &Database<DB>) {
    db.enqueue(messages(3)).await;
    let places = places(db);
    let ids = listed(&places, Search::default()).await;
    assert_eq!(ids.len(), 3);
    let until = |text: &str| Search { until: Some(text.parse().unwrap()), ..Search::default() };
    assert!(listed(&places, until("1h")).await.is_empty(), "all of them are younger");
    assert_eq!(listed(&places, until("2200-01-01T00:00:00Z")).await, ids);
    assert_eq!(listed(&places, Search { below: Some(ids[0]), ..Search::default() }).await, ids[1..]);
    assert!(listed(&places, Search { below: Some(0), ..Search::default() }).await.is_empty());
    places.close().await;
}

/// Goal: a database that does not answer is named, and is not reported as empty. Oracle: the result
/// of a search in it and in another one.
async fn a_database_that_is_away_is_named_and_hides_no_other<DB: TestDialect>(db: &Database<DB>) {
    db.enqueue(messages(2)).await;
    let away = RelayName::new("away").unwrap();
    let away = pipeline(&away, "postgres://relay@127.0.0.1:1/nowhere");
    let both = places(db).outbox(&away);
    let asked = Search { limit: 9, ..Search::default() };
    let result = search(&both, &viewer(), &asked).await.unwrap();
    assert_eq!((result.messages.len(), result.searched.len(), result.away.len()), (2, 1, 1));
    assert!(result.away[0].to_string().starts_with("away: "), "{:?}", result.away);
    let none = Search { key: Some("none".into()), ..asked.clone() };
    let result = search(&both, &viewer(), &none).await.unwrap();
    assert_eq!(result.none_text(), "nothing was found, but not every database answered");
    // A position is meaningless in another log.
    let refused = search(&both, &viewer(), &Search { below: Some(9), ..asked }).await.unwrap_err();
    assert!(refused.to_string().contains("belongs to one pipeline"), "{refused}");
    both.close().await;
}

pub(super) async fn told(places: &Places, id: &str) -> Story {
    story(places, &viewer(), &id.parse().unwrap()).await.unwrap()
}

/// Goal: the history of a message does not list consumers that never get it. Oracle: consumers of
/// its pipeline, of another one, and of another topic, and the knowledge of each.
async fn a_story_names_the_consumers_of_its_own_pipeline_only<DB: TestDialect>(db: &Database<DB>) {
    let mut admin = db.admin.acquire().await.unwrap();
    Migrator::<DB>::new(Line::Inbox).up(&mut admin).await.unwrap();
    drop(admin);
    db.enqueue(messages(1)).await;
    let mut open = places(db);
    for (consumer, pipelines, topics) in [
        ("billing", &["main"][..], &[][..]),
        ("everything", &[], &["orders"]),
        ("shipping", &["parcels"], &[]),
        ("returns", &["main"], &["returns"]),
    ] {
        open = open.inbox(&inbox_config(&db.url, consumer, pipelines, topics)).await;
    }
    assert_eq!(open.away(), []);
    let names = |story: &Story| {
        story.inboxes.iter().map(|part| (part.consumer.clone(), part.state)).collect::<Vec<_>>()
    };
    let place = db.number("SELECT max(id) FROM outbox_message").await.to_string();
    let before = told(&open, &place).await;
    let unseen = |name: &str| (name.to_owned(), MessageState::NotSeen);
    assert_eq!(names(&before), [unseen("billing"), unseen("everything")]);

    // A consumer of the pipeline that knows it is shown, whatever topics its section names.
    let id = before.message_id.unwrap();
    let bytes = "00".repeat(32);
    let bytes =
        if DB::BACKEND == Backend::Postgres { format!("'\\x{bytes}'") } else { format!("x'{bytes}'") };
    for (number, consumer) in ["returns", "shipping"].iter().enumerate() {
        db.run(&format!(
            "INSERT INTO inbox_dead_letter (id, consumer, scope, subject, fingerprint, message_id, topic, key, headers, \
             payload, reason, error, attempts, origin) VALUES ('019f0000-0000-7000-8000-00000000000{number}', \
             '{consumer}', '', '{id}', {bytes}, '{id}', 'returns', 'key-0', '[]', {bytes}, 'held', 'it waits', 1, \
             'returns/0')"
        ))
        .await;
    }
    let after = told(&open, &place).await;
    assert_eq!(
        names(&after),
        [(String::from("returns"), MessageState::Dead), unseen("billing"), unseen("everything")]
    );
    assert_eq!(after.inboxes[0].held_by_key.as_deref(), Some("key-0"));
    open.close().await;
}

/// Goal: an operator who follows a held message to the one that stops it decides about the right
/// one. Oracle: the entries that were parked: a retry after the fault of its own message stops only
/// its key, and the message before a held one on its key stops it whatever else the topic has.
/// Whether another one stops the topic is unknown.
async fn a_held_message_does_not_name_anothers_fault<DB: TestDialect>(db: &Database<DB>) {
    let keys = ["own-fault", "dead", "dead", "free", "topic-is-missing", "dead", "free"];
    db.enqueue(keys.iter().map(|key| NewMessage::new("orders").key(*key).json(&1))).await;
    let mut main = Relay::new(db, &relay()).await;
    let passed = main.follower.all().await;
    let park = |n: usize, state, fault| {
        let error = Some(format!("the error of {n}"));
        ExceptionChange::Park(Parked { fault, error, ..parked(&passed[n], state) })
    };
    let (message, operator) = (Some(Fault::Message), Some(Fault::Operator));
    let parks = [
        park(0, ExceptionState::Retrying, message),
        park(1, ExceptionState::Dead, message),
        park(2, ExceptionState::Held, None),
        park(3, ExceptionState::Held, None),
    ];
    main.pass(&parks).await;
    let places = places(db);
    let behind = async |n: usize| {
        let story = told(&places, &passed[n].id.to_string()).await.outboxes.remove(0);
        (story.behind.map(|behind| behind.id), story.because.unwrap_or_default())
    };
    let (id, because) = behind(2).await;
    assert_eq!(id, Some(passed[1].id.0), "{because}");
    let of_key = format!("it waits behind {}, which is dead: the error of 1", passed[1].id.0);
    assert_eq!(because, of_key);
    assert_eq!(behind(3).await.0, None, "nothing stops its key or its topic");

    // The topic may be stopped as well. What stops the key is still named first.
    let parks = [
        park(4, ExceptionState::Retrying, operator),
        park(5, ExceptionState::Held, None),
        park(6, ExceptionState::Held, None),
    ];
    main.pass(&parks).await;
    assert_eq!(behind(5).await, (Some(passed[1].id.0), of_key));
    let (id, because) = behind(6).await;
    assert_eq!(id, Some(passed[4].id.0), "{because}");
    let of_topic =
        format!("its topic may be stopped by {}, which is retrying: the error of 4", passed[4].id.0);
    assert_eq!(because, of_topic);
    places.close().await;
}

/// Goal: the way from a held message to the one that stops it is one step. Oracle: the entries that
/// were parked.
async fn a_held_message_names_the_one_that_it_waits_behind<DB: TestDialect>(db: &Database<DB>) {
    db.enqueue((0..2).map(|n| NewMessage::new("orders").key("key-0").json(&n))).await;
    let mut main = Relay::new(db, &relay()).await;
    let passed = main.follower.all().await;
    let park = |n: usize, state| ExceptionChange::Park(parked(&passed[n], state));
    main.pass(&[park(0, ExceptionState::Dead), park(1, ExceptionState::Held)]).await;
    let places = places(db);
    let held = told(&places, &passed[1].id.to_string()).await.outboxes.remove(0);
    let behind = held.behind.unwrap();
    assert_eq!((behind.id, behind.state.as_str()), (passed[0].id.0, "dead"));
    let because = held.because.unwrap();
    assert!(because.starts_with(&format!("it waits behind {}, which is dead", behind.id)), "{because}");
    let dead = told(&places, &behind.id.to_string()).await.outboxes.remove(0);
    assert_eq!((dead.state, dead.behind), (MessageState::Dead, None));
    places.close().await;
}
