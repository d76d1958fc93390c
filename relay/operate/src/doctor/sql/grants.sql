-- Compares the rights of roles with the list of rights, which comes from the scripts of roles
-- (migrations/sql/postgres/roles). It reads only catalogs, so a role needs no right to ask. It finds
-- objects without to_regclass(), which fails for a role that may not use the schema.
WITH listed AS (
    -- Without a privilege: the role has no right on this object beyond those that are listed.
    SELECT * FROM jsonb_to_recordset({list})
        AS l (line text, part text, kind text, object text, privilege text, of_column text)
), named AS (
    SELECT part, coalesce(role_name, current_user) AS role_name
    FROM jsonb_to_recordset({roles}) AS n (part text, role_name text)
), roles AS (
    SELECT n.part, n.role_name, coalesce(r.oid, 0) AS role_oid, coalesce(r.rolsuper, false) AS superuser
    FROM named AS n LEFT JOIN pg_roles AS r ON r.rolname = n.role_name AND n.part <> 'public'
    WHERE r.oid IS NOT NULL OR n.part = 'public'
), path AS (
    SELECT n.oid AS home, n.nspname, p.place
    FROM unnest(CASE WHEN {home} <> '' THEN ARRAY[{home}]
        ELSE string_to_array(replace(current_setting('search_path'), '$user', current_user), ',') END)
        WITH ORDINALITY AS p (name, place)
    JOIN pg_namespace AS n ON n.nspname = btrim(p.name, ' "')
), homes AS (
    -- Every line has the table of versions, so it does not show where a line is.
    SELECT DISTINCT ON (l.line) l.line, p.home, p.nspname
    FROM listed AS l JOIN pg_class AS c ON c.relname = l.object JOIN path AS p ON p.home = c.relnamespace
    WHERE l.kind = 'table' AND l.object <> 'outbox_toolkit_migration'
    ORDER BY l.line, p.place
), objects AS (
    SELECT l.line, l.kind, l.object, h.nspname, CASE l.kind
        WHEN 'schema' THEN h.home
        WHEN 'function' THEN (
            SELECT f.oid FROM pg_proc AS f
            WHERE f.pronamespace = h.home AND f.proname = split_part(l.object, '(', 1)
                AND f.proargtypes::text = coalesce((
                    SELECT string_agg(to_regtype(btrim(a.name))::oid::text, ' ' ORDER BY a.place)
                    FROM unnest(string_to_array(rtrim(split_part(l.object, '(', 2), ')'), ','))
                        WITH ORDINALITY AS a (name, place)), ''))
        ELSE (SELECT c.oid FROM pg_class AS c WHERE c.relnamespace = h.home AND c.relname = l.object)
        END AS object_oid
    FROM (SELECT DISTINCT line, kind, object FROM listed) AS l JOIN homes AS h USING (line)
), granted AS (
    SELECT r.part, r.role_name, r.role_oid, o.kind, o.object, o.nspname, o.object_oid, l.privilege, l.of_column
    FROM listed AS l JOIN objects AS o USING (line, kind, object) JOIN roles AS r USING (part)
    WHERE l.privilege IS NOT NULL
), revoked AS (
    SELECT DISTINCT r.part, r.role_oid, l.kind, l.object, o.object_oid
    FROM listed AS l JOIN objects AS o USING (line, kind, object) JOIN roles AS r USING (part)
    WHERE l.privilege IS NULL AND l.kind <> 'partitions'
    UNION ALL
    -- Whoever has rights on a segment or a day passes the rules of its table.
    SELECT r.part, r.role_oid, 'table', c.relname, c.oid
    FROM listed AS l JOIN objects AS o USING (line, kind, object) JOIN roles AS r USING (part)
    JOIN pg_inherits AS i ON i.inhparent = o.object_oid JOIN pg_class AS c ON c.oid = i.inhrelid
    WHERE l.privilege IS NULL AND l.kind = 'partitions'
), missing AS (
    SELECT part, object, privilege || coalesce(' (' || string_agg(of_column, ', ' ORDER BY of_column) || ')', '')
        AS privilege, role_name, kind, nspname
    FROM granted
    WHERE NOT coalesce(CASE
        WHEN kind = 'schema' THEN has_schema_privilege(role_oid, object_oid, privilege)
        WHEN kind = 'function' THEN has_function_privilege(role_oid, object_oid, privilege)
        WHEN kind = 'sequence' THEN has_sequence_privilege(role_oid, object_oid, privilege)
        WHEN of_column IS NULL THEN has_table_privilege(role_oid, object_oid, privilege)
        ELSE has_column_privilege(role_oid, object_oid, (
            SELECT attnum FROM pg_attribute
            WHERE attrelid = object_oid AND attname = of_column AND NOT attisdropped), privilege)
        END, false)
    GROUP BY part, role_name, kind, object, nspname, granted.privilege
), held AS (
    -- What roles have on objects on which they have no right beyond the list.
    SELECT v.*, p.privilege, NULL AS of_column
    FROM revoked AS v CROSS JOIN LATERAL (
        -- An owner has all privileges that this version of the server knows.
        SELECT DISTINCT privilege_type AS privilege
        FROM aclexplode(acldefault((CASE v.kind WHEN 'table' THEN 'r' WHEN 'sequence' THEN 's' ELSE 'f' END)::"char", 10))
    ) AS p
    WHERE CASE v.kind
        WHEN 'table' THEN has_table_privilege(v.role_oid, v.object_oid, p.privilege)
        WHEN 'sequence' THEN has_sequence_privilege(v.role_oid, v.object_oid, p.privilege)
        ELSE has_function_privilege(v.role_oid, v.object_oid, p.privilege) END
    UNION ALL
    SELECT v.*, p.privilege, a.attname
    FROM revoked AS v
    JOIN pg_attribute AS a ON a.attrelid = v.object_oid AND a.attacl IS NOT NULL AND NOT a.attisdropped
    CROSS JOIN (VALUES ('SELECT'), ('INSERT'), ('UPDATE'), ('REFERENCES')) AS p (privilege)
    WHERE v.kind = 'table' AND has_column_privilege(v.role_oid, v.object_oid, a.attnum, p.privilege)
        AND NOT has_table_privilege(v.role_oid, v.object_oid, p.privilege)
), excess AS (
    -- A right is listed for a role if it is listed for any role that it is a member of: one user may
    -- be producer, consumer and relay.
    SELECT part, object, privilege || coalesce(' (' || string_agg(of_column, ', ' ORDER BY of_column) || ')', '')
        AS privilege
    FROM held AS h
    WHERE NOT EXISTS (
        SELECT FROM granted AS g
        WHERE g.object_oid = h.object_oid AND g.kind = h.kind AND g.privilege = h.privilege
            AND (g.of_column IS NULL OR g.of_column = h.of_column)
            AND (g.role_oid = h.role_oid OR h.role_oid <> 0 AND pg_has_role(h.role_oid, g.role_oid, 'USAGE')))
    GROUP BY part, object, h.privilege
), wrong AS (
    SELECT part, object, privilege, format('GRANT %s ON %s%s TO %I', privilege,
        CASE kind WHEN 'schema' THEN 'SCHEMA ' WHEN 'sequence' THEN 'SEQUENCE ' WHEN 'function' THEN 'FUNCTION ' END,
        quote_ident(nspname) || CASE kind WHEN 'schema' THEN '' ELSE '.' || object END, role_name) AS remedy
    FROM missing
    UNION ALL
    SELECT part, object, privilege, NULL FROM excess
)
SELECT n.part, n.role_name, r.part IS NOT NULL AS there, coalesce(r.superuser, false) AS superuser,
    (SELECT count(DISTINCT (kind, object, privilege)) FROM granted AS g WHERE g.part = n.part) AS rights,
    CASE WHEN w.object = '' THEN 'the schema' ELSE w.object END AS object, w.privilege, w.remedy
FROM named AS n LEFT JOIN roles AS r USING (part) LEFT JOIN wrong AS w USING (part)
WHERE EXISTS (SELECT FROM listed AS l JOIN homes USING (line) WHERE l.part = n.part)
ORDER BY n.part, w.object, w.privilege
