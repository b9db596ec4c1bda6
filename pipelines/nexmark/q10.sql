SELECT auction, bidder, price, date_time, extra,
    strftime(ts, '%Y-%m-%d') AS day, strftime(ts, '%H:%M') AS minute
FROM bid
