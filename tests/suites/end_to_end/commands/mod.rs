//! The commands of the program, run as processes: their output as a table and as JSON, their exit
//! codes, and what they leave in the database.

mod adopt;
mod dead;
mod doctor;
mod history;
mod migrate;
mod once;
mod pausing;
pub(crate) mod refusals;
mod replaying;
mod setup;
mod several;
mod showing;
mod terminal;

use std::process::Output;

use libtest_mimic::Trial;
use serde_json::Value;
use sqlx::{Postgres, Sqlite};
use tests::relay_process::{Config, relay, relay_with};
use tests::{Backend, Failure, brokers, trial};

/// Adds one trial for each database, for cases that need only a database.
macro_rules! databases {
    ($trials:ident: $($module:ident::$case:ident),* $(,)?) => {$(
        let name = stringify!($case);
        let case = $module::$case::<Postgres>;
        $trials.push(trial(format!("{name}/postgres"), &[Backend::Postgres], case));
        $trials.push(trial(format!("{name}/sqlite"), &[], $module::$case::<Sqlite>));
    )*};
}

/// Adds one trial for each database with a broker, for cases that need both.
macro_rules! pairs {
    ($trials:ident: $($module:ident::$case:ident),* $(,)?) => {$(
        let name = stringify!($case);
        let needs = [Backend::Postgres, Backend::Kafka];
        $trials.push(trial(format!("{name}/postgres/kafka"), &needs, |stage| async move {
            let broker = brokers::open(&stage, Backend::Kafka).await?;
            $module::$case::<Postgres>(stage, broker).await
        }));
        $trials.push(trial(format!("{name}/sqlite/kafka-mock"), &[], |stage| async move {
            let broker = brokers::open(&stage, Backend::KafkaMock).await?;
            $module::$case::<Sqlite>(stage, broker).await
        }));
    )*};
}

/// Returns the cases about setting up a relay: the messages of a first start in every situation.
pub(crate) fn of_the_gate() -> Vec<Trial> {
    let mut trials = setup::trials();
    trials.extend(refusals::trials());
    trials
}

pub(crate) fn of_the_night() -> Vec<Trial> {
    let mut trials = Vec::new();
    databases! { trials:
        migrate::what_is_missing_is_applied_once,
        migrate::a_script_makes_the_same_tables,
        migrate::a_database_that_is_away_hides_no_other,
        history::a_relay_that_is_gone_is_forgotten,
        history::what_is_asked_wrongly_changes_nothing,
    }
    pairs! { trials:
        dead::dead_messages_are_edited_requeued_and_discarded,
        dead::a_wrong_selection_decides_about_nothing,
        dead::of_two_operators_one_wins_and_the_other_is_told,
        dead::a_relay_is_forgotten_with_its_dead_messages_when_asked,
        history::what_was_published_is_removed_when_it_is_old,
        pausing::what_is_paused_waits_in_order_and_others_flow,
        once::a_run_ends_when_everything_has_left,
        replaying::what_was_published_is_replayed_with_its_ids,
        replaying::what_was_not_published_is_not_replayed,
        replaying::a_replay_stops_at_a_pause,
        replaying::a_replay_that_was_killed_is_repeated,
        replaying::a_replay_that_makes_no_sense_is_refused,
        replaying::a_replay_begins_where_history_is_kept,
        showing::the_story_of_a_message_is_told,
        showing::topics_that_are_behind_are_told_and_watched,
        showing::what_is_published_now_is_told,
        terminal::tables_fit_the_terminal,
        several::pipelines_of_one_process_do_not_wait_for_each_other,
    }
    let name = "roles_are_made_without_another_client/postgres";
    trials.push(trial(name, &[Backend::Postgres], migrate::roles_are_made_without_another_client));
    let needs = [Backend::Postgres, Backend::Kafka];
    let name = "a_run_ends_when_an_operator_has_to_act/postgres/kafka";
    trials.push(trial(name, &needs, once::a_run_ends_when_an_operator_has_to_act));
    let rabbitmq = [Backend::Postgres, Backend::Rabbitmq];
    let name = "a_run_ends_when_a_queue_is_missing/postgres/rabbitmq";
    trials.push(trial(name, &rabbitmq, once::a_run_ends_when_a_queue_is_missing));
    let name = "a_count_that_stops_is_a_lower_bound/postgres";
    trials.push(trial(name, &[Backend::Postgres], showing::a_count_that_stops_is_a_lower_bound));
    let name = "a_tail_outlives_outages_of_its_database/postgres/kafka-mock";
    trials.push(trial(name, &[Backend::Postgres], terminal::a_tail_outlives_outages_of_its_database));
    let name = "many_messages_are_decided_about_in_few_sessions/postgres";
    trials.push(trial(name, &[Backend::Postgres], dead::many_are_decided_about_in_few_sessions));
    trials.extend(adopt::trials());
    trials.extend(doctor::trials());
    trials
}

/// The result of a command.
#[derive(Debug)]
pub(crate) struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Ran {
    /// Runs a command with a configuration.
    pub(crate) async fn with(config: &Config, arguments: &[&str]) -> Result<Self, Failure> {
        let path = config.path().to_str().ok_or("the path is not UTF-8")?;
        Self::of(&[arguments, &["--config", path]].concat()).await
    }

    /// Runs a command with exactly these arguments.
    pub(crate) async fn of(arguments: &[&str]) -> Result<Self, Failure> {
        Self::ended_with(relay(arguments).await?)
    }

    /// Runs a command on a database.
    pub(crate) async fn on(url: &str, arguments: &[&str]) -> Result<Self, Failure> {
        Self::of_variables(arguments, &[("RELAY_DATABASE_URL", url)]).await
    }

    /// Runs a command with extra environment variables.
    pub(crate) async fn of_variables(
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<Self, Failure> {
        Self::ended_with(relay_with(variables, arguments).await?)
    }

    fn ended_with(output: Output) -> Result<Self, Failure> {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes);
        Ok(Self { code: output.status.code(), out: text(output.stdout)?, err: text(output.stderr)? })
    }

    /// Demands success.
    pub(crate) fn done(self) -> Result<Self, Failure> {
        self.ended(0)
    }

    /// Demands an exit code.
    pub(crate) fn ended(self, code: i32) -> Result<Self, Failure> {
        if self.code == Some(code) { Ok(self) } else { Err(format!("not {code}: {self:?}").into()) }
    }

    /// Parses its standard output as JSON.
    pub(crate) fn json(&self) -> Result<Value, Failure> {
        serde_json::from_str(&self.out).map_err(|error| format!("{error}: {self:?}").into())
    }

    /// Demands exit code 2, errors that contain all of `parts`, and no secret anywhere in the
    /// output.
    pub(crate) fn refused_without(self, secret: &str, parts: &[&str]) -> Result<(), Failure> {
        let ran = self.ended(2)?;
        assert!(!format!("{}{}", ran.out, ran.err).contains(secret), "{ran:?}");
        for part in parts {
            assert!(ran.err.contains(part), "{part:?} is not in {ran:?}");
        }
        Ok(())
    }

    /// Demands this exit code, errors that contain all of `parts`, and an empty standard output.
    pub(crate) fn refused(self, code: i32, parts: &[&str]) -> Result<(), Failure> {
        let ran = self.ended(code)?;
        assert_eq!(ran.out, "", "{ran:?}");
        for part in parts {
            assert!(ran.err.contains(part), "{part:?} is not in {ran:?}");
        }
        Ok(())
    }
}

/// Returns the text of one member of every row.
pub(crate) fn column<'a>(rows: &'a Value, name: &str) -> Vec<&'a str> {
    rows.as_array().into_iter().flatten().filter_map(|row| row[name].as_str()).collect()
}
