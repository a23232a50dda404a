"""What is kept beside a line, written under the token: a table of its own, and the routines `kept` and `keep` in PL/pgSQL."""

from __future__ import annotations

from typing import Final

_OPENING: Final = """DECLARE
    moment timestamptz;
    lasting timestamptz;
BEGIN
    {level}
    moment := clock_timestamp();"""

KEEPING: Final = """
CREATE TABLE IF NOT EXISTS {schema}.kept (
    name bytea NOT NULL,
    what text COLLATE "C" NOT NULL,
    mark bigint NOT NULL,          -- the highest token that was here
    until timestamptz NOT NULL,    -- how long that is remembered; then the row is swept
    value bytea,
    token bigint NOT NULL,
    written timestamptz NOT NULL,
    expires timestamptz NOT NULL,
    PRIMARY KEY (name, what)
);
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_indexes WHERE schemaname = '{schema}' AND indexname = 'kept_until') THEN
        CREATE INDEX kept_until ON {schema}.kept (until);
    END IF;
END $$;

CREATE OR REPLACE FUNCTION {schema}.kept_v1(
    my_name bytea, my_what text, my_token bigint, my_ttl double precision,
    OUT now double precision, OUT value bytea, OUT token bigint, OUT written double precision, OUT expires double precision
) LANGUAGE plpgsql {patience} AS $$
{opening}
    IF my_token > 0 THEN
        lasting := moment + my_ttl * interval '1 second';
        INSERT INTO {schema}.kept AS k (name, what, mark, until, value, token, written, expires)
            VALUES (my_name, my_what, my_token, lasting, NULL, 0, moment, moment)
            ON CONFLICT (name, what) DO UPDATE SET mark = my_token, until = greatest(k.until, lasting) WHERE k.mark < my_token;
        moment := clock_timestamp();
    END IF;
    SELECT k.value, k.token, extract(epoch FROM k.written), extract(epoch FROM k.expires) INTO value, token, written, expires
        FROM {schema}.kept k WHERE k.name = my_name AND k.what = my_what AND k.expires > moment AND k.value IS NOT NULL;
    now := extract(epoch FROM moment);
END $$;

CREATE OR REPLACE FUNCTION {schema}.keep_v1(
    my_name bytea, my_what text, my_value bytea, my_token bigint, my_ttl double precision, OUT done integer
) LANGUAGE plpgsql {patience} AS $$
{opening}
    lasting := moment + my_ttl * interval '1 second';
    INSERT INTO {schema}.kept AS k (name, what, mark, until, value, token, written, expires)
        VALUES (my_name, my_what, my_token, lasting, my_value, my_token, moment, lasting)
        ON CONFLICT (name, what) DO UPDATE SET mark = my_token, until = greatest(k.until, lasting), value = my_value, token = my_token,
            written = moment, expires = lasting WHERE k.mark <= my_token;
    GET DIAGNOSTICS done = ROW_COUNT;
    IF random() < 0.05 THEN
        DELETE FROM {schema}.kept k WHERE (k.name, k.what) IN (
            SELECT d.name, d.what FROM {schema}.kept d WHERE d.until < moment LIMIT 500 FOR UPDATE SKIP LOCKED
        );
    END IF;
END $$;
""".replace("{opening}", _OPENING)
