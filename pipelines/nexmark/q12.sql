-- Over all windows, since the clock decides in which window a bid is.
SELECT bidder, count(*) AS bid_count
FROM bid
GROUP BY bidder
