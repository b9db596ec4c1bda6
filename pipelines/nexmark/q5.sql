WITH counts AS (
    SELECT auction, window_end, count(*) AS num
    FROM (
        SELECT auction, time_bucket(INTERVAL 2 SECONDS, ts) + n * INTERVAL 2 SECONDS AS window_end
        FROM bid, unnest(range(1, 6)) AS slides(n)
    )
    GROUP BY auction, window_end
)
SELECT auction, num, window_end
FROM counts
QUALIFY num = max(num) OVER (PARTITION BY window_end)
