-- Roles and databases with their own isolation level: `role in database = level`.
SELECT concat_ws(' in ', coalesce(r.rolname, 'all roles'), d.datname) || ' = ' || split_part(setting, '=', 2)
FROM pg_db_role_setting AS s
    CROSS JOIN unnest(s.setconfig) AS setting
    LEFT JOIN pg_roles AS r ON r.oid = s.setrole
    LEFT JOIN pg_database AS d ON d.oid = s.setdatabase
WHERE setting LIKE 'default\_transaction\_isolation=%'
    AND split_part(setting, '=', 2) <> 'read committed'
    AND (s.setdatabase = 0 OR d.datname = current_database())
ORDER BY 1 LIMIT 10
