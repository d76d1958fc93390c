//! From the producer's transaction to the consumer's effect, with the real `relay` program between
//! them.
//!
//! Every case runs on PostgreSQL with each broker, and on SQLite with librdkafka's mock cluster.

mod chunks;
mod commands;
mod configuration;
mod crashes;
mod delivery;
mod environments;
mod fan_out;
mod holding;
mod inbox_dead;
mod keys;
mod lag;
mod late_topic;
mod leadership;
mod log_readers;
mod observability;
mod page;
mod rotation;
mod sagas;
mod servers;
mod silence;
mod sizes;
mod sqs_time;
mod starting;
mod tracing;
mod verify;

use libtest_mimic::Trial;
use sqlx::{Postgres, Sqlite};
use tests::trial::at_night;
use tests::{Backend, brokers, trial};

/// Brokers that PostgreSQL is paired with.
const BROKERS: [Backend; 4] = [Backend::Kafka, Backend::Rabbitmq, Backend::SqsFifo, Backend::Sqs];

/// Adds one trial for each broker, for a case that is generic over the database.
macro_rules! everywhere {
    ($trials:ident: $($module:ident::$case:ident),* $(,)?) => {$(
        let name = stringify!($case);
        for backend in BROKERS {
            let name = format!("{name}/postgres/{backend}");
            $trials.push(trial(name, &[Backend::Postgres, backend], move |stage| async move {
                let broker = brokers::open(&stage, backend).await?;
                $module::$case::<Postgres>(stage, broker).await
            }));
        }
        $trials.push(trial(format!("{name}/sqlite/kafka-mock"), &[], |stage| async move {
            let broker = brokers::open(&stage, Backend::KafkaMock).await?;
            $module::$case::<Sqlite>(stage, broker).await
        }));
    )*};
}

/// Returns the cases that run for every change: one path from producer to consumer over every
/// broker, crashes and holds on that path, and the messages of a first start.
fn of_the_gate() -> Vec<Trial> {
    let mut trials = Vec::new();
    everywhere! { trials:
        delivery::rolled_back_work_leaves_no_message,
        delivery::the_trace_context_arrives,
        delivery::a_scheduled_message_leaves_at_its_time,
        chunks::a_message_in_chunks_arrives_whole_and_once,
        crashes::a_relay_that_is_killed_again_and_again_loses_nothing,
        leadership::a_terminated_leader_hands_over_at_once,
        holding::a_poisoned_message_holds_its_key_only,
        holding::an_unknown_topic_stops_alone,
    }
    for backend in BROKERS {
        let name = format!("an_open_transaction_delays_only_its_own_rows/postgres/{backend}");
        trials.push(trial(name, &[Backend::Postgres, backend], move |stage| async move {
            let broker = brokers::open(&stage, backend).await?;
            delivery::an_open_transaction_delays_only_its_own_rows(stage, broker).await
        }));
    }
    trials.push(trial(
        "rows_of_one_id_are_all_delivered/postgres/rabbitmq",
        &[Backend::Postgres, Backend::Rabbitmq],
        |stage| async move {
            let broker = brokers::open(&stage, Backend::Rabbitmq).await?;
            delivery::rows_of_one_id_are_all_delivered(stage, broker).await
        },
    ));
    trials.push(trial(
        "rows_of_every_size_leave_or_are_dead/postgres/rabbitmq",
        &[Backend::Postgres, Backend::Rabbitmq],
        |stage| async move {
            let broker = brokers::open(&stage, Backend::Rabbitmq).await?;
            sizes::rows_of_every_size_leave_or_are_dead::<Postgres>(stage, broker).await
        },
    ));
    trials.push(trial("rows_of_every_size_leave_or_are_dead/sqlite/kafka-mock", &[], |stage| async move {
        let broker = brokers::open(&stage, Backend::KafkaMock).await?;
        sizes::rows_of_every_size_leave_or_are_dead::<Sqlite>(stage, broker).await
    }));
    trials.extend(configuration::trials());
    trials.extend(commands::of_the_gate());
    trials
}

/// Returns all other cases. Each waits for whole seconds, or needs a browser, a collector or a
/// connector.
fn of_the_night() -> Vec<Trial> {
    let mut trials = Vec::new();
    everywhere! { trials:
        delivery::a_scheduled_message_delays_no_other_and_is_not_late,
        leadership::a_stopped_leader_is_replaced_and_changes_nothing,
        verify::a_quiet_system_is_proven_and_each_damage_is_named,
        verify::a_running_system_gives_no_false_alarm,
        verify::what_was_discarded_is_not_missing,
        verify::what_waits_for_an_operator_is_told_apart,
        verify::nothing_is_written,
    }
    trials.push(trial(
        "a_row_larger_than_memory_costs_its_own_key/postgres/rabbitmq",
        &[Backend::Postgres, Backend::Rabbitmq],
        |stage| async move {
            let broker = brokers::open(&stage, Backend::Rabbitmq).await?;
            sizes::a_row_larger_than_memory_costs_its_own_key::<Postgres>(stage, broker).await
        },
    ));
    trials.push(trial(
        "a_row_larger_than_memory_costs_its_own_key/sqlite/kafka-mock",
        &[],
        |stage| async move {
            let broker = brokers::open(&stage, Backend::KafkaMock).await?;
            sizes::a_row_larger_than_memory_costs_its_own_key::<Sqlite>(stage, broker).await
        },
    ));
    trials.push(trial(
        "a_message_that_nobody_takes_is_dead_at_once/postgres/rabbitmq",
        &[Backend::Postgres, Backend::Rabbitmq],
        |stage| async move {
            let broker = brokers::open(&stage, Backend::Rabbitmq).await?;
            holding::a_message_that_nobody_takes_is_dead_at_once(stage, broker).await
        },
    ));
    trials.push(trial(
        "small_headers_are_counted_as_what_they_take/postgres/rabbitmq",
        &[Backend::Postgres, Backend::Rabbitmq],
        |stage| async move {
            let broker = brokers::open(&stage, Backend::Rabbitmq).await?;
            sizes::small_headers_are_counted_as_what_they_take(stage, broker).await
        },
    ));
    trials.push(trial(
        "relays_divide_an_outbox_by_filters/postgres/kafka-and-sqs-fifo",
        &[Backend::Postgres, Backend::Kafka, Backend::SqsFifo],
        fan_out::relays_divide_an_outbox_by_filters,
    ));
    trials.push(trial(
        "a_second_signal_ends_the_relay_at_once/postgres/rabbitmq",
        &[Backend::Postgres, Backend::Rabbitmq],
        leadership::a_second_signal_ends_the_relay_at_once,
    ));
    trials.push(trial(
        "a_role_that_may_only_select_is_enough/postgres/kafka",
        &[Backend::Postgres, Backend::Kafka],
        |stage| async move {
            let broker = brokers::open(&stage, Backend::Kafka).await?;
            verify::a_role_that_may_only_select_is_enough(stage, broker).await
        },
    ));
    trials.push(trial(
        "a_pipeline_that_is_away_hides_no_loss/postgres/kafka",
        &[Backend::Postgres, Backend::Kafka],
        |stage| async move {
            let kafka = brokers::open(&stage, Backend::Kafka).await?;
            verify::a_pipeline_that_is_away_hides_no_loss::<Postgres>(stage, kafka).await
        },
    ));
    trials.push(trial(
        "what_is_not_consumed_yet_is_not_missing/postgres/kafka",
        &[Backend::Postgres, Backend::Kafka],
        |stage| async move {
            let broker = brokers::open(&stage, Backend::Kafka).await?;
            verify::what_is_not_consumed_yet_is_not_missing(stage, broker).await
        },
    ));
    trials.push(trial(
        "a_rotated_database_password_is_picked_up/postgres/kafka",
        &[Backend::Postgres, Backend::Kafka],
        rotation::a_rotated_database_password_is_picked_up,
    ));
    trials.push(trial(
        "a_refused_login_is_shown_until_it_is_accepted/postgres/rabbitmq",
        &[Backend::Postgres, Backend::Rabbitmq],
        rotation::a_refused_login_is_shown_until_it_is_accepted,
    ));
    trials.extend(commands::of_the_night());
    trials.extend(environments::trials());
    trials.extend(inbox_dead::trials());
    trials.extend(keys::trials());
    trials.extend(lag::trials());
    trials.extend(late_topic::trials());
    trials.extend(log_readers::trials());
    trials.extend(sagas::trials());
    trials.extend(servers::trials());
    trials.extend(observability::trials());
    trials.extend(page::trials());
    trials.extend(silence::trials());
    trials.extend(sqs_time::trials());
    trials.extend(starting::trials());
    trials.extend(tracing::trials());
    trials
}

fn main() -> std::process::ExitCode {
    let mut trials = of_the_gate();
    trials.extend(at_night(of_the_night()));
    tests::run(trials)
}
