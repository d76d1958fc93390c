//! Every metric of the inbox is recorded with the name, kind and labels of its table.

use sqlx::Sqlite;
use tests::{Counters, Stage};

use super::{chunks, consumer, each, failures, retention, runner};

tests::cases! { "inbox/metrics/{on}/{case}":
    sqlite { every_metric_of_the_table_is_recorded }
}

/// Oracle: the metrics recorded while cases ran that must record each of them.
async fn every_metric_of_the_table_is_recorded(stage: Stage) {
    let counters = Counters::installed();
    each::<Sqlite>(stage.clone(), runner::a_batch_takes_effect_once_and_its_culprit_is_found).await;
    each::<Sqlite>(stage.clone(), runner::lost_sessions_and_settlements_are_harmless).await;
    each::<Sqlite>(stage.clone(), runner::a_graceful_shutdown_settles_and_hands_back).await;
    each::<Sqlite>(stage.clone(), failures::handlers_that_hang_are_ended_and_dead_lettered).await;
    each::<Sqlite>(stage.clone(), chunks::chunks_between_others_take_effect_once_in_the_order_of_their_key)
        .await;
    each::<Sqlite>(stage.clone(), chunks::missing_chunks_expire_for_all_to_see).await;
    each::<Sqlite>(stage.clone(), consumer::unknown_kinds_are_skipped_on_demand).await;
    each::<Sqlite>(stage.clone(), retention::a_part_of_maintenance_that_fails_keeps_no_other_back).await;
    each::<Sqlite>(stage.clone(), retention::a_replay_after_expiry_is_refused_by_every_process).await;
    counters.assert_all_emitted(inbox::telemetry::METRICS, "inbox_", inbox::telemetry::describe);
}
