//! Every metric of producers is recorded with the name, kind and labels of its table.

use sqlx::Sqlite;
use tests::{Counters, Stage};

use super::{drift, each, nodes};

tests::cases! { "outbox/metrics/{on}/{case}":
    sqlite { every_metric_of_the_table_is_recorded }
}

/// Oracle: the metrics recorded while cases ran that must record each of them.
async fn every_metric_of_the_table_is_recorded(stage: Stage) {
    let counters = Counters::installed();
    each::<Sqlite>(stage.clone(), drift::ids_outside_the_window_are_refused_with_both_times_and_counted)
        .await;
    each::<Sqlite>(stage.clone(), nodes::a_node_whose_lease_has_ended_stops_before_its_number_is_free).await;
    each::<Sqlite>(stage.clone(), nodes::a_stopped_node_makes_no_id_of_its_successor).await;
    counters.assert_all_emitted(outbox::telemetry::METRICS, "outbox_", outbox::telemetry::describe);
}
