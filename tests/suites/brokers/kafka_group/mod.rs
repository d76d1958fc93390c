//! Promises to a member of a real Kafka group: pauses, rebalances, lost sessions, and the start of
//! a group. The publisher to its topic is here as well, where the topic changes under it.
//!
//! | module | contents |
//! |---|---|
//! | [`pausing`] | partitions that come and go while reading is paused |
//! | [`beginning`] | groups that start at the end, partitions that are added, offsets that are out of range |
//! | [`member`] | a group for one test, its members, and the topic they read |
//! | [`markers`] | ends of broker transactions, which are never delivered |
//! | [`fixed`] | readers of fixed partitions, beside members of their group |
//! | [`topics`] | topics that are recreated or missing |
//! | [`expel`] | removal of members, as if their sessions had expired |

mod beginning;
mod expel;
mod fixed;
mod markers;
mod member;
mod pausing;
mod topics;

tests::cases! { "kafka_group/{case}":
    // Kafka takes minutes to delete a topic when the machine is busy.
    night anywhere + kafka {
        a_topic_that_is_made_anew_is_read_from_its_beginning = topics::made_anew,
        a_publisher_begins_anew_in_a_topic_that_was_made_anew = topics::made_anew_under_a_publisher,
    }
    anywhere + kafka {
        a_member_that_lost_its_session_while_paused_reads_everything = pausing::lost_session,
        partitions_that_come_during_a_pause_wait_for_room = pausing::members_come_and_go,
        what_comes_while_a_new_latest_group_is_away_is_read = beginning::away,
        a_latest_group_reads_added_partitions_from_their_beginning = beginning::added_partitions,
        a_latest_group_goes_to_the_oldest_message_when_out_of_range = beginning::out_of_range,
        a_latest_group_that_has_members_skips_nothing = beginning::with_members,
        old_offsets_in_a_topic_that_was_made_anew_mislead_nobody = topics::made_anew_unnoticed,
        a_missing_topic_stops_no_other = topics::missing,
        the_position_passes_markers_of_transactions = markers::passed,
        a_member_without_a_delivery_passes_a_marker = markers::passed_without_a_delivery,
        a_reader_of_fixed_partitions_beside_members_is_refused = fixed::with_members,
    }
}
