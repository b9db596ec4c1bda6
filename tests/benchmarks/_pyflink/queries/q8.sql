SELECT persons.id, persons.name, persons.window_start, persons.window_end
FROM (
    SELECT id, name, window_start, window_end
    FROM TABLE(TUMBLE(TABLE person, DESCRIPTOR(ts), INTERVAL '10' SECOND))
    GROUP BY id, name, window_start, window_end
) AS persons
JOIN (
    SELECT seller, window_start, window_end
    FROM TABLE(TUMBLE(TABLE auction, DESCRIPTOR(ts), INTERVAL '10' SECOND))
    GROUP BY seller, window_start, window_end
) AS sellers
ON persons.id = sellers.seller AND persons.window_start = sellers.window_start
    AND persons.window_end = sellers.window_end
