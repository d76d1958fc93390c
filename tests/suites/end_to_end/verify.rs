//! `relay verify`: its proofs, its findings, and that it changes nothing.

use std::collections::BTreeSet;
use std::sync::Arc;

use harness::plain::PlainRecord;
use inbox::{Cause, ConsumerName, Inbox, InboxOptions, Reason, Signature, Tenant};
use message::{Delivery, DeliveryToken, EventType, Message, Topic};
use outbox::NewMessage;
use serde_json::Value;
use sqlx::Postgres;
use tests::relay_process::{Config, relay};
use tests::workload::Workload;
use tests::{Backend, Broker, Dialect, Failure, Outcome, RelayProcess, Stage};

tests::cases! { "{case}/{on}":
    everywhere {
        a_quiet_system_is_proven_and_each_damage_is_named,
        a_running_system_gives_no_false_alarm,
        what_was_discarded_is_not_missing,
        what_waits_for_an_operator_is_told_apart,
        nothing_is_written,
    }
    postgres kafka {
        a_role_that_may_only_select_is_enough,
        a_pipeline_that_is_away_hides_no_loss = a_pipeline_that_is_away_hides_no_loss::<Postgres>,
        what_is_not_consumed_yet_is_not_missing,
    }
}

const RELAY: &str = "orders";
const ORDERS: usize = 40;
/// An id with an old timestamp, so that it lies inside every range, but in no outbox.
const UNKNOWN: &str = "01900000-0000-7000-8000-00000000beef";

/// Runs `relay verify`. Returns its exit code and its output.
pub(crate) async fn verify(config: &Config, more: &[&str]) -> Result<(Option<i32>, Value), Failure> {
    let path = config.path().to_str().ok_or("the path is not UTF-8")?;
    let fixed = ["--output", "json", "verify", "--rows-per-second", "100000", "--config", path];
    let output = relay(&[&fixed, more].concat()).await?;
    let errors = String::from_utf8_lossy(&output.stderr);
    let found = serde_json::from_slice(&output.stdout).unwrap_or(Value::String(errors.into_owned()));
    Ok((output.status.code(), found))
}

/// Returns a configuration that compares with the workload's own inbox, whose effects are in the
/// table `charge`.
pub(crate) fn config<DB: Dialect>(
    stage: &Stage,
    workload: &Workload<DB>,
    url: &str,
    effects: &str,
) -> Result<Config, Failure> {
    let inbox = format!(
        "[[verify.inbox]]\nconsumer = \"workload\"\nurl = {url:?}\ntopics = [{:?}]\npipelines = [{RELAY:?}]\n{effects}",
        workload.topic
    );
    Config::write(stage, RELAY, url, workload.broker.as_ref(), &inbox)
}

const EFFECTS: &str = "effects = \"SELECT message_id FROM charge\"\n";

/// Returns a workload in which everything took effect and no process runs any longer.
async fn quiet<DB: Dialect>(stage: &Stage, broker: Arc<dyn Broker>) -> Result<Workload<DB>, Failure> {
    let workload = Workload::<DB>::open(stage, broker).await?;
    let config = Config::write(stage, RELAY, &workload.database.url, workload.broker.as_ref(), "")?;
    let relay = RelayProcess::start(stage, &config)?;
    let consumer = workload.consume().await?;
    workload.place_many(5, ORDERS).await?;
    workload.settled().await?;
    consumer.stop().await?;
    relay.stop().await?;
    workload.database.execute("CREATE TABLE charge AS SELECT message_id FROM inbox_message").await?;
    Ok(workload)
}

/// Returns the findings, as `missing (broker)`, with their message ids.
fn named(report: &Value) -> BTreeSet<(String, String)> {
    let messages = report["messages"].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let found = |message: &Value| format!("{} {}", text(&message["found"]), text(&message["place"]));
    messages.iter().map(|message| (found(message), text(&message["id"]))).collect()
}

/// Goal: a system that kept its promises passes, and each kind of damage is named with its message.
/// Oracle: exit code, counts, and exactly the ids that were damaged with plain SQL and a plain
/// client.
async fn a_quiet_system_is_proven_and_each_damage_is_named<DB: Dialect>(
    stage: Stage,
    broker: Arc<dyn Broker>,
) -> Outcome {
    let workload = quiet::<DB>(&stage, broker).await?;
    let config = config(&stage, &workload, &workload.database.url, EFFECTS)?;
    let has_log = matches!(workload.broker.backend(), Backend::Kafka | Backend::KafkaMock);
    let (code, report) = verify(&config, &["--grace", "5s"]).await?;
    assert_eq!(code, Some(0), "{report:#}");
    let pipeline = &report["pipelines"][0];
    assert_eq!((&report["proven"], &pipeline["enqueued"]), (&true.into(), &ORDERS.into()), "{report:#}");
    assert_eq!(pipeline["inboxes"][0]["applied"], ORDERS, "{report:#}");
    assert_eq!(pipeline["broker"]["records"].is_u64(), has_log, "{report:#}");
    assert_eq!(pipeline["broker"]["not_checked"].as_array().map(Vec::len), Some(usize::from(!has_log)));

    let ids =
        workload.database.texts("SELECT CAST(message_id AS text) FROM outbox_message ORDER BY id").await?;
    let mut expected = damage(&workload, &ids).await?;
    if has_log {
        put_phantom(&workload).await?;
        expected.extend(
            [("phantom (broker)", UNKNOWN), ("phantom (broker)", &ids[3])]
                .map(|(found, id)| (found, id.to_owned())),
        );
        let lost =
            workload.database.texts("SELECT CAST(message_id AS text) FROM outbox_message WHERE key = 'lost'");
        expected.extend(lost.await?.into_iter().map(|id| ("missing (broker)", id)));
    } else {
        let lost =
            workload.database.texts("SELECT CAST(message_id AS text) FROM outbox_message WHERE key = 'lost'");
        expected.extend(lost.await?.into_iter().map(|id| ("missing workload", id)));
    }
    let (code, report) = verify(&config, &["--grace", "1s"]).await?;
    let expected = expected.into_iter().map(|(found, id)| (found.to_owned(), id)).collect();
    assert_eq!((code, named(&report)), (Some(1), expected), "{report:#}");
    Ok(())
}

/// Goal: a pipeline that cannot be compared is reported as such, and does not hide the losses of
/// another one. Oracle: exit codes and findings, with and without a loss.
async fn a_pipeline_that_is_away_hides_no_loss<DB: Dialect>(
    stage: Stage,
    broker: Arc<dyn Broker>,
) -> Outcome {
    let workload = quiet::<DB>(&stage, broker).await?;
    let config = config(&stage, &workload, &workload.database.url, EFFECTS)?;
    let gone = "\n[[pipeline]]\nname = \"bills\"\ndatabase.url = \"postgres://nobody@127.0.0.1:1/bills\"\n\
                [pipeline.kafka]\nbootstrap_servers = \"127.0.0.1:1\"\n";
    std::fs::write(config.path(), std::fs::read_to_string(config.path())? + gone)?;
    let (code, report) = verify(&config, &["--grace", "1s"]).await?;
    assert_eq!((code, &report["proven"]), (Some(3), &false.into()), "{report:#}");
    assert_eq!(report["not_compared"][0]["pipeline"], "bills", "{report:#}");
    workload.database.execute("DELETE FROM charge").await?;
    workload.database.execute("DELETE FROM inbox_message").await?;
    let (code, report) = verify(&config, &["--grace", "1s"]).await?;
    assert_eq!((code, named(&report).len()), (Some(1), ORDERS), "{report:#}");
    assert_eq!(report["not_compared"][0]["pipeline"], "bills", "{report:#}");
    Ok(())
}

/// Goal: messages that wait for an operator are distinguished from errors and from success. Effects
/// are required only for the event types that the statement covers. Oracle: exit codes, counts and
/// the hint, for an open dead letter, a closed one, and a statement that returns no effect.
async fn what_waits_for_an_operator_is_told_apart<DB: Dialect>(
    stage: Stage,
    broker: Arc<dyn Broker>,
) -> Outcome {
    let workload = quiet::<DB>(&stage, broker).await?;
    let none = "effects = \"SELECT message_id FROM charge WHERE 1 = 0\"\n";
    let covered = config(&stage, &workload, &workload.database.url, none)?;
    let (code, report) = verify(&covered, &["--grace", "0s"]).await?;
    assert_eq!((code, named(&report).len()), (Some(1), ORDERS), "{report:#}");
    let path = covered.path().to_str().ok_or("the path is not UTF-8")?;
    let table = relay(&["verify", "--grace", "0s", "--config", path]).await?;
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(table.contains("UNION ALL") && table.contains("effects_kinds"), "{table}");
    let others = format!("{none}effects_kinds = [\"another.type\"]\n");
    let others = config(&stage, &workload, &workload.database.url, &others)?;
    let (code, report) = verify(&others, &["--grace", "0s"]).await?;
    assert_eq!((code, named(&report).len()), (Some(0), 0), "{report:#}");

    // Two messages that took no effect: one with an open dead letter, one with a closed one.
    let config = config(&stage, &workload, &workload.database.url, "")?;
    let ids = "SELECT CAST(message_id AS text) FROM outbox_message ORDER BY id";
    let ids = workload.database.texts(ids).await?;
    let inbox = Inbox::open(workload.database.consumer.clone(), InboxOptions::default()).await?;
    for (id, is_closed) in [(&ids[0], false), (&ids[1], true)] {
        for table in ["inbox_message", "charge"] {
            workload.database.execute(&format!("DELETE FROM {table} WHERE message_id = '{id}'")).await?;
        }
        let mut message = Message::new(Topic::new(&*workload.topic)?, EventType::new("order.placed")?, "{}");
        message.id = id.parse()?;
        let delivery = Delivery {
            token: DeliveryToken(1),
            message: Ok(message),
            redelivered: false,
            origin: String::from("a test"),
        };
        let consumer = ConsumerName::new("workload")?;
        let cause = Cause::new(Reason::Poison, String::from("no price"), 1);
        drop(inbox.dead_letter(&consumer, &Tenant::none(), &delivery, cause).await?);
        if is_closed {
            let signature = Signature { actor: "ann".into(), note: "a test".into(), selection: None };
            let letter = format!("SELECT CAST(id AS text) FROM inbox_dead_letter WHERE subject = '{id}'");
            let letter = workload.database.texts(&letter).await?.remove(0);
            inbox.discard(letter.parse()?, &signature).await?;
        }
    }
    let (code, report) = verify(&config, &["--grace", "1s"]).await?;
    assert_eq!((code, &report["undecided"]), (Some(3), &1.into()), "{report:#}");
    let found = ["retrying", "dead_letters", "given_up"]
        .map(|count| report["pipelines"][0]["inboxes"][0][count].as_u64());
    assert_eq!(found, [Some(0), Some(1), Some(1)], "{report:#}");
    Ok(())
}

/// Goal: a discarded message is not called a loss, on any broker, from the decision on, and it
/// hides no loss. Oracle: exit code, counts and findings before and after the relay applies the
/// decision; then lost messages beside decisions about other messages: another relay's decision, a
/// decision about another message at the same position in the log, and a reversed decision.
async fn what_was_discarded_is_not_missing<DB: Dialect>(stage: Stage, broker: Arc<dyn Broker>) -> Outcome {
    let workload = quiet::<DB>(&stage, broker).await?;
    let bytes = workload.broker.oversize_bytes().ok_or("every message fits")?;
    let config = config(&stage, &workload, &workload.database.url, EFFECTS)?;
    let path = config.path().to_str().ok_or("the path is not UTF-8")?;
    let run = |arguments: &'static [&'static str]| async move {
        let output = relay(&[arguments, &["--config", path]].concat()).await?;
        Ok::<_, Failure>((output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned()))
    };
    let mut tx = workload.begin().await?;
    let message = NewMessage::new(&workload.topic).key("large").payload("x".repeat(bytes));
    workload.outbox().enqueue(&mut tx, message).await?;
    tx.commit().await?;
    assert_eq!(run(&["run", "--once"]).await?.0, Some(3), "it is dead");
    let discard = &["dead", "discard", "--all", "--yes", "--actor", "ann", "--note", "sent by hand"];
    let (code, text) = run(discard).await?;
    assert_eq!(code, Some(0), "{text}");
    for _ in 0..2 {
        let (code, report) = verify(&config, &["--grace", "1s"]).await?;
        assert_eq!((code, named(&report)), (Some(0), BTreeSet::new()), "{report:#}");
        let pipeline = &report["pipelines"][0];
        let counts = ["published", "parked", "discarded"].map(|count| pipeline[count].as_u64());
        assert_eq!(counts, [Some(ORDERS as u64), Some(1), Some(1)], "{report:#}");
        // The relay applies the decision. From now on only the audit records it.
        assert_eq!(run(&["run", "--once"]).await?.0, Some(0));
    }
    assert_eq!(workload.database.integer("SELECT count(*) FROM outbox_exception").await?, 0);

    let has_log = matches!(workload.broker.backend(), Backend::Kafka | Backend::KafkaMock);
    let place = if has_log { "(broker)" } else { "workload" };
    let mut expected = BTreeSet::new();
    for case in ["of another relay", "of another message", "taken back"] {
        let id = workload.database.append(&workload.topic, case, "{}").await?;
        let lost = format!("SELECT CAST(message_id AS text) FROM outbox_message WHERE id = {id}");
        let lost = workload.database.texts(&lost).await?.remove(0);
        let audit = |relay: &str, message: &str, action: &str| {
            format!(
                "INSERT INTO outbox_audit (actor, relay, id, message_id, action, note) \
                 VALUES ('ann', '{relay}', {id}, '{message}', '{action}', '{case}');"
            )
        };
        let decided = match case {
            "of another relay" => audit("shipping", &lost, "discard"),
            "of another message" => audit(RELAY, UNKNOWN, "discard"),
            _ => audit(RELAY, &lost, "discard") + &audit(RELAY, &lost, "requeue"),
        };
        workload.database.execute(&decided).await?;
        expected.insert((format!("missing {place}"), lost));
    }
    // The relay's cursor has passed these rows without publishing them.
    let cursor = passed_everything::<DB>();
    workload.database.execute(&format!("UPDATE outbox_relay SET cursor = '{cursor}'")).await?;
    let (code, report) = verify(&config, &["--grace", "1s"]).await?;
    assert_eq!((code, named(&report)), (Some(1), expected), "{report:#}");
    assert_eq!(report["pipelines"][0]["discarded"], 1, "{report:#}");
    Ok(())
}

/// Returns a cursor that has passed everything.
fn passed_everything<DB: Dialect>() -> &'static str {
    match DB::BACKEND {
        Backend::Sqlite => r#"{"base":"999999","progress":null}"#,
        _ => r#"{"base":"999999@99999999:99999999:","progress":null}"#,
    }
}

/// Damages one message in each way. Returns the findings to expect, with the ids.
async fn damage<DB: Dialect>(
    workload: &Workload<DB>,
    ids: &[String],
) -> Result<Vec<(&'static str, String)>, Failure> {
    let everything = passed_everything::<DB>();
    let nothing = match DB::BACKEND {
        Backend::Sqlite => "zeroblob(32)",
        _ => r"decode(repeat('00', 32), 'hex')",
    };
    let [unapplied, altered, doubled, gone, forgotten, ineffective] = std::array::from_fn(|nth| &ids[nth]);
    // A row that the relay's cursor has passed without publishing it.
    workload.database.append(&workload.topic, "lost", "{}").await?;
    workload
        .database
        .execute(&format!(
            "UPDATE outbox_relay SET cursor = '{everything}';
            DELETE FROM inbox_message WHERE message_id IN ('{unapplied}', '{forgotten}');
            DELETE FROM charge WHERE message_id IN ('{unapplied}', '{ineffective}');
            UPDATE inbox_message SET fingerprint = {nothing} WHERE message_id = '{altered}';
            INSERT INTO charge VALUES ('{doubled}');
            DELETE FROM outbox_message WHERE message_id = '{gone}';"
        ))
        .await?;
    let found = [
        ("missing workload", unapplied),
        ("altered workload", altered),
        ("doubled workload", doubled),
        ("phantom workload", gone),
        ("missing workload", forgotten),
        ("missing workload", ineffective),
    ];
    Ok(found.map(|(found, id)| (found, id.clone())).into())
}

/// Publishes a message that no outbox has, with a client that does not use the toolkit.
async fn put_phantom<DB: Dialect>(workload: &Workload<DB>) -> Outcome {
    let headers = [
        ("ce_id", UNKNOWN),
        ("ce_source", "/elsewhere"),
        ("ce_type", "order.placed"),
        ("ce_specversion", "1.0"),
    ];
    let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    // `relay verify` makes no claims about times before the outbox's oldest message, so the outbox
    // gets an old message.
    let older = "01900000-0000-7000-8000-000000000001";
    let insert = format!(
        "INSERT INTO outbox_message (message_id, topic, payload, kind) SELECT '{older}', 'elsewhere', payload, kind \
         FROM outbox_message WHERE id = (SELECT max(id) FROM outbox_message WHERE key <> 'lost')"
    );
    workload.database.execute(&insert).await?;
    workload
        .database
        .execute(&format!(
            "INSERT INTO outbox_exception (relay, id, message_id, topic, state) \
         SELECT '{RELAY}', id, message_id, topic, 'dead' FROM outbox_message WHERE message_id = '{older}'"
        ))
        .await?;
    workload
        .broker
        .write(&workload.topic, PlainRecord { headers, payload: b"{}".to_vec(), ..PlainRecord::default() })
        .await
}

/// Goal: a system under load raises no false alarm. Oracle: the exit code, three times while orders
/// are placed.
async fn a_running_system_gives_no_false_alarm<DB: Dialect>(
    stage: Stage,
    broker: Arc<dyn Broker>,
) -> Outcome {
    let workload = Workload::<DB>::open(&stage, broker).await?;
    workload.database.execute("CREATE TABLE charge (message_id text)").await?;
    let config = config(&stage, &workload, &workload.database.url, "")?;
    let relay = RelayProcess::start(&stage, &config)?;
    let consumer = workload.consume().await?;
    workload.place_many(5, ORDERS).await?;
    workload.applied(1).await?;
    let load = {
        let workload = workload.clone();
        tokio::spawn(async move {
            let mut placed = i64::try_from(ORDERS).unwrap_or_default();
            loop {
                // Orders are placed as fast as the consumer works, so it is always behind.
                let placing = workload.place_many(5, ORDERS);
                if let Err(failure) = async {
                    placing.await.map(drop)?;
                    workload.applied(placed).await
                }
                .await
                {
                    return failure;
                }
                placed += i64::try_from(ORDERS).unwrap_or_default();
            }
        })
    };
    // A message that a lost SQS session had received is redelivered only after the visibility
    // timeout. The grace is well above that timeout.
    for _ in 0..3 {
        let (code, report) = verify(&config, &["--grace", "60s"]).await?;
        assert_eq!(code, Some(0), "{report:#}");
        assert!(report["pipelines"][0]["enqueued"].as_u64() > Some(0), "{report:#}");
    }
    assert!(!load.is_finished(), "orders could not be placed: {}", load.await?);
    load.abort();
    workload.settled().await?;
    consumer.stop().await?;
    relay.stop().await
}

/// Goal: nothing can be written, not even by the operator's own statement. Oracle: the table
/// afterwards.
async fn nothing_is_written<DB: Dialect>(stage: Stage, broker: Arc<dyn Broker>) -> Outcome {
    let workload = quiet::<DB>(&stage, broker).await?;
    let writing =
        "effects = \"INSERT INTO charge SELECT message_id FROM inbox_message RETURNING message_id\"\n";
    let config = config(&stage, &workload, &workload.database.url, writing)?;
    let (code, refused) = verify(&config, &[]).await?;
    let text = refused.to_string();
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("effects") && text.to_lowercase().contains("read"), "{text}");
    assert_eq!(workload.database.integer("SELECT count(*) FROM charge").await?, i64::try_from(ORDERS)?);
    Ok(())
}

/// Goal: a role that may only SELECT is enough. Oracle: the exit code.
async fn a_role_that_may_only_select_is_enough(stage: Stage, broker: Arc<dyn Broker>) -> Outcome {
    let workload = quiet::<Postgres>(&stage, broker).await?;
    let role = stage.unique("verifier");
    workload.database
        .execute(&format!(
            "CREATE ROLE {role} LOGIN PASSWORD 'verifier'; GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}"
        ))
        .await?;
    let database = workload.database.clone();
    stage.afterwards(format!("role {role}"), {
        let role = role.clone();
        async move { database.execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await }
    });
    let (_, address) = workload.database.url.rsplit_once('@').ok_or("a URL without a user")?;
    let config = config(&stage, &workload, &format!("postgres://{role}:verifier@{address}"), EFFECTS)?;
    let (code, report) = verify(&config, &[]).await?;
    assert_eq!(code, Some(0), "{report:#}");
    assert_eq!(report["pipelines"][0]["inboxes"][0]["applied"], ORDERS, "{report:#}");
    Ok(())
}

/// Goal: messages that a consumer has not reached yet are distinguished from missing ones. Oracle:
/// the counts, with the group's name, without it, and with a wrong one.
async fn what_is_not_consumed_yet_is_not_missing(stage: Stage, broker: Arc<dyn Broker>) -> Outcome {
    const MORE: usize = 7;
    let workload = quiet::<Postgres>(&stage, broker).await?;
    let url = &workload.database.url;
    // Without topics, the group's offsets in those of the outbox are read, even if nothing is
    // suspect.
    let inbox = format!(
        "[[verify.inbox]]\nconsumer = \"workload\"\nurl = {url:?}\npipelines = [{RELAY:?}]\ngroup = \"workload\"\n"
    );
    let all_topics = Config::write(&stage, RELAY, url, workload.broker.as_ref(), &inbox)?;
    let (code, report) = verify(&all_topics, &["--grace", "1s"]).await?;
    let of_inbox = &report["pipelines"][0]["inboxes"][0];
    assert_eq!((code, of_inbox["waiting"].as_u64()), (Some(0), Some(0)), "{report:#}");
    let plain = Config::write(&stage, RELAY, url, workload.broker.as_ref(), "")?;
    workload.place_many(5, MORE).await?;
    let path = plain.path().to_str().ok_or("the path is not UTF-8")?;
    let published = relay(&["run", "--once", "--config", path]).await?;
    assert!(published.status.success(), "{}", String::from_utf8_lossy(&published.stderr));
    let with_group = |group: &str| config(&stage, &workload, url, group);
    let found = async |group: &str| {
        let (code, report) = verify(&with_group(group)?, &["--grace", "1s"]).await?;
        let inbox = &report["pipelines"][0]["inboxes"][0];
        Ok::<_, Failure>((code, inbox["missing"].as_u64(), inbox["waiting"].as_u64()))
    };
    let more = Some(MORE as u64);
    assert_eq!(found("group = \"workload\"\n").await?, (Some(0), Some(0), more));
    assert_eq!(found("").await?, (Some(1), more, None));
    assert_eq!(found("group = \"misspelt\"\n").await?, (Some(1), more, None));
    // A message that the consumer has passed without a record in the inbox is missing.
    let last = "(SELECT message_id FROM inbox_message ORDER BY message_id DESC LIMIT 1)";
    workload.database.execute(&format!("DELETE FROM inbox_message WHERE message_id = {last}")).await?;
    assert_eq!(found("group = \"workload\"\n").await?, (Some(1), Some(1), more));
    Ok(())
}
