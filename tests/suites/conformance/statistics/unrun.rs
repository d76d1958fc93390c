//! Every statement of inbox, keys and sagas, and every function of theirs in the database, has run
//! in the suite, or is in a list with the reason why not. The server says what ran.

use std::collections::BTreeSet;

use sqlx::Postgres;
use tests::{Database, Failure};

tests::cases! { "statistics/{case}":
    anywhere { a_statement_is_recognised_as_the_server_writes_it }
}

/// Statements that no call of the suite needs to run, each with the reason. Most of them need
/// another process, or an answer of the database that is lost.
const LEFT_OUT: [(&str, &str); 18] = [
    ("inbox.canonical", "runs when two copies of a message differ"),
    ("inbox.add_counts", "runs once a minute"),
    ("inbox.has_chunk", "runs after a commit whose answer was lost"),
    ("inbox.begin_memory", "runs once in the life of an inbox"),
    ("inbox.create_days", "runs once a day"),
    ("inbox.expire_days", "runs once a day"),
    ("inbox.taken", "another process has a message in hand"),
    ("inbox.wait_for_a_moment", "another process has a message in hand; reads no table"),
    ("inbox.take_over", "another process has ended with a message in hand"),
    ("inbox.put_down", "a message in hand is released without an effect"),
    ("inbox.put_down_counted", "a message in hand is released without an effect"),
    ("inbox.fingerprint_of_dead_letter", "a broker delivers a message without an id again"),
    ("inbox.lock_others", "an operator accepts a late message"),
    ("inbox.fail_held", "a held message fails when its turn comes"),
    ("inbox.closed_since", "runs when a consumer has walked over all held messages before"),
    ("idempotency.find", "runs after a commit whose answer was lost"),
    ("saga.renew", "a saga takes longer than a third of its lease"),
    ("saga.finish", "the ends of sagas are stored together, by `finish_many`"),
];

/// Functions in the database without a call, each with the reason.
const FUNCTIONS_LEFT_OUT: [(&str, &str); 4] = [
    ("inbox_create_days", "the statement `create_days` calls it"),
    ("inbox_expire_days", "the statement `expire_days` calls it"),
    ("inbox_fingerprint", "reads no table"),
    ("inbox_generated_at", "reads no table"),
];

const FUNCTIONS: &str = "SELECT proname::text FROM pg_proc WHERE pronamespace = 'public'::regnamespace \
    AND prorettype <> 'trigger'::regtype AND proname ~ '^(inbox|idempotency|saga)_' ORDER BY 1";

/// The words of what ran in the databases of the suite.
#[derive(Debug, Default)]
pub(super) struct Ran {
    statements: BTreeSet<String>,
    functions: BTreeSet<String>,
}

impl Ran {
    /// Adds what ran in a database since its counts were reset, and the functions that it has.
    pub(super) async fn add(&mut self, database: &Database<Postgres>) -> Result<(), Failure> {
        let queries = "SELECT query FROM pg_stat_statements \
            WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())";
        let queries = database.texts(queries).await?;
        self.statements.extend(queries.iter().map(|query| words(query)));
        self.functions.extend(database.texts(FUNCTIONS).await?);
        Ok(())
    }

    /// Returns what never ran and is in no list, and what the lists leave out although there is no
    /// such thing.
    pub(super) fn missing(&self) -> Vec<String> {
        let listed = [
            ("inbox", inbox::listed_statements()),
            ("idempotency", idempotency::listed_statements()),
            ("saga", saga::listed_statements()),
        ];
        let mut names = BTreeSet::new();
        let mut missing = Vec::new();
        for (part, statements) in listed {
            for (name, sql) in statements {
                let name = format!("{part}.{name}");
                if !self.statements.contains(&words(&sql)) && !is_in(&LEFT_OUT, &name) {
                    missing.push(format!("{name} never ran"));
                }
                names.insert(name);
            }
        }
        let has_called = |name: &str| {
            self.statements.iter().any(|statement| statement.split(' ').any(|word| word == name))
        };
        let uncalled = self.functions.iter().filter(|name| !has_called(name));
        let uncalled = uncalled.filter(|name| !is_in(&FUNCTIONS_LEFT_OUT, name));
        missing.extend(uncalled.map(|name| format!("the function {name} was never called")));
        let stale = LEFT_OUT.iter().filter(|(name, _)| !names.contains(*name));
        missing.extend(stale.map(|(name, _)| format!("{name} is left out, and does not exist")));
        let stale = FUNCTIONS_LEFT_OUT.iter().filter(|(name, _)| !self.functions.contains(*name));
        missing.extend(stale.map(|(name, _)| format!("the function {name} is left out, and does not exist")));
        missing
    }
}

fn is_in(list: &[(&str, &str)], name: &str) -> bool {
    list.iter().any(|(listed, _)| *listed == name)
}

/// Returns the words of a statement without its constants and parameters. The server replaces
/// constants by parameters, which it numbers after the others. It also takes some words for
/// constants, as in `extract(epoch FROM …)`.
fn words(sql: &str) -> String {
    let is_constant = |word: &str| {
        let constants = ["true", "false", "null", "epoch", "e"];
        word.starts_with(|first: char| first.is_ascii_digit())
            || constants.iter().any(|constant| word.eq_ignore_ascii_case(constant))
    };
    let mut words = Vec::new();
    let mut chars = sql.chars().peekable();
    while let Some(first) = chars.next() {
        match first {
            '\'' => while chars.next().is_some_and(|c| c != '\'') {},
            '$' => while chars.next_if(char::is_ascii_digit).is_some() {},
            _ if first.is_alphanumeric() || first == '_' => {
                let mut word = String::from(first);
                while let Some(next) = chars.next_if(|next| next.is_alphanumeric() || *next == '_') {
                    word.push(next);
                }
                if !is_constant(&word) {
                    words.push(word);
                }
            }
            _ => {}
        }
    }
    words.join(" ")
}

/// Goal: what the server writes in place of a statement is recognised, and no other statement is.
/// Oracle: a text as PostgreSQL 15 stores it.
async fn a_statement_is_recognised_as_the_server_writes_it() {
    let ours = "UPDATE t SET error = 'it''s', at = extract(epoch FROM now()) WHERE id = $1 \
        AND n >= -1 AND gone IS NULL AND is_open = true LIMIT 10";
    let stored = "UPDATE t SET error = $2, at = extract($3 FROM now()) WHERE id = $1 \
        AND n >= $4 AND gone IS NULL AND is_open = $5 LIMIT $6";
    assert_eq!(words(ours), words(stored));
    assert_ne!(words(ours), words("UPDATE t SET error = $2 WHERE id = $1"));
    assert_eq!(words("SELECT 'a b' FROM t"), "SELECT FROM t");
}
