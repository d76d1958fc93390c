-- Roles and databases whose commits do not wait for the disk: `role in database = value`.
SELECT concat_ws(' in ', coalesce(r.rolname, 'all roles'), d.datname) || ': ' || setting
FROM pg_db_role_setting AS s
    CROSS JOIN unnest(s.setconfig) AS setting
    LEFT JOIN pg_roles AS r ON r.oid = s.setrole
    LEFT JOIN pg_database AS d ON d.oid = s.setdatabase
WHERE setting IN ('synchronous_commit=off', 'synchronous_commit=false', 'synchronous_commit=no', 'synchronous_commit=0')
    AND (s.setdatabase = 0 OR d.datname = current_database())
ORDER BY 1 LIMIT 10
