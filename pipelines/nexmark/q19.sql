SELECT auction, bidder, price, channel, url, date_time, extra,
    row_number() OVER (PARTITION BY auction ORDER BY price DESC, date_time) AS rank
FROM bid
QUALIFY rank <= 10
