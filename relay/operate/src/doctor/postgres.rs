//! Checks of a PostgreSQL database. Pure.

use super::common::{DATABASE, accepted, pooler};
use super::facts::{IdSequence, PostgresFacts, Timeline};
use super::report::{CheckState, Finding};
use super::text::bytes;
use super::{activity, clock, schema};

/// The first version with `xid8` and `pg_current_snapshot()`.
const VERSION_MIN: i32 = 130_000;
/// The last id that leaves a log years before the end: 2^62, of 2^63.
const ID_MAX: i64 = 1 << 62;
/// Returns the findings of all checks of a database that answered.
#[must_use]
pub(crate) fn check(facts: &PostgresFacts) -> Vec<Finding> {
    let mut findings = vec![tls(facts), server(facts), primary(facts), pooler(facts.shared_session)];
    findings.extend(facts.lines.iter().map(|line| schema::check(line, DATABASE)));
    findings.push(schema::row_security(&facts.lines, DATABASE));
    findings.push(accepted(facts.refused.as_deref()));
    findings.push(sequence(facts.id_sequence.as_ref()));
    findings.push(timeline(&facts.timeline));
    findings.push(encoding(&facts.encoding));
    findings.push(collation(facts.stale_collation.as_ref()));
    findings.push(isolation(facts));
    findings.push(durability(facts));
    findings.push(logged(&facts.unlogged));
    findings.push(outboxes(facts));
    findings.extend(activity::check(facts));
    findings.push(clock::check(DATABASE, facts.clock));
    findings.push(disk(facts.database_bytes));
    findings
}

fn tls(facts: &PostgresFacts) -> Finding {
    let measured = match &facts.cipher {
        Some(cipher) if facts.verified => format!("{cipher}, certificate verified"),
        Some(cipher) => format!("{cipher}, certificate not verified"),
        None => String::from("not encrypted"),
    };
    let remedy = "set sslmode=verify-full in database.url";
    let problem = match (&facts.cipher, facts.verified) {
        _ if facts.local => None,
        (Some(_), true) => None,
        (Some(_), false) => Some((
            CheckState::Warn,
            format!("anyone on the network path can impersonate the server: {remedy}"),
        )),
        (None, _) => Some((CheckState::Fail, format!("payloads cross the network unencrypted: {remedy}"))),
    };
    let measured = if facts.local { format!("{measured}, on this machine") } else { measured };
    Finding::unless("tls", DATABASE, measured, problem)
}

fn server(facts: &PostgresFacts) -> Finding {
    let version: String = facts.version.chars().take_while(|c| *c != ',' && *c != '(').collect();
    let problem = (facts.version_number < VERSION_MIN)
        .then(|| (CheckState::Fail, String::from("upgrade: the relay needs PostgreSQL 13 or newer")));
    Finding::unless("server", DATABASE, version.trim().trim_end_matches(" on x86_64-pc-linux-gnu"), problem)
}

fn primary(facts: &PostgresFacts) -> Finding {
    let problem = facts.replica.then(|| {
        let remedy = "point database.url at the primary: a replica may show commits in a different order";
        (CheckState::Fail, remedy.to_owned())
    });
    Finding::unless("primary", DATABASE, if facts.replica { "a replica" } else { "the primary" }, problem)
}

fn sequence(sequence: Option<&IdSequence>) -> Finding {
    let check = "id-sequence";
    let Some(sequence) = sequence else {
        return Finding::unknown(
            check,
            DATABASE,
            "there is no outbox_message_id_seq",
            "run relay migrate up",
        );
    };
    let IdSequence { cache, increment, maximum, cycles, last } = *sequence;
    let mut wrong = Vec::new();
    let mut why = Vec::new();
    if cache > 1 {
        wrong.push(format!("CACHE {cache}"));
        why.push("rows would be lost");
    }
    if increment < 1 {
        wrong.push(format!("INCREMENT BY {increment}"));
        why.push("ids descend, and producers get ids that are already in use");
    }
    if maximum != i64::MAX {
        wrong.push(format!("MAXVALUE {maximum}"));
        why.push("nothing can be enqueued after this id");
    }
    if cycles {
        wrong.push(String::from("CYCLE"));
        why.push("ids would begin again");
    }
    if !wrong.is_empty() {
        let remedy = format!(
            "{}: run ALTER SEQUENCE outbox_message_id_seq CACHE 1 INCREMENT BY 1 MINVALUE 1 NO MAXVALUE NO CYCLE, then \
             reconnect all producers",
            why.join("; ")
        );
        return Finding::fail(check, DATABASE, wrong.join(", "), remedy);
    }
    match last {
        Some(last) if last > ID_MAX => {
            let remedy = "relays cannot count beyond the end of the ids: once everything has left, stop producers and \
                          relays, run relay forget for each relay, and TRUNCATE outbox_message RESTART IDENTITY";
            Finding::fail(check, DATABASE, format!("the last id is {last}, near the end"), remedy)
        }
        _ => Finding::pass(check, DATABASE, format!("CACHE 1, INCREMENT BY {increment}")),
    }
}

fn timeline(timeline: &Timeline) -> Finding {
    let (measured, problem) = match timeline {
        Timeline::Told(number) => (format!("timeline {number}"), None),
        Timeline::Hidden(why) => {
            let remedy = "this server does not report that a standby was promoted: no warning appears if a \
                          cursor is older than a failover, and exactly-once to Kafka relies on the last \
                          entry that was read. Use a service whose failover loses no commit \
                          (docs/operations/servers.md)";
            (format!("pg_current_wal_lsn() is refused: {why}"), Some((CheckState::Warn, remedy.to_owned())))
        }
    };
    Finding::unless("timeline", DATABASE, measured, problem)
}

fn encoding(encoding: &str) -> Finding {
    let (measured, remedy) = match encoding {
        "UTF8" => (String::from(encoding), None),
        "SQL_ASCII" => (
            format!("{encoding}: any bytes are accepted as text"),
            Some(
                "write only UTF-8, or move to a database created with ENCODING 'UTF8': the relay cannot read \
                 a row with other bytes",
            ),
        ),
        _ => (
            format!("{encoding} lacks most characters"),
            Some(
                "an enqueue with an unsupported character fails, errors are stored in ASCII, and the tables \
                 of inbox, keys and sagas are refused: move to a database created with ENCODING 'UTF8'",
            ),
        ),
    };
    let problem = remedy.map(|remedy| (CheckState::Warn, remedy.to_owned()));
    Finding::unless("encoding", DATABASE, measured, problem)
}

fn collation(stale: Option<&(String, String)>) -> Finding {
    let measured = match stale {
        None => String::from("unchanged since the database was created"),
        Some((recorded, actual)) => {
            format!("version {actual}; it was {recorded} when the database was created")
        }
    };
    let problem = stale.map(|_| {
        let remedy = "your own indexes of text may be out of order, and unique ones may miss duplicates \
                      (the toolkit's indexes compare bytes and are not affected): run REINDEX DATABASE, \
                      then ALTER DATABASE … REFRESH COLLATION VERSION";
        (CheckState::Warn, remedy.to_owned())
    });
    Finding::unless("collation", DATABASE, measured, problem)
}

fn isolation(facts: &PostgresFacts) -> Finding {
    let mut others = facts.isolation_of_others.clone();
    if facts.isolation != "read committed" {
        others.insert(0, format!("{} = {}", facts.role, facts.isolation));
    }
    let problem = (!others.is_empty()).then(|| {
        let remedy = "services with these roles get serialization failures (40001) that they must retry, and \
                      the toolkit needs only read committed (the relay sets it for its own sessions): ALTER \
                      ROLE … RESET default_transaction_isolation";
        (CheckState::Warn, remedy.to_owned())
    });
    let measured = if others.is_empty() { facts.isolation.clone() } else { others.join("; ") };
    Finding::unless("isolation", DATABASE, measured, problem)
}

fn durability(facts: &PostgresFacts) -> Finding {
    if facts.unsafe_settings.is_empty() && facts.asynchronous.is_empty() {
        return Finding::pass("durability", DATABASE, "a commit is on disk when it returns");
    }
    let named = |(name, value): &(&str, String)| format!("{name} = {value}");
    let named = facts.unsafe_settings.iter().map(named).chain(facts.asynchronous.iter().cloned());
    let measured = named.collect::<Vec<_>>().join(", ");
    // Without the first two, a crash damages the database; without the third, it loses commits.
    let is_fatal = facts.unsafe_settings.iter().any(|(name, _)| *name != "synchronous_commit");
    let remedy = "a server crash loses committed messages, even published ones: set it to on";
    let state = if is_fatal { CheckState::Fail } else { CheckState::Warn };
    Finding::unless("durability", DATABASE, measured, Some((state, remedy.to_owned())))
}

fn logged(unlogged: &[String]) -> Finding {
    if unlogged.is_empty() {
        return Finding::pass("logged", DATABASE, "no table of the toolkit is unlogged");
    }
    let remedy = "a crash of the server empties them, and a promotion as well: ALTER TABLE … SET LOGGED";
    Finding::fail("logged", DATABASE, unlogged.join(", "), remedy)
}

fn outboxes(facts: &PostgresFacts) -> Finding {
    let check = "outboxes";
    let of = |is_unread: Option<bool>| {
        let others = facts.other_outboxes.iter().filter(|other| other.is_unread == is_unread);
        others.map(|other| other.schema.as_str()).collect::<Vec<_>>().join(", ")
    };
    let (unread, unknown) = (of(Some(true)), of(None));
    if !unread.is_empty() {
        let measured = format!("no relay has ever read the messages in the outbox of schema {unread}");
        let remedy = "services write into an outbox that no pipeline reads: give it a pipeline with \
                      database.schema, or correct the schema of this pipeline or of those services";
        return Finding::warn(check, DATABASE, measured, remedy);
    }
    if !unknown.is_empty() && !facts.is_schema_named {
        let measured = format!("this role may not look into the outbox of schema {unknown}");
        let remedy = "the search_path chooses the outbox that this pipeline reads: name its schema in \
                      database.schema";
        return Finding::warn(check, DATABASE, measured, remedy);
    }
    let measured = match facts.other_outboxes.len() {
        0 => String::from("this database has no other outbox"),
        count => format!("other outboxes in this database: {count}, none of them known to be unread"),
    };
    Finding::pass(check, DATABASE, measured)
}

fn disk(database_bytes: u64) -> Finding {
    let measured = format!("the database takes {}", bytes(database_bytes));
    Finding::unknown(
        "disk",
        DATABASE,
        measured,
        "SQL does not report free space: monitor the server's disk by other means",
    )
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::doctor::clock::Skew;
    use crate::doctor::facts::{LineFacts, OtherOutbox};

    pub(crate) fn healthy() -> PostgresFacts {
        PostgresFacts {
            version: String::from("PostgreSQL 15.4 (Debian 15.4-1), 64-bit"),
            version_number: 150_004,
            replica: false,
            local: false,
            cipher: Some(String::from("TLSv1.3")),
            verified: true,
            role: String::from("outbox_relay"),
            sees_sessions: true,
            shared_session: false,
            refused: None,
            lines: vec![LineFacts {
                line: "outbox",
                version: 7,
                version_needed: 7,
                problem: None,
                missing: Vec::new(),
                row_security: Vec::new(),
            }],
            is_schema_named: false,
            other_outboxes: Vec::new(),
            unlogged: Vec::new(),
            id_sequence: Some(IdSequence {
                cache: 1,
                increment: 1,
                maximum: i64::MAX,
                cycles: false,
                last: Some(7),
            }),
            timeline: Timeline::Told(1),
            encoding: String::from("UTF8"),
            stale_collation: None,
            isolation: String::from("read committed"),
            isolation_of_others: Vec::new(),
            unsafe_settings: Vec::new(),
            asynchronous: Vec::new(),
            standby_names: String::new(),
            standbys: 0,
            transactions: Vec::new(),
            prepared: Vec::new(),
            slots: Vec::new(),
            clock: Skew { by: Duration::from_millis(3), uncertainty: Duration::from_millis(2) },
            database_bytes: 1 << 20,
        }
    }

    fn other(schema: &str, is_unread: Option<bool>) -> OtherOutbox {
        OtherOutbox { schema: schema.to_owned(), is_unread }
    }

    fn ids(facts: &mut PostgresFacts) -> &mut IdSequence {
        facts.id_sequence.as_mut().unwrap()
    }

    fn state(facts: &PostgresFacts, check: &str) -> CheckState {
        let of_check = |finding: &Finding| (finding.check == check).then_some(finding.state);
        super::check(facts).iter().filter_map(of_check).max().unwrap()
    }

    #[test]
    fn a_healthy_database_fails_and_warns_about_nothing() {
        let findings = check(&healthy());
        assert!(findings.iter().all(|finding| finding.state <= CheckState::Unknown), "{findings:?}");
        let without_remedy = |f: &&Finding| (f.state == CheckState::Pass) != f.remedy.is_none();
        assert_eq!(findings.iter().find(without_remedy), None);
    }

    #[test]
    fn each_fact_that_is_wrong_has_its_check() {
        use CheckState::{Fail, Pass, Unknown, Warn};
        type Break = fn(&mut PostgresFacts);
        let table: [(&str, CheckState, Break); 35] = [
            ("tls", Fail, |facts| facts.cipher = None),
            ("tls", Warn, |facts| facts.verified = false),
            ("server", Fail, |facts| facts.version_number = 120_000),
            ("primary", Fail, |facts| facts.replica = true),
            ("pooler", Warn, |facts| facts.shared_session = true),
            ("schema", Fail, |facts| facts.lines[0].problem = Some(String::from("run relay migrate up"))),
            ("schema", Fail, |facts| {
                facts.lines[0].missing = vec![String::from("partition outbox_message_2")];
            }),
            ("row-security", Warn, |facts| {
                facts.lines[0].row_security = vec![String::from("public.outbox_message")];
            }),
            ("opens", Fail, |facts| facts.refused = Some(String::from("is CockroachDB"))),
            ("id-sequence", Fail, |facts| ids(facts).cache = 100),
            ("id-sequence", Fail, |facts| ids(facts).increment = -1),
            ("id-sequence", Pass, |facts| ids(facts).increment = 10),
            ("id-sequence", Fail, |facts| ids(facts).maximum = 2_147_483_647),
            ("id-sequence", Fail, |facts| ids(facts).cycles = true),
            ("id-sequence", Fail, |facts| ids(facts).last = Some(i64::MAX - 1_000)),
            ("id-sequence", Pass, |facts| ids(facts).last = None),
            ("timeline", Warn, |facts| facts.timeline = Timeline::Hidden(String::from("wal_level"))),
            ("encoding", Warn, |facts| facts.encoding = String::from("LATIN1")),
            ("encoding", Warn, |facts| facts.encoding = String::from("SQL_ASCII")),
            ("collation", Warn, |facts| facts.stale_collation = Some((String::from("1"), String::from("2")))),
            ("isolation", Warn, |facts| facts.isolation = String::from("serializable")),
            ("durability", Fail, |facts| facts.unsafe_settings = vec![("fsync", String::from("off"))]),
            ("durability", Warn, |facts| {
                facts.asynchronous = vec![String::from("shop: synchronous_commit=off")];
            }),
            ("synchronous-standby", Fail, |facts| facts.standby_names = String::from("b")),
            ("synchronous-standby", Pass, |facts| {
                facts.standby_names = String::from("b");
                facts.standbys = 1;
            }),
            ("synchronous-standby", Fail, |facts| {
                facts.standby_names = String::from("FIRST 2 (b, c)");
                facts.standbys = 1;
            }),
            ("synchronous-standby", Pass, |facts| {
                facts.standby_names = String::from("ANY 2 (b, c, d)");
                facts.standbys = 2;
            }),
            ("synchronous-standby", Unknown, |facts| {
                facts.standby_names = String::from("b");
                facts.sees_sessions = false;
            }),
            ("logged", Fail, |facts| facts.unlogged = vec![String::from("public.outbox_message_2")]),
            ("outboxes", Warn, |facts| facts.other_outboxes = vec![other("shop", None)]),
            ("outboxes", Pass, |facts| facts.other_outboxes = vec![other("shop", Some(false))]),
            ("outboxes", Warn, |facts| {
                facts.other_outboxes = vec![other("a", None), other("b", Some(true))];
                facts.is_schema_named = true;
            }),
            ("outboxes", Pass, |facts| {
                facts.other_outboxes = vec![other("shop", None)];
                facts.is_schema_named = true;
            }),
            ("clock", Warn, |facts| facts.clock.by = Duration::from_secs(5)),
            ("clock", Fail, |facts| facts.clock.by = Duration::from_secs(900)),
        ];
        for (name, expected, spoil) in table {
            let mut facts = healthy();
            spoil(&mut facts);
            assert_eq!(state(&facts, name), expected, "{name}");
        }
    }
}
