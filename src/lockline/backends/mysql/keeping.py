"""What is kept beside a line, written under the token: a table of its own, and the routines `kept` and `keep` as stored procedures."""

from __future__ import annotations

from typing import Final

TABLE: Final = """
CREATE TABLE IF NOT EXISTS lockline_kept (
    name VARBINARY(1024) NOT NULL,
    what VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    mark BIGINT NOT NULL,
    until BIGINT NOT NULL,
    value LONGBLOB,
    token BIGINT NOT NULL,
    written BIGINT NOT NULL,
    expires BIGINT NOT NULL,
    PRIMARY KEY (name, what),
    KEY by_until (until)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC
"""
"""`mark` is the highest token that was here, and `until` says how long that is remembered; then the row is swept."""

KEPT_TAKES: Final = "IN my_name {NAME}, IN my_what {ID}, IN my_token BIGINT, IN my_ttl DOUBLE"
KEPT: Final = """
    DECLARE moment, lasting BIGINT;
    {UNDO};
    IF my_token > 0 THEN
        CALL lockline_begin_v1();
        SET lasting = {NOW} + ROUND(my_ttl * 1e6);
        -- From left to right: the mark is compared before it is raised.
        INSERT INTO lockline_kept (name, what, mark, until, value, token, written, expires)
            VALUES (my_name, my_what, my_token, lasting, NULL, 0, 0, 0)
            ON DUPLICATE KEY UPDATE until = IF(mark < my_token, GREATEST(until, lasting), until), mark = GREATEST(mark, my_token);
        COMMIT;
    END IF;
    SET moment = {NOW};
    SELECT moment / 1e6, k.value, k.token, k.written / 1e6, k.expires / 1e6 FROM (SELECT 1) one LEFT JOIN lockline_kept k
        ON k.name = my_name AND k.what = my_what AND k.expires > moment AND k.value IS NOT NULL;
"""

KEEP_TAKES: Final = "IN my_name {NAME}, IN my_what {ID}, IN my_value LONGBLOB, IN my_token BIGINT, IN my_ttl DOUBLE"
KEEP: Final = """
    DECLARE moment, lasting, seen BIGINT;
    {UNDO};
    CALL lockline_begin_v1();
    SET moment = {NOW};
    SET lasting = moment + ROUND(my_ttl * 1e6);
    INSERT INTO lockline_kept (name, what, mark, until, value, token, written, expires)
        VALUES (my_name, my_what, my_token, lasting, my_value, my_token, moment, lasting)
        ON DUPLICATE KEY UPDATE
            value = IF(mark <= my_token, my_value, value), token = IF(mark <= my_token, my_token, token),
            written = IF(mark <= my_token, moment, written), expires = IF(mark <= my_token, lasting, expires),
            until = IF(mark <= my_token, GREATEST(until, lasting), until), mark = GREATEST(mark, my_token);
    SELECT mark INTO seen FROM lockline_kept WHERE name = my_name AND what = my_what;
    COMMIT;
    IF RAND() < 0.05 THEN
        CALL lockline_begin_v1();
        DELETE FROM lockline_kept WHERE until < moment LIMIT 500;
        COMMIT;
    END IF;
    SELECT seen = my_token;
"""
