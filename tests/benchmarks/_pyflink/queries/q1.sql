SELECT auction, bidder, CAST(0.908 AS DOUBLE) * price AS price, date_time, extra
FROM bid
