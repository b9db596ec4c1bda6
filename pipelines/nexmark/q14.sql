SELECT auction, bidder, 0.908::DOUBLE * price AS price,
    CASE WHEN hour(ts) BETWEEN 8 AND 18 THEN 'dayTime'
         WHEN hour(ts) <= 6 OR hour(ts) >= 20 THEN 'nightTime'
         ELSE 'otherTime' END AS bid_time_type,
    date_time, extra, length(extra) - length(replace(extra, 'c', '')) AS c_counts
FROM bid
WHERE 0.908::DOUBLE * price > 1000000 AND 0.908::DOUBLE * price < 50000000
