//! One short path through everything, on databases with settings found in practice: producer,
//! relay, consumer, idempotency key, saga, and a proof that no message is missing.

mod gone;
mod hosts;
mod private;

use std::sync::Arc;
use std::time::Duration;

use idempotency::{Claim, ClaimOptions, Claimed, Ending, IdempotencyKeys, KeyId, KeyOptions};
use libtest_mimic::Trial;
use message::Fingerprint;
use migrations::{Line, Migrator};
use outbox::Outbox;
use saga::{Run, Sagas};
use sqlx::Postgres;
use tests::eventually::when;
use tests::relay_process::Config;
use tests::workload::Workload;
use tests::{
    Backend, Broker, Database, Failure, Outcome, RelayProcess, Role, Stage, brokers, cluster, eventually,
    trial,
};

use crate::verify::{self, verify};

/// Orders in each round.
const ORDERS: usize = 20;

/// A database as a user may have configured it.
struct Environment {
    name: &'static str,
    /// Options of `CREATE DATABASE`.
    create: &'static str,
    /// Settings of the database, with which every session begins.
    settings: &'static [(&'static str, &'static str)],
    /// Whether the database also has the tables of consumers, keys and sagas.
    has_every_line: bool,
    /// Whether the tables are made, and the rights granted, by a superuser.
    has_superuser: bool,
}

impl Environment {
    const AS_INSTALLED: Self = Self {
        name: "as_it_is_installed",
        create: "",
        settings: &[],
        has_every_line: true,
        has_superuser: true,
    };
}

/// Returns an environment that differs only in its settings.
const fn set(name: &'static str, settings: &'static [(&'static str, &'static str)]) -> Environment {
    Environment { name, settings, ..Environment::AS_INSTALLED }
}

/// Returns an environment that differs only in how it was created.
const fn made(name: &'static str, create: &'static str) -> Environment {
    Environment { name, create, ..Environment::AS_INSTALLED }
}

/// Returns an environment whose encoding cannot store every text, so that it has only an outbox.
const fn narrow(name: &'static str, create: &'static str) -> Environment {
    Environment { name, create, has_every_line: false, ..Environment::AS_INSTALLED }
}

/// Returns an environment without a superuser, as in a cloud: its owner may create roles.
const fn owned(name: &'static str) -> Environment {
    Environment { name, has_superuser: false, ..Environment::AS_INSTALLED }
}

/// The lease where idle sessions are limited. It is renewed every 3 s, so the session of the lease
/// rests for longer than the limit.
const LEASE: &str = "lease_ttl = \"9s\"";
const RENEWED_WITHIN: Duration = Duration::from_secs(4);

/// Each setting alone, so that a failure names its cause. Limits are as tight as a careful
/// administrator sets them.
static ENVIRONMENTS: [Environment; 36] = [
    Environment::AS_INSTALLED,
    owned("without_a_superuser"),
    set("read_uncommitted", &[("default_transaction_isolation", "read uncommitted")]),
    set("read_committed", &[("default_transaction_isolation", "read committed")]),
    set("repeatable_read", &[("default_transaction_isolation", "repeatable read")]),
    set("serializable", &[("default_transaction_isolation", "serializable")]),
    set("deferrable", &[("default_transaction_deferrable", "on")]),
    made("sql_ascii", "TEMPLATE template0 ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'"),
    narrow("latin1", "TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'"),
    narrow("latin9", "TEMPLATE template0 ENCODING 'LATIN9' LC_COLLATE 'C' LC_CTYPE 'C'"),
    narrow("win1252", "TEMPLATE template0 ENCODING 'WIN1252' LC_COLLATE 'C' LC_CTYPE 'C'"),
    made("locale_c", "TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"),
    made("icu_english", "TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-US'"),
    made("icu_turkish", "TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'tr-TR'"),
    made("icu_numeric", "TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-u-kn-true'"),
    set("statement_timeout", &[("statement_timeout", "3s")]),
    set("lock_timeout", &[("lock_timeout", "500ms")]),
    set("idle_in_transaction_session_timeout", &[("idle_in_transaction_session_timeout", "1s")]),
    set("idle_session_timeout", &[("idle_session_timeout", "1s")]),
    set("search_path", &[("search_path", "\"$user\", nowhere, public, pg_temp")]),
    set("datestyle", &[("DateStyle", "SQL, DMY"), ("IntervalStyle", "sql_standard")]),
    set("east", &[("TimeZone", "Pacific/Kiritimati")]),
    set("west", &[("TimeZone", "America/St_Johns")]),
    set("old_strings", &[("standard_conforming_strings", "off"), ("backslash_quote", "off")]),
    set("old_bytes", &[("bytea_output", "escape"), ("extra_float_digits", "-15")]),
    set("null_equals", &[("transform_null_equals", "on"), ("array_nulls", "off")]),
    set("generic_plans", &[("plan_cache_mode", "force_generic_plan")]),
    set("no_sequential_scans", &[("enable_seqscan", "off")]),
    set("no_index_scans", &[("enable_indexscan", "off"), ("enable_bitmapscan", "off")]),
    set("parallel", &[("force_parallel_mode", "on"), ("max_parallel_workers_per_gather", "4")]),
    set("compiled", &[("jit", "on"), ("jit_above_cost", "0")]),
    set("little_memory", &[("work_mem", "64kB"), ("temp_file_limit", "0")]),
    set("synchronous_commit_off", &[("synchronous_commit", "off")]),
    set("talkative", &[("client_min_messages", "debug1"), ("log_statement", "all")]),
    set("row_security_off", &[("row_security", "off"), ("check_function_bodies", "off")]),
    set("quoted", &[("quote_all_identifiers", "on"), ("escape_string_warning", "off")]),
];

/// Environments that do not exist on PostgreSQL 15.
static NEW: [Environment; 2] = [
    set("transaction_timeout", &[("transaction_timeout", "3s")]),
    made("builtin_unicode", "TEMPLATE template0 LOCALE_PROVIDER builtin BUILTIN_LOCALE 'C.UTF-8'"),
];

tests::cases! {
    modules { gone, hosts, private }
    also { environments() }
}

/// Returns a trial for each environment.
fn environments() -> Vec<Trial> {
    let needs = [Backend::Postgres, Backend::Rabbitmq];
    let of = |environment: &'static Environment| {
        let name = format!("environments/postgres/{}", environment.name);
        trial(name, &needs, move |stage| async move {
            let broker = brokers::open(&stage, Backend::Rabbitmq).await?;
            runs(stage, environment, broker).await
        })
    };
    let new = NEW.iter().filter(|_| std::env::var(cluster::MAJOR).is_ok_and(|major| major == "18"));
    ENVIRONMENTS.iter().chain(new).map(of).collect()
}

impl Environment {
    fn limits_idle_sessions(&self) -> bool {
        self.settings.iter().any(|(setting, _)| *setting == "idle_session_timeout")
    }

    async fn database(&self, stage: &Stage) -> Result<Database<Postgres>, Failure> {
        let mut database = Database::<Postgres>::empty_with(stage, self.create).await?;
        if !self.has_superuser {
            database = database.given_to_an_owner(stage).await?;
            let superusers = "SELECT count(*) FROM pg_roles WHERE rolname = current_user AND rolsuper";
            assert_eq!(database.integer(superusers).await?, 0);
        }
        let version = database.integer("SELECT current_setting('server_version_num')::bigint").await?;
        for (setting, value) in self.settings {
            // The setting's name before PostgreSQL 16.
            let is_renamed = *setting == "force_parallel_mode" && version >= 160_000;
            let setting = if is_renamed { "debug_parallel_query" } else { *setting };
            let value = if setting == "search_path" { (*value).to_owned() } else { format!("'{value}'") };
            let set = format!("ALTER DATABASE {} SET {setting} = {value}", database.name()?);
            database.execute(&set).await?;
        }
        // The first session began before the settings changed, so it must end.
        database.admin.close().await;
        let database = database.reopened(stage)?;
        let mut connection = database.admin.acquire().await?;
        let lines = if self.has_every_line { &Line::ALL[..] } else { &[Line::Outbox] };
        for line in lines {
            Migrator::<Postgres>::new(*line).up(&mut connection).await?;
        }
        tests::roles::grant(&mut connection, lines, None).await?;
        drop(connection);
        Ok(database)
    }
}

/// Goal: every environment works, completely or as far as its encoding allows. Oracle: the checker,
/// the results of key and saga, and `relay verify`.
async fn runs(stage: Stage, environment: &Environment, broker: Arc<dyn Broker>) -> Outcome {
    let workload = Workload::<Postgres>::on(environment.database(&stage).await?, broker).await?;
    let database = &workload.database;
    workload.place_many(3, ORDERS).await?;
    let mut config = Config::write(&stage, "orders", &database.relay_url()?, workload.broker.as_ref(), "")?;
    if environment.limits_idle_sessions() {
        let text = std::fs::read_to_string(config.path())?.replace("lease_ttl = \"3s\"", LEASE);
        config = Config::text(&stage, &text)?;
    }
    let relay = RelayProcess::start(&stage, &config)?;
    if !environment.has_every_line {
        let records = workload.broker.drain(&workload.topic, ORDERS).await?;
        assert_eq!(records.len(), ORDERS);
        return relay.stop().await;
    }
    let consumer = workload.consume().await?;
    workload.settled().await?;
    if environment.limits_idle_sessions() {
        rested(database).await?;
        tokio::time::sleep(RENEWED_WITHIN).await;
        let terms = database.integer("SELECT epoch FROM outbox_relay").await?;
        assert_eq!(terms, 1, "the server ended the session of the lease");
    }
    workload.place_many(3, ORDERS).await?;
    workload.settled().await?;
    key(database).await?;
    saga(database).await?;
    consumer.stop().await?;
    relay.stop().await?;
    nothing_is_missing(&stage, &workload).await
}

/// Checks that `relay verify` finds every order at its consumer, and its effects once.
async fn nothing_is_missing(stage: &Stage, workload: &Workload<Postgres>) -> Outcome {
    let config = verify::config(stage, workload, &workload.database.url, "")?;
    let (code, report) = verify(&config, &["--grace", "1s"]).await?;
    assert_eq!(code, Some(0), "{report:#}");
    Ok(())
}

/// Waits until the server has ended the producer's sessions.
async fn rested(database: &Database<Postgres>) -> Outcome {
    let sessions = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = '{}' AND usename = '{}'",
        database.name()?,
        Role::Producer.user()
    );
    eventually("the server ends sessions that rest", || async {
        Ok(when(database.integer(&sessions).await? == 0))
    })
    .await
}

/// Checks that a request with a key runs once, and that a repetition gets the stored outcome.
async fn key(database: &Database<Postgres>) -> Outcome {
    let Claimed::Acquired(claim) = claimed(database).await? else {
        return Err("the key was not free".into());
    };
    claim.complete(Ending::Succeeded, b"charged").await?;
    repeated_key(database).await
}

/// Checks that a repetition of that request gets the stored outcome.
async fn repeated_key(database: &Database<Postgres>) -> Outcome {
    match claimed(database).await? {
        Claimed::Replay(replay) if replay.outcome == b"charged"[..] => Ok(()),
        other => Err(format!("not the stored outcome: {other:?}").into()),
    }
}

/// Claims the key of that request.
async fn claimed(database: &Database<Postgres>) -> Result<Claimed<Claim<Postgres>>, Failure> {
    let keys = IdempotencyKeys::open(database.service.clone(), KeyOptions::default()).await?;
    let id = KeyId::of_texts("tenant-1", "charge", "İ-ß-7")?;
    let fingerprint = Fingerprint::of_parts("charge", "", b"1250");
    Ok(keys.claim(&id, fingerprint, &ClaimOptions::default()).await?)
}

/// Checks that a saga of two steps finishes.
async fn saga(database: &Database<Postgres>) -> Outcome {
    let sagas = Sagas::builder(database.service.clone(), Outbox::new())
        .saga("checkout", 1, async |saga: &mut Run<Postgres>, cents: i64| {
            let paid: i64 = saga.step("pay", async |_| Ok(cents)).undo(async |_, _: &i64| Ok(())).await?;
            let shipped: i64 = saga.step("ship", async |_| Ok(paid + 1)).await?;
            Ok(shipped)
        })
        .open()
        .await?;
    let mut tx = Outbox::new().begin(&database.service).await?;
    assert_eq!(sagas.start(&mut tx, "checkout", "order-7", &1_i64).await?, saga::Started::Started);
    tx.commit().await?;
    let running = sagas.clone();
    let worker = tokio::spawn(async move { running.run(std::future::pending()).await });
    let ended = eventually("the saga is finished", || async {
        let finished = "SELECT count(*) FROM saga WHERE state = 'finished'";
        Ok(when(database.integer(finished).await? == 1))
    });
    let ended = ended.await;
    worker.abort();
    ended
}
