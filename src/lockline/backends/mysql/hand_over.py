"""The routine `hand_over` as a stored procedure: a claim takes the place of one that holds, and whoever waits gets a higher ticket, in order."""

from __future__ import annotations

from typing import Final

TAKES: Final = (
    "IN at BIGINT, IN my_name {NAME}, IN old {ID}, IN my_id {ID}, IN my_ttl DOUBLE, IN my_about MEDIUMTEXT {TEXT}"
)
BODY: Final = """
    DECLARE newest, moment, mine, room, behind, waiters BIGINT;
    DECLARE its_ticket, its_weight, its_capacity, old_ticket, old_weight, old_capacity BIGINT;
    DECLARE used BIGINT DEFAULT 0;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE line CURSOR FOR SELECT ticket, weight, capacity FROM lockline_claim WHERE name = my_name ORDER BY ticket;
    DECLARE waiting CURSOR FOR SELECT ticket FROM lockline_claim WHERE name = my_name AND ticket > behind AND ticket < newest ORDER BY ticket;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    {UNDO};
    CALL lockline_lock_v1(at & 1023, newest, moment);
    CALL lockline_clear_v1(my_name, moment);
    SELECT ticket INTO mine FROM lockline_claim WHERE id = my_id;
    IF mine IS NOT NULL OR EXISTS (SELECT 1 FROM lockline_withdrawn w WHERE w.id = my_id AND w.until > moment) THEN
        COMMIT;
        SELECT mine;
        LEAVE step;
    END IF;
    -- A release locks nothing but its row.
    SELECT ticket, weight, capacity INTO old_ticket, old_weight, old_capacity FROM lockline_claim WHERE id = old AND expires > moment FOR UPDATE;
    IF old_ticket IS NULL THEN
        COMMIT;
        SELECT NULL;
        LEAVE step;
    END IF;
    SET done = FALSE;
    OPEN line;
    walk: LOOP
        FETCH line INTO its_ticket, its_weight, its_capacity;
        {DONE}
        {FULL}
        SET behind = its_ticket;
    END LOOP;
    IF behind IS NULL OR old_ticket > behind THEN
        COMMIT;
        SELECT -1;
        LEAVE step;
    END IF;
    SELECT COUNT(*) INTO waiters FROM lockline_claim WHERE name = my_name AND ticket > behind;
    SET newest = GREATEST(newest + 1, moment);
    UPDATE lockline_slot SET last = newest + waiters WHERE number = at & 1023;
    DELETE FROM lockline_claim WHERE id = old;
    SET mine = newest, done = FALSE;
    OPEN waiting;
    walk: LOOP
        FETCH waiting INTO its_ticket;
        {DONE}
        SET mine = mine + 1;
        UPDATE lockline_claim SET ticket = mine WHERE name = my_name AND ticket = its_ticket;
    END LOOP;
    INSERT INTO lockline_claim (name, ticket, id, weight, capacity, ttl, expires, about, arrived, granted)
        VALUES (my_name, newest, my_id, old_weight, old_capacity, my_ttl, moment + ROUND(my_ttl * 1e6), my_about, moment, moment);
    COMMIT;
    SELECT newest;
"""
