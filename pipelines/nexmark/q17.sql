SELECT auction, count(*) AS total_bids,
    count(*) FILTER (price < 10000) AS rank1_bids,
    count(*) FILTER (price >= 10000 AND price < 1000000) AS rank2_bids,
    count(*) FILTER (price >= 1000000) AS rank3_bids,
    min(price) AS min_price, max(price) AS max_price, avg(price) AS avg_price,
    sum(price)::BIGINT AS sum_price,
    time_bucket(INTERVAL 1 DAY, ts) + INTERVAL 1 DAY AS window_end
FROM bid
GROUP BY auction, window_end
