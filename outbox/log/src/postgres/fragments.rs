//! Parts of statements: conditions and subqueries that several statements have.

use crate::decided::{ends_with_a_discard, has_an_edit, was_edited};

/// The earlier errors of the exception `e`, with its present error as the last of them. The same
/// text with a higher count replaces itself, and the oldest of nine is dropped.
///
/// An error that is in the list already, because the entry was requeued and has not been tried
/// since, is not added again. Nothing is added without an error, or where the condition in the
/// argument holds. A macro, because `concat!` takes only literals.
macro_rules! with_last_error {
    ($unless:literal) => {
        concat!(
            "CASE WHEN e.error IS NULL OR ",
            $unless,
            " OR e.attempts = 0 AND e.earlier_errors -> -1 ->> 'error' = left(e.error, 500) THEN e.earlier_errors
            ELSE CASE WHEN e.earlier_errors -> -1 ->> 'error' = left(e.error, 500)
                    AND (e.earlier_errors -> -1 ->> 'attempts')::integer <= e.attempts THEN e.earlier_errors - (-1)
                WHEN jsonb_array_length(e.earlier_errors) >= 9 THEN e.earlier_errors - 0
                ELSE coalesce(e.earlier_errors, '[]') END
                || jsonb_build_object('attempts', e.attempts, 'at', (extract(epoch FROM e.updated_at) * 1000000)::bigint,
                    'error', left(e.error, 500)) END"
        )
    };
}
pub(super) use with_last_error;

/// Maximum young rows that are checked with a mark. Only a difference in which fewer ids were given
/// out is checked, and then all of its young rows are.
pub(super) const YOUNG_LOOKED_AT: i64 = 10_000;

/// The messages, by message id, that an operator of relay $1 has discarded as the last decision.
/// Entry ids would not do, because they are given out again after a sequence was set back. An edit
/// is not a decision here. The caller's SELECT list precedes it.
pub(super) const GIVEN_UP: &str = concat!(
    "
    FROM {schema}outbox_audit AS a WHERE a.relay = $1 GROUP BY a.message_id
    HAVING ",
    ends_with_a_discard!()
);

/// The messages, by message id, that must not be published from their rows: those that an operator
/// of relay $1 has discarded, and those that were published edited. The caller's SELECT list goes
/// in front.
pub(super) const GIVEN_UP_OR_EDITED: &str = concat!(
    "
    FROM {schema}outbox_audit AS a WHERE a.relay = $1 GROUP BY a.message_id
    HAVING ",
    ends_with_a_discard!(),
    " OR ",
    has_an_edit!()
);

/// True where the last decision of relay $1 about the message of row `of` was to discard it.
pub(super) const DISCARDED: &str = concat!(
    "coalesce((SELECT ",
    ends_with_a_discard!(),
    " FROM {schema}outbox_audit AS a WHERE a.relay = $1 AND a.message_id = {of}.message_id), false)"
);

/// True where an operator of relay $1 has edited the message of row `of`.
pub(super) const EDITED: &str = concat!(
    "coalesce((SELECT ",
    has_an_edit!(),
    " FROM {schema}outbox_audit AS a WHERE a.relay = $1 AND a.message_id = {of}.message_id), false)"
);

/// True where an operator of relay $1 has ever edited the message of row `of`.
pub(super) const WAS_EDITED: &str = concat!(
    "(SELECT ",
    was_edited!(),
    " FROM {schema}outbox_audit AS a WHERE a.relay = $1 AND a.message_id = {of}.message_id)"
);

/// The content of the entry with the id `copied` that relay $3 has parked: its copy, or the row of
/// the log if that was too large to be copied. Without a segment of the log, a missing row does not
/// count as deleted: then the statement fails on purpose ([`WHOLE`]). That is decided before the
/// log is searched.
pub(super) const COPY: &str = "
    (SELECT {content} FROM {schema}outbox_parked
    WHERE relay = $3 AND shard = 0 AND id = {copied} AND payload IS NOT NULL LIMIT 1)
    UNION ALL
    (SELECT stored.* FROM (SELECT {whole} AS is_whole OFFSET 0) AS log CROSS JOIN LATERAL (
        SELECT {content} FROM {schema}outbox_message
        WHERE log.is_whole AND id >= {copied} AND id <= {copied} AND message_id = {message_id} AND {same_segment}
        ORDER BY id LIMIT 1) AS stored)
    LIMIT 1";

/// Whether the row lies in the segment of this message id. Both sides are the expression that the
/// log is partitioned by, so only one segment is read.
pub(super) const SAME_SEGMENT: &str =
    "(get_byte(uuid_send(message_id), 2) >> 2) & 7 = (get_byte(uuid_send({message_id}), 2) >> 2) & 7";

/// Whether the cursor has passed the row `m`. A row that is visible at its base ($2) is passed; for
/// a sound base these are all rows up to its floor, except those in flight. Where the base sees
/// nothing, the rows up to its floor ($3) are passed. In the open difference, a row that is visible
/// at its head ($4) is passed up to the settled id ($5). A row with a low id that the base does not
/// see was written after the sequence was set back.
pub(super) const PASSED: &str =
    "(coalesce(pg_visible_in_snapshot(m.xid, (SELECT $2::text::pg_snapshot)), false)
    OR (m.id <= $3 AND (SELECT pg_snapshot_xmax($2::text::pg_snapshot) <= '1'))
    OR (m.id <= $5 AND coalesce(pg_visible_in_snapshot(m.xid, (SELECT $4::text::pg_snapshot)), false)))";

/// The server's current run; no row before the first one has begun.
pub(super) const PRESENT_RUN: &str =
    "SELECT run_id::text FROM {schema}outbox_server_run WHERE started_at = pg_postmaster_start_time()";

/// True while the log has all of its segments. Otherwise the statement refuses itself
/// ([`has_refused_itself`](super::facts::has_refused_itself)): without a segment it would find no
/// row of it, and the relay would pass them. An answer without rows would not do, because the
/// segment may be attached again before the next statement. A segment that is being detached
/// concurrently is not read either; before PostgreSQL 14 there is no such column.
pub(super) const WHOLE: &str = "(SELECT 1 / (count(*) >= 8)::integer FROM pg_inherits AS segment
    WHERE segment.inhparent = '{schema}outbox_message'::regclass
        AND to_jsonb(segment) ->> 'inhdetachpending' IS DISTINCT FROM 'true') = 1";

/// The names of the segments that the log lacks; null while there are all.
pub(super) const MISSING_SEGMENTS: &str =
    "SELECT string_agg('outbox_message_' || number, ', ' ORDER BY number)
        FROM generate_series(0, 7) AS number WHERE 'outbox_message_' || number <> ALL (ARRAY(
            SELECT c.relname::text FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
            WHERE i.inhparent = '{schema}outbox_message'::regclass
                AND to_jsonb(i) ->> 'inhdetachpending' IS DISTINCT FROM 'true'))";

/// The id that was given out last, or 0: read by the server's own function, under the lock of the
/// sequence's page.
///
/// A SELECT from the sequence reads the page without that lock. Once in 32 calls `nextval` puts a
/// value there that is 32 ahead, while it writes its WAL record: 450 of 1.5 million reads beside
/// three busy sessions later went backwards. With such a floor the rows in between would never be
/// read (ADR 18).
pub(super) const GIVEN_OUT: &str =
    "coalesce(pg_sequence_last_value('{schema}outbox_message_id_seq'::regclass), 0)";

/// The headers of `of` for an operator's query; null where they are longer than those of any
/// message that a broker accepts.
pub(super) const LABELS: &str =
    "CASE WHEN {unbounded} OR octet_length({of}.headers::text) > 4194304 THEN 'null'
    ELSE {of}.headers::text END";

/// The complete row of the current holder of a relay's lease: the checkpoint store and retention
/// look it up.
pub(super) const HOLDER: &str = "
        SELECT holder, extract(epoch FROM lease_until - clock_timestamp())::float8, epoch, lease_until::text,
            lease_seconds
        FROM {schema}outbox_relay WHERE relay = $1 AND shard = 0 AND holder IS NOT NULL";
