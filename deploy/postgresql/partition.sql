-- Partitions of the log on PostgreSQL: docs/operations.md, "Partitions of the log". For psql; it defines two routines.

-- Close the partition that takes new records, and open the next. Ids ascend, so that a partition has the records between
-- two calls; its name is the month of the second. The first call makes a partitioned table of `record`, and copies
-- nothing. Writers wait while the closed partition is read once, to check that its ids lie within its bounds.
CREATE OR REPLACE PROCEDURE plevel_partition() LANGUAGE plpgsql AS $$
DECLARE
    closed text := 'record_' || to_char(now(), 'YYYY_MM');
    begins text := 'MINVALUE';
    bound bigint;
    found RECORD;
BEGIN
    IF to_regclass(closed) IS NOT NULL THEN
        RAISE EXCEPTION '% exists already: call again next month', closed;
    END IF;
    LOCK TABLE record, tombstone IN ACCESS EXCLUSIVE MODE;
    SELECT last_value + 1 INTO bound FROM record_id_seq;
    ALTER TABLE tombstone DROP CONSTRAINT fk_tombstone_record_id_record;
    IF (SELECT relkind FROM pg_class WHERE oid = 'record'::regclass) = 'p' THEN
        SELECT substring(pg_get_expr(relpartbound, oid) FROM 'FROM \((.*?)\)') INTO begins
            FROM pg_class WHERE oid = 'record_open'::regclass;
        ALTER TABLE record DETACH PARTITION record_open;
    ELSE
        ALTER TABLE record RENAME TO record_open;
        ALTER TABLE record_open RENAME CONSTRAINT pk_record TO pk_record_open;
        CREATE TABLE record (LIKE record_open INCLUDING DEFAULTS INCLUDING CONSTRAINTS) PARTITION BY RANGE (id);
        ALTER SEQUENCE record_id_seq OWNED BY record.id;
        ALTER TABLE record ADD CONSTRAINT pk_record PRIMARY KEY (id);
        FOR found IN SELECT conname AS name, pg_get_constraintdef(oid) AS text FROM pg_constraint
            WHERE conrelid = 'record_open'::regclass AND contype = 'f'
        LOOP
            EXECUTE format('ALTER TABLE record ADD CONSTRAINT %I %s', found.name, found.text);
        END LOOP;
        FOR found IN SELECT tgname AS name, pg_get_triggerdef(oid) AS text FROM pg_trigger
            WHERE tgrelid = 'record_open'::regclass AND NOT tgisinternal
        LOOP
            EXECUTE format('DROP TRIGGER %I ON record_open', found.name);
            EXECUTE replace(found.text, '.record_open REFERENCING', '.record REFERENCING');
        END LOOP;
        FOR found IN SELECT c.relname AS name, pg_get_indexdef(c.oid) AS text FROM pg_class c
            JOIN pg_index i ON c.oid = i.indexrelid WHERE i.indrelid = 'record_open'::regclass AND NOT i.indisunique
        LOOP
            EXECUTE format('ALTER INDEX %I RENAME TO %I', found.name, found.name || '_open');
            EXECUTE replace(found.text, '.record_open USING', '.record USING');
        END LOOP;
    END IF;
    EXECUTE format('ALTER TABLE record_open RENAME TO %I', closed);
    EXECUTE format('CREATE TABLE record_open (LIKE %I INCLUDING ALL)', closed);
    EXECUTE format('ALTER TABLE record ATTACH PARTITION %I FOR VALUES FROM (%s) TO (%s)', closed, begins, bound);
    EXECUTE format('ALTER TABLE record ATTACH PARTITION record_open FOR VALUES FROM (%s) TO (MAXVALUE)', bound);
    ALTER TABLE tombstone ADD CONSTRAINT fk_tombstone_record_id_record
        FOREIGN KEY (record_id) REFERENCES record (id);
END $$;

-- Replace a closed partition by its records of the configurations that are the best of a task, on a device, a device
-- model or the target, or the lowest mean of TVM's rule; return the number of records that are gone. Purged ones go, too.
CREATE OR REPLACE FUNCTION plevel_thin(part regclass) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    name text := part::text;
    bounds text;
    before bigint;
    kept bigint;
BEGIN
    IF part = 'record_open'::regclass THEN
        RAISE EXCEPTION 'record_open takes new records: call plevel_partition first';
    END IF;
    EXECUTE format('LOCK TABLE %s IN SHARE MODE', part);
    SELECT pg_get_expr(relpartbound, oid) INTO STRICT bounds FROM pg_class WHERE oid = part;
    EXECUTE format('CREATE TABLE record_kept (LIKE %s INCLUDING ALL)', part);
    EXECUTE format('SELECT count(*) FROM %s', part) INTO before;
    EXECUTE format(
        'INSERT INTO record_kept SELECT * FROM %s r '
        'WHERE ((task_id, config_digest) IN (SELECT task_id, config_digest FROM best) '
        'OR (task_id, config_digest) IN (SELECT task_id, config_digest FROM history)) '
        'AND NOT EXISTS (SELECT FROM tombstone t WHERE t.record_id = r.id)', part);
    GET DIAGNOSTICS kept = ROW_COUNT;
    LOCK TABLE record, tombstone IN ACCESS EXCLUSIVE MODE;
    EXECUTE format('DELETE FROM tombstone WHERE record_id IN (SELECT id FROM %s)', part);
    ALTER TABLE tombstone DROP CONSTRAINT fk_tombstone_record_id_record;
    EXECUTE format('ALTER TABLE record DETACH PARTITION %s', part);
    EXECUTE format('ALTER TABLE record ATTACH PARTITION record_kept %s', bounds);
    EXECUTE format('DROP TABLE %s', name);
    EXECUTE format('ALTER TABLE record_kept RENAME TO %s', name);
    ALTER TABLE tombstone ADD CONSTRAINT fk_tombstone_record_id_record
        FOREIGN KEY (record_id) REFERENCES record (id);
    RETURN before - kept;
END $$;
