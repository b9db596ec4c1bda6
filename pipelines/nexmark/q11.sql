SELECT bidder, count(*) AS bid_count, min(ts) AS window_start, max(ts) + INTERVAL 10 SECONDS AS window_end
FROM (
    SELECT bidder, ts, count_if(begins) OVER (PARTITION BY bidder ORDER BY ts) AS number
    FROM (
        SELECT bidder, ts, ts > lag(ts, 1, ts) OVER (PARTITION BY bidder ORDER BY ts) + INTERVAL 10 SECONDS AS begins
        FROM bid
    )
)
GROUP BY bidder, number
