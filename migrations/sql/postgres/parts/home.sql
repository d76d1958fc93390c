-- The schema's name, for the functions that run with the owner's rights. The server checks their
-- bodies now.
SET LOCAL check_function_bodies = on;
DO $$
DECLARE
    home       regnamespace :=
        (SELECT relnamespace FROM pg_class WHERE oid = '{schema}{line}_audit'::regclass);
    definition text;
BEGIN
    FOR definition IN
        SELECT pg_get_functiondef(oid) FROM pg_proc
        WHERE pronamespace = home AND starts_with(proname, '{line}_') AND strpos(prosrc, '%home%') > 0
    LOOP
        EXECUTE replace(definition, '%home%', home::text);
    END LOOP;
END
$$;
