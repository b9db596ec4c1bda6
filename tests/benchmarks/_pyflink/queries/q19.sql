SELECT auction, bidder, price, channel, url, date_time, extra, `rank`
FROM (
    SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC, date_time) AS `rank`
    FROM bid
)
WHERE `rank` <= 10
