-- What the roles of roles.sql may do with the tables that autofit keeps everything in.
--
--   psql -h db -U autofit -v ON_ERROR_STOP=1 -f deploy/postgres/grants.sql autofit
--
-- as the owner of the tables, who needs no other right, or as a superuser; after roles.sql, and after one command
-- (`autofit jobs`) has made the tables. It does everything or nothing, and may be run again.
--
-- The owner bypasses the policies: nothing but this file and upgrades needs it.

BEGIN;
SET LOCAL search_path = public, pg_temp;

-- Everything that is made here belongs to the tables' owner, whoever runs this.
DO $$
DECLARE
  maker regrole := (SELECT relowner FROM pg_class WHERE oid = to_regclass('public.studies'));
  missing text := (
    SELECT string_agg(name, ', ' ORDER BY name)
    FROM unnest(ARRAY['autofit_reader', 'autofit_submitter', 'autofit_driver']) name
    WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name)
  );
  -- Since 16, being a member does not always mean to be allowed SET ROLE.
  needed text := CASE WHEN current_setting('server_version_num')::integer < 160000 THEN 'MEMBER' ELSE 'SET' END;
  others regprocedure;
BEGIN
  IF maker IS NULL THEN
    RAISE EXCEPTION 'the database % has no tables of autofit', current_database()
      USING HINT = 'Let their owner run one command first, such as `autofit jobs`, with AUTOFIT_STORAGE.';
  END IF;
  IF missing IS NOT NULL THEN
    RAISE EXCEPTION 'these roles are missing: %', missing
      USING HINT = 'Let the administrator of the server run roles.sql first.';
  END IF;
  IF NOT pg_has_role(maker, needed) THEN
    RAISE EXCEPTION 'the tables of autofit belong to %, and % may not grant rights on them', maker, current_user
      USING ERRCODE = 'insufficient_privilege', HINT = format('Run grants.sql as %s.', maker);
  END IF;
  -- Of earlier versions, whose roles.sql made them as the superuser that ran it.
  FOR others IN
    SELECT oid FROM pg_proc
    WHERE pronamespace = 'public'::regnamespace AND proowner <> maker
      AND proname IN ('autofit_takes_submissions', 'autofit_is_created_now', 'autofit_require_number')
  LOOP
    BEGIN
      EXECUTE format('ALTER FUNCTION %s OWNER TO %s', others, maker);
    EXCEPTION WHEN insufficient_privilege THEN
      RAISE EXCEPTION 'the function % belongs to another role than the tables', others
        USING ERRCODE = 'insufficient_privilege', HINT = 'Run grants.sql once as a superuser.';
    END;
  END LOOP;
  EXECUTE format('SET LOCAL ROLE %s', maker);
END $$;

REVOKE CREATE ON SCHEMA public FROM PUBLIC;
DO $$
BEGIN
  IF has_schema_privilege('autofit_reader', 'public', 'CREATE') THEN
    RAISE EXCEPTION 'everybody may create tables in the schema public, and % may not change that', current_user
      USING HINT = format('Let the owner of the schema do so: REVOKE CREATE ON SCHEMA public FROM PUBLIC; '
                          'GRANT CREATE ON SCHEMA public TO %I', current_user);
  END IF;
END $$;
GRANT USAGE ON SCHEMA public TO autofit_reader, autofit_submitter, autofit_driver;
GRANT SELECT ON ALL TABLES IN SCHEMA public TO autofit_reader, autofit_submitter, autofit_driver;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO autofit_submitter, autofit_driver;

-- Every record is behind a policy; the schema's versions are the owner's alone.
DO $$
DECLARE
  name text;
BEGIN
  FOREACH name IN ARRAY ARRAY[
    'studies', 'study_directions', 'study_user_attributes', 'study_system_attributes',
    'trials', 'trial_user_attributes', 'trial_system_attributes', 'trial_params', 'trial_values',
    'trial_intermediate_values', 'trial_heartbeats'
  ] LOOP
    EXECUTE format('GRANT INSERT, UPDATE, DELETE ON %I TO autofit_driver', name);
    EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', name);
    EXECUTE format('DROP POLICY IF EXISTS autofit_read ON %I', name);
    EXECUTE format('CREATE POLICY autofit_read ON %I FOR SELECT'
                   ' TO autofit_reader, autofit_submitter, autofit_driver USING (true)', name);
    EXECUTE format('DROP POLICY IF EXISTS autofit_drive ON %I', name);
    EXECUTE format('CREATE POLICY autofit_drive ON %I FOR ALL TO autofit_driver'
                   ' USING (true) WITH CHECK (true)', name);
  END LOOP;
END $$;

-- These functions run as whoever calls them, with a search path of their own: with the caller's, a temporary table
-- called `trials` would take the place of the true one.

-- Whoever submits adds to the study of all jobs, and packages of code, each in a study named by its digest.
CREATE OR REPLACE FUNCTION autofit_takes_submissions(study integer) RETURNS boolean
LANGUAGE sql STABLE SET search_path = public, pg_temp AS $$
  SELECT EXISTS (
    SELECT FROM studies WHERE study_id = study AND (study_name = 'autofit-jobs' OR study_name LIKE 'working-dir-%')
  )
$$;

-- A trial has no number while it is created, in one transaction: only then may its submitter write of it.
CREATE OR REPLACE FUNCTION autofit_is_created_now(trial integer) RETURNS boolean
LANGUAGE sql STABLE SET search_path = public, pg_temp AS $$
  SELECT EXISTS (SELECT FROM trials WHERE trial_id = trial AND number IS NULL)
$$;

-- Nobody ends a transaction in which a trial has no number yet, or one that another has.
CREATE OR REPLACE FUNCTION autofit_require_number() RETURNS trigger
LANGUAGE plpgsql SET search_path = public, pg_temp AS $$
BEGIN
  IF EXISTS (
    SELECT FROM trials t WHERE t.trial_id = NEW.trial_id AND t.number IS DISTINCT FROM (
      SELECT count(*) FROM trials earlier WHERE earlier.study_id = t.study_id AND earlier.trial_id < t.trial_id
    )
  ) THEN
    RAISE EXCEPTION 'trial % is not numbered in its order', NEW.trial_id USING ERRCODE = 'check_violation';
  END IF;
  RETURN NULL;
END $$;

DROP TRIGGER IF EXISTS autofit_require_number ON trials;
CREATE CONSTRAINT TRIGGER autofit_require_number AFTER INSERT OR UPDATE OF number ON trials
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION autofit_require_number();

GRANT INSERT ON studies, study_directions, trials, trial_user_attributes, trial_values TO autofit_submitter;
-- Locking a study's row, as the creation of a trial does, takes the right to update a column of it.
GRANT UPDATE (study_name) ON studies TO autofit_submitter;
GRANT UPDATE (number, state) ON trials TO autofit_submitter;
GRANT UPDATE (value_json) ON trial_user_attributes TO autofit_submitter;

DROP POLICY IF EXISTS autofit_add ON studies;
CREATE POLICY autofit_add ON studies FOR INSERT TO autofit_submitter
  WITH CHECK (study_name = 'autofit-jobs' OR study_name LIKE 'working-dir-%');
DROP POLICY IF EXISTS autofit_lock ON studies;
CREATE POLICY autofit_lock ON studies FOR UPDATE TO autofit_submitter
  USING (autofit_takes_submissions(study_id)) WITH CHECK (false);

DROP POLICY IF EXISTS autofit_add ON study_directions;
CREATE POLICY autofit_add ON study_directions FOR INSERT TO autofit_submitter
  WITH CHECK (objective = 0 AND autofit_takes_submissions(study_id));

DROP POLICY IF EXISTS autofit_add ON trials;
CREATE POLICY autofit_add ON trials FOR INSERT TO autofit_submitter
  WITH CHECK (number IS NULL AND autofit_takes_submissions(study_id));
DROP POLICY IF EXISTS autofit_number ON trials;
CREATE POLICY autofit_number ON trials FOR UPDATE TO autofit_submitter
  USING (number IS NULL OR state = 'WAITING')  -- the latter to be refused by the check, not overlooked
  WITH CHECK (
    state = (
      SELECT CASE WHEN s.study_name = 'autofit-jobs' THEN 'WAITING' ELSE 'COMPLETE' END
      FROM studies s WHERE s.study_id = trials.study_id
    )::trialstate
  );

DROP POLICY IF EXISTS autofit_add ON trial_user_attributes;
CREATE POLICY autofit_add ON trial_user_attributes FOR INSERT TO autofit_submitter
  WITH CHECK (autofit_is_created_now(trial_id));
DROP POLICY IF EXISTS autofit_set ON trial_user_attributes;
CREATE POLICY autofit_set ON trial_user_attributes FOR UPDATE TO autofit_submitter
  USING (autofit_is_created_now(trial_id)) WITH CHECK (autofit_is_created_now(trial_id));

DROP POLICY IF EXISTS autofit_add ON trial_values;
CREATE POLICY autofit_add ON trial_values FOR INSERT TO autofit_submitter
  WITH CHECK (autofit_is_created_now(trial_id));

COMMIT;
