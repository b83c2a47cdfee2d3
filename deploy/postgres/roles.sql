-- Roles that separate reading, submitting and driving. What each may do is in grants.sql.
--
--   psql -h db -U postgres -v ON_ERROR_STOP=1 -f deploy/postgres/roles.sql postgres
--
-- as the server's administrator: a superuser, or a role with CREATEROLE. Roles belong to the whole server, so any
-- database will do. It may be run again. Whoever runs it makes the logins too: since PostgreSQL 16 a role with
-- CREATEROLE adds members only to roles that it made itself.
--
--   autofit_reader     autofit jobs, status, result, wait; autofit serve. It changes nothing.
--   autofit_submitter  also autofit submit: adds jobs and packages, and changes nothing that is there: no job's
--                      state, attempts or answer, no study.
--   autofit_driver     also autofit serve --address, stop, tune, and the drivers of jobs: reads and writes all records.

DO $$
DECLARE
  name text;
BEGIN
  FOREACH name IN ARRAY ARRAY['autofit_reader', 'autofit_submitter', 'autofit_driver'] LOOP
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) THEN
      BEGIN
        EXECUTE format('CREATE ROLE %I NOLOGIN', name);
      EXCEPTION WHEN insufficient_privilege THEN
        RAISE EXCEPTION 'there is no role %, and % may not make it', name, current_user
          USING ERRCODE = 'insufficient_privilege',
                HINT = 'Run roles.sql as a superuser, such as postgres, or as a role with CREATEROLE.';
      END;
    END IF;
  END LOOP;
END $$;
