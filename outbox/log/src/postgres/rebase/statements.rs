//! The SQL of a rebase.

use crate::postgres::fragments::{GIVEN_UP_OR_EDITED, SAME_SEGMENT};

migrations::statements! {
    parts {
        kept_back = GIVEN_UP_OR_EDITED;
        same_segment = SAME_SEGMENT;
    }

    /// Other leases, checkpoints and removals of relays wait for it; readers do not.
    lock = "LOCK TABLE {schema}outbox_relay IN EXCLUSIVE MODE";
    cursors = "SELECT relay, shard, cursor FROM {schema}outbox_relay";
    advance = "SELECT {schema}outbox_advance_sequence()";
    /// $1 floor, $2 xmax.
    unseen = "
        SELECT least($1, (SELECT min(id) - 1 FROM {schema}outbox_message
            WHERE (xid, id) > ($2::text::xid8, 0::bigint)))";
    /// $1 floor, $2 in flight. One step into the index on both columns for each transaction:
    /// by ids alone, the search would begin at the first row.
    in_flight = "
        SELECT least($1, (SELECT min(late.id) - 1 FROM unnest($2::text::xid8[]) AS flight(xid)
            CROSS JOIN LATERAL (
                SELECT id FROM {schema}outbox_message
                WHERE (xid, id) > (flight.xid, 0::bigint) AND (xid, id) <= (flight.xid, $1)
                ORDER BY xid, id LIMIT 1) AS late))";
    /// $1 floor: rows that were written since this server's tables were created. The hour
    /// allows for clocks that were set back.
    own = "
        SELECT least($1, (SELECT min(id) - 1 FROM {schema}outbox_message
            WHERE id <= $1 AND enqueued_at >
                (SELECT recorded_at FROM {schema}outbox_identity) - interval '1 hour'))";
    /// $1 floor: below every row.
    first = "SELECT least($1, (SELECT id - 1 FROM {schema}outbox_message ORDER BY id LIMIT 1))";
    /// $1 relay, $2 shard, $3 floor, $4 in flight: their rows may lie below the floor. Lists parked
    /// entries, those that an operator discarded, which stay discarded forever, and those that were
    /// published edited: their rows have the content before the edit.
    beside(message_id = "g.message_id") = "
        INSERT INTO {schema}outbox_rebased (relay, shard, id, message_id)
        SELECT e.relay, e.shard, e.id, e.message_id FROM {schema}outbox_exception AS e
        WHERE e.relay = $1 AND e.shard = $2 AND (e.id > $3 OR cardinality($4::text::xid8[]) > 0)
        UNION ALL
        SELECT $1, $2, m.id, m.message_id FROM (SELECT a.message_id {kept_back}) AS g
        CROSS JOIN LATERAL (SELECT id, message_id FROM {schema}outbox_message
            WHERE message_id = g.message_id AND {same_segment} LIMIT 1) AS m
        WHERE m.id > $3 OR cardinality($4::text::xid8[]) > 0
        ON CONFLICT DO NOTHING";
    store = "
        UPDATE {schema}outbox_relay SET cursor = $3, epoch = epoch + 1, holder = NULL, lease_until = NULL
        WHERE relay = $1 AND shard = $2";
    rows = "SELECT {schema}outbox_rebase_rows()";
    /// $1 up to this id, $2 base, $3 head, $4 counted.
    settled = "
        SELECT count(*), min(id) FROM (SELECT id FROM {schema}outbox_message WHERE id <= $1
            AND NOT pg_visible_in_snapshot(xid, (SELECT $2::text::pg_snapshot))
            AND pg_visible_in_snapshot(xid, (SELECT $3::text::pg_snapshot)) LIMIT $4) AS again";
    /// $1 above this id, $2 counted.
    above = "
        SELECT count(*), min(id) FROM (
            SELECT id FROM {schema}outbox_message WHERE id > $1 ORDER BY id LIMIT $2) AS again";
    newest = "SELECT coalesce((SELECT id FROM {schema}outbox_message ORDER BY id DESC LIMIT 1), 0)";
    /// $1 base, $2 floor.
    renumber_rows = "SELECT {schema}outbox_renumber_rows($1::text::pg_snapshot, $2)";
    /// $1 above this id, $2 base: whether a row that the base does not see has moved.
    has_moved = "
        SELECT EXISTS (SELECT FROM (
            SELECT id FROM {schema}outbox_message WHERE id > $1
                AND NOT pg_visible_in_snapshot(xid, (SELECT $2::text::pg_snapshot))
            ORDER BY id LIMIT 1) AS moved)";
    fence = "
        UPDATE {schema}outbox_relay SET epoch = epoch + 1, holder = NULL, lease_until = NULL
        WHERE relay = $1 AND shard = $2";
    /// $1 above this id: relays with an exception there.
    renumbered = "
        SELECT relay, shard, cursor FROM {schema}outbox_relay AS r WHERE EXISTS (
            SELECT FROM (SELECT id FROM {schema}outbox_exception AS e
                WHERE e.relay = r.relay AND e.shard = r.shard AND e.id > $1
                ORDER BY e.id LIMIT 1) AS above)";
    /// Whether an exception shares its id with another row of the log. Each is looked up
    /// separately, by a range of one id: only the primary key has this order (ADR 35).
    shared = "
        SELECT EXISTS (SELECT FROM {schema}outbox_exception AS e CROSS JOIN LATERAL (
            SELECT FROM {schema}outbox_message AS m
            WHERE m.id >= e.id AND m.id <= e.id AND m.message_id <> e.message_id
            ORDER BY m.id LIMIT 1) AS other)";
    /// The sessions that keep the locks, oldest transactions first.
    waited_for = "
        SELECT string_agg(who, ', ') FROM (
            SELECT coalesce('session ' || l.pid || coalesce(' (' || a.usename || ')', ''),
                'a prepared transaction') AS who
            FROM pg_locks AS l LEFT JOIN pg_stat_activity AS a USING (pid)
            WHERE l.granted AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
                AND (l.relation = '{schema}outbox_message'::regclass
                        AND l.mode NOT IN ('AccessShareLock', 'RowShareLock')
                    OR l.relation = '{schema}outbox_relay'::regclass AND l.mode <> 'AccessShareLock')
                AND l.pid IS DISTINCT FROM pg_backend_pid()
            ORDER BY a.backend_xid IS NULL, age(a.backend_xid) DESC, l.pid LIMIT 5) AS oldest";
}
