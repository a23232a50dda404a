"""What `lockline init` makes in the database: the tables, and the routines in `functions.py`.

    slot       1024 rows, each with the last ticket of the names that fall there; what makes tickets rise for good
    claim      a claim, waiting or holding
    withdrawn  a claim that was withdrawn while its own request may still have been under way, for ten seconds
    kept       what `once` and `once_per` keep beside a line
    guard      empty but in the middle of a transaction: what makes a guarded commit look at its lease
    release    which routines are there

All names are qualified, all routines run with their caller's rights. What is there is left as it is: it can be run again, also while locks
are held, and by two at once. Routines have their version in their names, so that clients of two releases work side by side.
"""

from __future__ import annotations

from typing import Final

from ..sql.calls import SLOTS
from .functions import FUNCTIONS, OPENINGS

VERSION: Final = 1
INIT_LOCK: Final = 0x6C6F636B6C696E65
"""Two who create the same schema in the same moment would be in each other's way."""

_REFUSE_FOREIGN: Final = """
-- What another role owns could do anything with the rights of the role that runs this: a trigger on a table that is filled here is enough.
DO $$
DECLARE
    me oid := (SELECT oid FROM pg_catalog.pg_roles WHERE rolname = current_user);
    found text;
BEGIN
    SELECT string_agg(what, ', ') INTO found FROM (
        SELECT 'the schema (' || pg_catalog.pg_get_userbyid(n.nspowner) || ')' AS what
            FROM pg_catalog.pg_namespace n WHERE n.nspname = '{schema}' AND n.nspowner <> me
        UNION ALL SELECT c.relname || ' (' || pg_catalog.pg_get_userbyid(c.relowner) || ')'
            FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = '{schema}' AND c.relowner <> me
        UNION ALL SELECT f.proname || '() (' || pg_catalog.pg_get_userbyid(f.proowner) || ')'
            FROM pg_catalog.pg_proc f JOIN pg_catalog.pg_namespace n ON n.oid = f.pronamespace WHERE n.nspname = '{schema}' AND f.proowner <> me
        UNION ALL SELECT 'the trigger ' || t.tgname || ' on ' || c.relname || ' (' || pg_catalog.pg_get_userbyid(f.proowner) || ')'
            FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_proc f ON f.oid = t.tgfoid JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid
            JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = '{schema}' AND NOT t.tgisinternal AND f.proowner <> me
        LIMIT 5
    ) others;
    IF found IS NOT NULL THEN
        RAISE EXCEPTION 'in {schema} other roles own: %', found USING ERRCODE = 'LL004';
    END IF;
END $$;
"""

TABLES: Final = """
-- Not IF NOT EXISTS: that asks for the right to create one even where it is there.
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = '{schema}') THEN
        CREATE SCHEMA {schema};
    END IF;
END $$;

CREATE TABLE IF NOT EXISTS {schema}.release (version integer PRIMARY KEY);

-- A few rows to a page, so that a new version of one finds room beside the old.
CREATE TABLE IF NOT EXISTS {schema}.slot (
    number integer PRIMARY KEY,
    last bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 20);
INSERT INTO {schema}.slot (number) SELECT generate_series(0, {slots} - 1) ON CONFLICT DO NOTHING;

-- No index has a column that a renewal changes: the new version of a row stays on its page, and a guard is not in its way.
CREATE TABLE IF NOT EXISTS {schema}.claim (
    id text COLLATE "C" NOT NULL,
    name bytea NOT NULL,
    ticket bigint NOT NULL,
    weight integer NOT NULL,
    capacity integer NOT NULL,
    ttl double precision NOT NULL,
    expires timestamptz NOT NULL,
    told boolean NOT NULL,
    channel text,
    about text NOT NULL,
    PRIMARY KEY (id, name),
    UNIQUE (name, ticket)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

-- Tables of an older release have no such columns; what stands there has nothing in them. Not IF NOT EXISTS: that waits for all who use the table.
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = '{schema}.claim'::regclass AND attname = 'granted') THEN
        ALTER TABLE {schema}.claim ADD COLUMN arrived timestamptz, ADD COLUMN granted timestamptz;
    END IF;
END $$;

CREATE TABLE IF NOT EXISTS {schema}.withdrawn (
    id text COLLATE "C" PRIMARY KEY,
    until timestamptz NOT NULL
);

CREATE TABLE IF NOT EXISTS {schema}.guard (
    id text COLLATE "C" NOT NULL,
    ticket bigint NOT NULL
);
"""

RIGHTS: Final = """
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role};
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO {role};
"""
"""All that a role needs that only locks; routines do with the rights of who calls, and some databases let PUBLIC call none."""


def ddl(schema: str) -> str:
    """The whole of it, as one transaction would run it."""
    text = (
        _REFUSE_FOREIGN
        + TABLES
        + FUNCTIONS
        + "\nINSERT INTO {schema}.release VALUES ({version}) ON CONFLICT DO NOTHING;\n"
    )
    # In quotes where it is a name, so that it may be a word of SQL's own.
    words = {**OPENINGS, "slots": str(SLOTS), "version": str(VERSION)}
    for word, meaning in words.items():
        text = text.replace("{" + word + "}", meaning)
    text = text.replace("'{schema}'", f"'{schema}'").replace("{schema}", f'"{schema}"')
    return text.strip() + "\n"
