SELECT auction, bidder, price, date_time, 'value ' || key AS value
FROM bid JOIN range(10_000) AS side_input(key) ON auction % 10_000 = key
