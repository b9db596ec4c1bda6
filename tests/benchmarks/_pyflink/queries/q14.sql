SELECT auction, bidder, CAST(0.908 AS DOUBLE) * price AS price,
    CASE WHEN HOUR(ts) BETWEEN 8 AND 18 THEN 'dayTime'
         WHEN HOUR(ts) <= 6 OR HOUR(ts) >= 20 THEN 'nightTime'
         ELSE 'otherTime' END AS bid_time_type,
    date_time, extra, CHAR_LENGTH(extra) - CHAR_LENGTH(REPLACE(extra, 'c', '')) AS c_counts
FROM bid
WHERE CAST(0.908 AS DOUBLE) * price > 1000000 AND CAST(0.908 AS DOUBLE) * price < 50000000
