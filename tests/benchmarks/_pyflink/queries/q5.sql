SELECT counts.auction, counts.num, counts.window_end
FROM (
    SELECT auction, count(*) AS num, window_start, window_end
    FROM TABLE(HOP(TABLE bid, DESCRIPTOR(ts), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
    GROUP BY auction, window_start, window_end
) AS counts
JOIN (
    SELECT max(num) AS num, window_start, window_end
    FROM (
        SELECT count(*) AS num, window_start, window_end
        FROM TABLE(HOP(TABLE bid, DESCRIPTOR(ts), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
        GROUP BY auction, window_start, window_end
    )
    GROUP BY window_start, window_end
) AS highest
ON counts.window_start = highest.window_start AND counts.window_end = highest.window_end
    AND counts.num = highest.num
