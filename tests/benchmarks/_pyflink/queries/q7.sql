SELECT bids.auction, bids.price, bids.bidder, bids.date_time, bids.extra, bids.window_end
FROM (
    SELECT auction, price, bidder, date_time, extra, window_start, window_end
    FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(ts), INTERVAL '10' SECOND))
) AS bids
JOIN (
    SELECT max(price) AS price, window_start, window_end
    FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(ts), INTERVAL '10' SECOND))
    GROUP BY window_start, window_end
) AS highest
ON bids.window_start = highest.window_start AND bids.window_end = highest.window_end
    AND bids.price = highest.price
