//! `relay doctor`: each check fails on real servers, with the measured value and the remedy, and
//! the exit code shows whether something must be changed.

use aws_sdk_sqs::types::QueueAttributeName as Name;
use brokers::kafka::{Config as KafkaConfig, TopicPlan};
use brokers::rabbitmq::Config as RabbitmqConfig;
use harness::plain::rabbitmq::Rabbitmq;
use harness::plain::sqs::Sqs;
use lapin::options::QueueDeclareOptions;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use serde_json::Value;
use sqlx::{ConnectOptions as _, Postgres, Sqlite};
use tests::brokers::{create_kafka_topic, remove_rabbitmq_queue};
use tests::eventually::when;
use tests::relay_process::Config;
use tests::{Backend, Cluster, Database, Failure, Outcome, RelayProcess, Role, Stage, eventually};

use super::Ran;

tests::cases! { "doctor/{case}/{on}":
    postgres kafka {
        a_sound_pipeline_fails_nothing = a_sound_pipeline,
        what_is_wrong_in_postgres_is_told = what_is_wrong_in_postgres,
        what_a_cloud_takes_away_is_told = what_a_cloud_takes_away,
        what_will_be_too_old_is_told = too_old,
        encodings_are_told = encodings,
        a_collation_that_changed_is_told = changed_collation,
        missing_rights_are_named = missing_rights,
        what_is_wrong_in_kafka_is_told = what_is_wrong_in_kafka,
    }
    postgres rabbitmq { amqp_tells_that_a_queue_exists = amqp_alone }
    postgres rabbitmq + rabbitmq_management {
        what_is_wrong_in_rabbitmq_is_told = what_is_wrong_in_rabbitmq,
    }
    postgres sqs { what_is_wrong_in_sqs_is_told = what_is_wrong_in_sqs }
    sqlite { a_broker_that_is_away_can_pass_by_itself = a_broker_that_is_away }
    kafka + postgres xtask { "a_pooler_is_named/private" = behind_a_pooler }
}

/// The result of one run.
struct Report {
    code: Option<i32>,
    checks: Vec<Value>,
    go_live: usize,
}

impl Report {
    async fn of(config: &Config, arguments: &[&str]) -> Result<Self, Failure> {
        let ran = Ran::with(config, &[&["doctor", "--output", "json"], arguments].concat()).await?;
        let json = ran.json()?;
        let checks = json["pipelines"][0]["checks"].as_array().cloned().unwrap_or_default();
        let go_live = json["go_live"].as_array().map_or(0, Vec::len);
        Ok(Self { code: ran.code, checks, go_live })
    }

    /// Demands a finding of this check in this state whose text contains `part`, and a remedy for
    /// every finding that is not a pass.
    fn has(&self, check: &str, state: &str, part: &str) {
        let is_it = |finding: &&Value| {
            finding["check"] == check && finding["state"] == state && finding.to_string().contains(part)
        };
        assert!(
            self.checks.iter().any(|f| is_it(&f)),
            "no {state} {check} with {part:?}: {:#?}",
            self.checks
        );
        let remedy = |finding: &Value| finding["remedy"].as_str().is_some_and(|remedy| !remedy.is_empty());
        let told = |f: &&Value| f["state"] == "pass" || remedy(f);
        assert!(self.checks.iter().all(|f| told(&f)), "no remedy: {:#?}", self.checks);
    }

    fn none(&self, state: &str) {
        let wrong: Vec<_> = self.checks.iter().filter(|finding| finding["state"] == state).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}

fn kafka() -> Result<(KafkaConfig, String), Failure> {
    let servers = Backend::Kafka.address()?;
    let section = format!("[pipeline.kafka]\nbootstrap_servers = [{servers:?}]\n");
    Ok((KafkaConfig::new([servers]), section))
}

async fn topic(stage: &Stage, settings: &[(&str, &str)]) -> Result<String, Failure> {
    let (config, name) = (kafka()?.0, stage.unique("doctor"));
    let mut plan = TopicPlan::new(&name, 3);
    for (setting, value) in settings {
        plan = plan.with(*setting, *value);
    }
    create_kafka_topic(stage, &config, plan).await?;
    Ok(name)
}

/// Goal: a sound pipeline raises no alarm. Oracle: no failure, exit code 0, every fact of the
/// database passes for the role of least privilege; warnings fail only with `--strict`.
async fn a_sound_pipeline(stage: Stage) -> Outcome {
    let database = Database::<Postgres>::migrated(&stage).await?;
    let name = topic(&stage, &[("unclean.leader.election.enable", "false")]).await?;
    database.append(&name, "k", "{}").await?;
    let config = Config::with_section(&stage, "orders", &database.relay_url()?, &kafka()?.1, "")?;
    let partitions = format!("{name}=3");
    let report = Report::of(&config, &["--partitions", &partitions]).await?;
    report.none("fail");
    for check in
        ["connection", "server", "primary", "pooler", "schema", "opens", "id-sequence", "grants", "clock"]
    {
        report.has(check, "pass", "");
    }
    report.has("partitions", "pass", &name);
    report.has("listeners", "pass", "all 1 advertised");
    // The test cluster has one broker.
    report.has("min-insync", "warn", "min.insync.replicas=1");
    assert_eq!((report.code, report.go_live), (Some(0), 14));
    assert_eq!(Report::of(&config, &["--strict"]).await?.code, Some(2));
    let table = Ran::with(&config, &["doctor"]).await?.done()?;
    assert!(table.out.contains("GO-LIVE CHECKLIST") && table.out.contains("REMEDY"), "{table:?}");
    Ok(())
}

/// Goal: the doctor sees each fact of the server that puts messages at risk. Oracle: the check, its
/// state, the measured value; exit code 2.
async fn what_is_wrong_in_postgres(stage: Stage) -> Outcome {
    let database = Database::<Postgres>::migrated(&stage).await?;
    let (gid, slot) = (stage.unique("prepared"), stage.unique("slot"));
    let (lost, admin) = (slot.clone(), database.admin.clone());
    stage.afterwards(format!("slot {slot}"), async move {
        sqlx::query("SELECT pg_drop_replication_slot($1)").bind(lost).execute(&admin).await?;
        Ok(())
    });
    let name = database.texts("SELECT current_database()").await?.remove(0);
    let left = gid.clone();
    let admin = database.admin.clone();
    stage.afterwards(format!("prepared transaction {gid}"), async move {
        let rollback = format!("ROLLBACK PREPARED '{left}'");
        sqlx::raw_sql(sqlx::AssertSqlSafe(rollback)).execute(&admin).await?;
        Ok(())
    });
    for statement in [
        String::from("ALTER SEQUENCE outbox_message_id_seq CACHE 100 INCREMENT BY -1 CYCLE"),
        String::from("GRANT SELECT ON outbox_message TO PUBLIC"),
        format!("ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'"),
        format!("ALTER DATABASE {name} SET synchronous_commit = off"),
        format!("SELECT pg_create_physical_replication_slot('{slot}', true)"),
        format!(
            "BEGIN; INSERT INTO outbox_relay SELECT * FROM outbox_relay WHERE false; PREPARE TRANSACTION '{gid}'"
        ),
        String::from(
            "INSERT INTO outbox_toolkit_migration (line, version, name, checksum) \
             VALUES ('inbox', 2, '0002_later', 'x')",
        ),
        String::from("ALTER TABLE outbox_message_2 SET UNLOGGED"),
        String::from("DROP INDEX outbox_exception_due_idx"),
        String::from(
            "CREATE SCHEMA shop; CREATE TABLE shop.outbox_relay (relay text);
             CREATE TABLE shop.outbox_message (id int) PARTITION BY LIST (id);
             CREATE TABLE shop.rest PARTITION OF shop.outbox_message DEFAULT;
             INSERT INTO shop.outbox_message VALUES (1)",
        ),
    ] {
        database.execute(&statement).await?;
    }
    let mut open = database.admin.begin().await?;
    let pid: i32 =
        sqlx::query_scalar("SELECT pg_backend_pid() FROM pg_current_xact_id()").fetch_one(&mut *open).await?;
    let section = kafka()?.1;
    let config = Config::with_section(&stage, "orders", &database.url, &section, "")?;
    let report = Report::of(&config, &[]).await?;
    report.has("id-sequence", "fail", "CACHE 100, INCREMENT BY -1, CYCLE");
    report.has("opens", "fail", "CACHE 1");
    report.has("grants", "warn", "outbox_message: SELECT");
    report.has("grants", "warn", "a superuser");
    report.has("isolation", "warn", "serializable");
    report.has("durability", "warn", "synchronous_commit = off");
    report.has("durability", "warn", "all roles in ");
    report.has("prepared-transactions", "pass", &gid);
    report.has("replication-slots", "warn", ": inactive, keeps");
    report.has("schema", "fail", "inbox version 2");
    report.has("schema", "fail", "index outbox_exception_due_idx");
    report.has("logged", "fail", "public.outbox_message_2");
    report.has("outboxes", "warn", "in the outbox of schema shop");
    report.has("transactions", "pass", "open for");
    assert_eq!(report.code, Some(2));
    // The role of least privilege sees the pids of other users' sessions, but no details.
    let config = Config::with_section(&stage, "orders", &database.relay_url()?, &section, "")?;
    let report = Report::of(&config, &[]).await?;
    report.has("transactions", "warn", &pid.to_string());
    report.has("transactions", "warn", "GRANT pg_read_all_stats TO outbox_test_relay;");
    report.has("outboxes", "warn", "may not look into the outbox of schema shop");
    open.rollback().await?;
    // The warning also comes while no transaction is open, before the details are needed.
    let report = Report::of(&config, &[]).await?;
    report.has("transactions", "warn", "GRANT pg_read_all_stats TO outbox_test_relay;");
    Ok(())
}

/// Goal: on a cloud that does not reveal the server's timeline, the operator learns which
/// protection is missing. Oracle: the check passes on a complete server and warns on that one, and
/// nothing fails.
async fn what_a_cloud_takes_away(stage: Stage) -> Outcome {
    let database = Database::<Postgres>::migrated(&stage).await?;
    let config = Config::with_section(&stage, "orders", &database.relay_url()?, &kafka()?.1, "")?;
    Report::of(&config, &[]).await?.has("timeline", "pass", "timeline 1");
    database.refuse_wal_functions().await?;
    let report = Report::of(&config, &[]).await?;
    report.has("timeline", "warn", "pg_current_wal_lsn");
    report.none("fail");
    assert_eq!(report.code, Some(0));
    Ok(())
}

/// Goal: a collation whose version differs from when the database was made, as after an upgrade of
/// the operating system or of ICU, is reported with its remedy, and the relay still opens the
/// database. Oracle: the checks, before and after another version is recorded.
async fn changed_collation(stage: Stage) -> Outcome {
    let options = "TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-US'";
    let database = Database::<Postgres>::empty_with(&stage, options).await?;
    Ran::on(&database.url, &["migrate", "up", "--line", "outbox"]).await?.done()?;
    let config = Config::with_section(&stage, "orders", &database.url, &kafka()?.1, "")?;
    Report::of(&config, &[]).await?.has("collation", "pass", "");
    let another = "UPDATE pg_database SET datcollversion = '1' WHERE datname = current_database()";
    database.execute(another).await?;
    let report = Report::of(&config, &[]).await?;
    report.has("collation", "warn", "REFRESH COLLATION VERSION");
    report.has("opens", "pass", "");
    Ok(())
}

/// Goal: a pooler that gives the doctor another client's session, with that client's prepared
/// statements, is named, and no password or right is blamed. Oracle: the checks.
async fn behind_a_pooler(stage: Stage) -> Outcome {
    let cluster = Cluster::start(&stage, &[]).await?;
    let _migrated = Database::<Postgres>::migrated_at(&stage, cluster.url()).await?;
    cluster.start_pooler("transaction").await?;
    let url = Role::Relay.url(&cluster.pooler_url())?;
    let mut other = outbox::connect::postgres_options(&url, false)?.connect().await?;
    let one: i32 = sqlx::query_scalar("SELECT $1").bind(1).fetch_one(&mut other).await?;
    assert_eq!(one, 1);
    let config = Config::with_section(&stage, "orders", &url, &kafka()?.1, "")?;
    let report = Report::of(&config, &[]).await?;
    report.has("connection", "pass", "");
    report.has("pooler", "fail", "a pooler in session mode");
    assert_eq!(report.code, Some(2));
    Ok(())
}

/// Goal: the doctor finds a message that SQL has scheduled beyond the age limit of its id, before
/// consumers refuse it. Oracle: the check, before and after.
async fn too_old(stage: Stage) -> Outcome {
    let database = Database::<Postgres>::migrated(&stage).await?;
    let config = Config::with_section(&stage, "orders", &database.relay_url()?, &kafka()?.1, "")?;
    let relay = RelayProcess::start(&stage, &config)?;
    let enqueue = |days: u32| {
        format!("SELECT outbox_enqueue('orders', '', deliver_at => now() + interval '{days} days')")
    };
    database.execute(&enqueue(10)).await?;
    let scheduled = |count: i64| {
        let database = database.clone();
        async move {
            let asked = "SELECT count(*) FROM outbox_exception WHERE state = 'scheduled'";
            Ok(when(database.integer(asked).await? == count))
        }
    };
    eventually("one is scheduled", || scheduled(1)).await?;
    Report::of(&config, &[]).await?.has("scheduled", "pass", "1 scheduled");
    database.execute(&enqueue(20)).await?;
    eventually("two are scheduled", || scheduled(2)).await?;
    Report::of(&config, &[]).await?.has("scheduled", "warn", "1 of 2 are due more than 14 days");
    relay.stop().await
}

/// Goal: a database whose encoding is not UTF-8 is distinguished from one that is. Oracle: the
/// check, and that the relay opens it.
async fn encodings(stage: Stage) -> Outcome {
    for (encoding, state, part) in
        [("UTF8", "pass", "UTF8"), ("LATIN1", "warn", "LATIN1"), ("SQL_ASCII", "warn", "any bytes")]
    {
        let options = format!("TEMPLATE template0 ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C'");
        let database = Database::<Postgres>::empty_with(&stage, &options).await?;
        Ran::on(&database.url, &["migrate", "up", "--line", "outbox"]).await?.done()?;
        let config = Config::with_section(&stage, "orders", &database.url, &kafka()?.1, "")?;
        let report = Report::of(&config, &[]).await?;
        report.has("encoding", state, part);
        report.has("opens", "pass", "");
    }
    Ok(())
}

/// Goal: a role that lacks a right, or has one too many, is found before it causes trouble. Oracle:
/// the role, the right and the object, and the statement that grants it.
async fn missing_rights(stage: Stage) -> Outcome {
    let database = Database::<Postgres>::migrated(&stage).await?;
    let config = Config::with_section(&stage, "orders", &database.relay_url()?, &kafka()?.1, "")?;
    database.execute("GRANT DELETE ON outbox_message TO outbox_test_relay").await?;
    Report::of(&config, &[]).await?.has("grants", "warn", "has DELETE on outbox_message");
    database
        .execute(
            "REVOKE INSERT ON outbox_audit FROM outbox_test_relay;
             REVOKE EXECUTE ON FUNCTION outbox_advance_sequence() FROM outbox_test_relay",
        )
        .await?;
    let report = Report::of(&config, &[]).await?;
    report.has("grants", "fail", "INSERT on outbox_audit");
    report.has("grants", "fail", "EXECUTE on outbox_advance_sequence()");
    report.has("grants", "fail", "outbox_test_relay");
    report.has("grants", "fail", "GRANT INSERT ON public.outbox_audit TO outbox_test_relay;");
    assert_eq!(report.code, Some(2));
    // A service's own role, and a right without which the doctor reads no version.
    database
        .execute(
            "REVOKE DELETE ON saga_step FROM outbox_test_service;
             REVOKE SELECT ON outbox_toolkit_migration FROM outbox_test_relay",
        )
        .await?;
    let report = Report::of(&config, &["--worker", "outbox_test_service"]).await?;
    report.has("grants", "fail", "GRANT DELETE ON public.saga_step TO outbox_test_service;");
    report.has("grants", "fail", "GRANT SELECT ON public.outbox_toolkit_migration TO outbox_test_relay;");
    Ok(())
}

/// Goal: the doctor sees settings of topics that lose, reorder or refuse messages, or keep them
/// longer than the inbox remembers them. Oracle: the check, its state, the measured value.
async fn what_is_wrong_in_kafka(stage: Stage) -> Outcome {
    let database = Database::<Postgres>::migrated(&stage).await?;
    let name = topic(
        &stage,
        &[
            ("unclean.leader.election.enable", "true"),
            ("max.message.bytes", "5000"),
            ("cleanup.policy", "compact,delete"),
            ("retention.bytes", "1000000"),
            ("retention.ms", "1209600000"),
        ],
    )
    .await?;
    database.execute("INSERT INTO inbox_retention (retained_from) SELECT date_trunc('day', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC' - interval '7 days'").await?;
    database
        .execute(&format!(
            "INSERT INTO outbox_message (topic, payload, enqueued_at) VALUES ('{name}', '', now() - interval '8 days');
             INSERT INTO outbox_relay (relay, epoch, cursor)
             VALUES ('orders', 1, '{{\"base\":\"0@1:1:\",\"progress\":null}}')"
        ))
        .await?;
    database.append(&name, "k", "{}").await?;
    let missing = stage.unique("missing");
    let inbox = format!("[[verify.inbox]]\nconsumer = \"billing\"\nurl = {:?}\n", database.url);
    let config = Config::with_section(&stage, "orders", &database.relay_url()?, &kafka()?.1, &inbox)?;
    let partitions = format!("{name}=12");
    let report = Report::of(&config, &["--topic", &missing, "--partitions", &partitions]).await?;
    report.has("unclean-election", "fail", &name);
    report.has("message-size", "fail", "max.message.bytes=5000");
    report.has("cleanup", "fail", "compact");
    report.has("retention-bytes", "warn", "1000000");
    report.has("replication", "warn", "1 replicas");
    report.has("min-insync", "warn", "min.insync.replicas=1");
    report.has("partitions", "fail", "3, but 12 are recorded");
    report.has("topic", "fail", &missing);
    // The inbox remembers seven days and some hours; the topic keeps fourteen days.
    report.has("inbox-retention", "fail", "remembers ids for 7d");
    report.has("inbox-waiting", "fail", "a message has waited for 8d");
    assert_eq!(report.code, Some(2));
    Ok(())
}

fn rabbitmq(more: &str) -> Result<String, Failure> {
    Ok(format!("[pipeline.rabbitmq]\nurl = {:?}\n{more}", Backend::Rabbitmq.address()?))
}

/// Declares a queue, which is deleted with the stage.
async fn queue(stage: &Stage, prefix: &str, durable: bool, arguments: FieldTable) -> Result<String, Failure> {
    let url = Backend::Rabbitmq.address()?;
    let name = stage.unique(prefix);
    let session = Rabbitmq::new(&url).open().await?;
    let options = QueueDeclareOptions { durable, ..QueueDeclareOptions::default() };
    session.channel.queue_declare(ShortString::try_new(name.as_str())?, options, arguments).await?;
    remove_rabbitmq_queue(stage, &RabbitmqConfig::new(url), &name);
    Ok(name)
}

/// Goal: without the management API the doctor makes no claims. Oracle: an existing queue is
/// unknown, with the setting that helps; a missing one fails.
async fn amqp_alone(stage: Stage) -> Outcome {
    let database = Database::<Postgres>::migrated(&stage).await?;
    let there = queue(&stage, "doctor", true, FieldTable::default()).await?;
    let missing = stage.unique("missing");
    let config = Config::with_section(&stage, "orders", &database.relay_url()?, &rabbitmq("")?, "")?;
    let report = Report::of(&config, &["--topic", &there, "--topic", &missing]).await?;
    report.has("queue-settings", "unknown", "rabbitmq.management_url");
    report.has("topic", "fail", &missing);
    assert_eq!(report.code, Some(2));
    Ok(())
}

/// Goal: the doctor sees queues that lose confirmed messages. Oracle: the check, its state, the
/// queue.
async fn what_is_wrong_in_rabbitmq(stage: Stage) -> Outcome {
    let database = Database::<Postgres>::migrated(&stage).await?;
    let argument = |arguments: &[(&str, AMQPValue)]| {
        let mut table = FieldTable::default();
        for (name, value) in arguments {
            table.insert(ShortString::try_new(*name)?, value.clone());
        }
        Ok::<_, Failure>(table)
    };
    let bounded = [("x-max-length", AMQPValue::LongInt(9)), ("x-message-ttl", AMQPValue::LongInt(60_000))];
    let quorum = [
        ("x-queue-type", AMQPValue::LongString("quorum".into())),
        ("x-delivery-limit", AMQPValue::LongInt(3)),
    ];
    // An exchange that does not exist, and the default exchange, which has a queue of this name.
    let gone = [("x-dead-letter-exchange", AMQPValue::LongString("gone".into()))];
    let kept = [("x-dead-letter-exchange", AMQPValue::LongString("".into()))];
    let transient = queue(&stage, "transient", false, FieldTable::default()).await?;
    let bounded = queue(&stage, "bounded", true, argument(&bounded)?).await?;
    let quorum = queue(&stage, "quorum", true, argument(&quorum)?).await?;
    let gone = queue(&stage, "gone", true, argument(&gone)?).await?;
    let kept = queue(&stage, "kept", true, argument(&kept)?).await?;
    let url = Backend::RabbitmqManagement.address()?;
    let section = rabbitmq(&format!("management_url = {url:?}\n"))?;
    let config = Config::with_section(&stage, "orders", &database.relay_url()?, &section, "")?;
    let topics =
        [&transient, &bounded, &quorum, &gone, &kept].map(|topic| ["--topic", topic.as_str()]).concat();
    let report = Report::of(&config, &topics).await?;
    report.has("server", "pass", "RabbitMQ");
    report.has("clock", "pass", "broker");
    report.has("alarms", "pass", "broker");
    report.has("durability", "fail", &transient);
    report.has("queue-type", "warn", "classic");
    report.has("overflow", "fail", &bounded);
    report.has("queue-ttl", "fail", &bounded);
    report.has("delivery-limit", "fail", "delivery limit 3, no dead-letter exchange");
    report.has("queue-type", "warn", &quorum);
    report.has("dead-letters", "fail", "there is no exchange");
    report.has("dead-letters", "pass", &kept);
    assert_eq!(report.code, Some(2));
    Ok(())
}

/// Goal: the doctor sees attributes of queues that duplicate or lose messages. Oracle: the check,
/// its state, the measured value.
async fn what_is_wrong_in_sqs(stage: Stage) -> Outcome {
    let database = Database::<Postgres>::migrated(&stage).await?;
    let endpoint = Backend::Sqs.address()?;
    let client = Sqs::elasticmq(&endpoint).await.client().clone();
    let (dead, name) = (stage.unique("dead"), stage.unique("doctor"));
    let made = client.create_queue().queue_name(&dead).send().await?;
    let dead_url = made.queue_url.ok_or("no URL")?;
    let attributes = client.get_queue_attributes().queue_url(&dead_url).attribute_names(Name::QueueArn);
    let attributes = attributes.send().await?.attributes.unwrap_or_default();
    let arn = attributes.get(&Name::QueueArn).ok_or("no ARN")?;
    let policy = serde_json::json!({ "deadLetterTargetArn": arn, "maxReceiveCount": 2 }).to_string();
    let made = client
        .create_queue()
        .queue_name(&name)
        .attributes(Name::VisibilityTimeout, "5")
        .attributes(Name::DelaySeconds, "7")
        .attributes(Name::RedrivePolicy, policy)
        .send()
        .await?;
    let urls = [dead_url, made.queue_url.ok_or("no URL")?];
    stage.afterwards("queues", async move {
        for url in urls {
            client.delete_queue().queue_url(url).send().await?;
        }
        Ok(())
    });
    let section = format!(
        "[pipeline.sqs]\nendpoint_url = {endpoint:?}\nregion = \"elasticmq\"\naccess_key_id = \"test\"\n\
         secret_access_key = \"test\"\n"
    );
    let config = Config::with_section(&stage, "orders", &database.relay_url()?, &section, "")?;
    let missing = stage.unique("missing");
    let report = Report::of(&config, &["--topic", &name, "--topic", &dead, "--topic", &missing]).await?;
    report.has("visibility-timeout", "warn", "VisibilityTimeout 5s");
    report.has("delay", "warn", "DelaySeconds 7s");
    report.has("fifo", "warn", "a standard queue");
    report.has("redrive", "warn", "after 2 receives");
    report.has("redrive", "warn", "no dead-letter queue");
    report.has("topic", "fail", &missing);
    assert_eq!(report.code, Some(2));
    Ok(())
}

/// Goal: an outage is distinguished from a mistake. Oracle: exit code 3, and 2 as soon as something
/// must be changed as well.
async fn a_broker_that_is_away(stage: Stage) -> Outcome {
    let database = Database::<Sqlite>::migrated(&stage).await?;
    // A connection made like the toolkit's switches a new file to the write-ahead log.
    database.execute("SELECT 1").await?;
    let section = "[pipeline.kafka]\nbootstrap_servers = [\"127.0.0.1:1\"]\nconnect_timeout_ms = 1000\n";
    let config = Config::with_section(&stage, "orders", &database.url, section, "")?;
    let report = Report::of(&config, &[]).await?;
    report.has("connection", "fail", "broker");
    report.has("schema", "pass", "outbox");
    report.has("journal", "pass", "wal");
    report.has("disk", "pass", "free");
    assert_eq!(report.code, Some(3));
    database.execute("DELETE FROM outbox_toolkit_migration WHERE line = 'outbox'").await?;
    let report = Report::of(&config, &[]).await?;
    report.has("schema", "fail", "was it truncated?");
    assert_eq!(report.code, Some(2));
    Ok(())
}
