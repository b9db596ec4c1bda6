SELECT category, avg(CAST(final AS DOUBLE)) AS price
FROM (
    SELECT auction.id, auction.category, max(bid.price) AS final
    FROM bid
    JOIN auction ON bid.auction = auction.id AND bid.date_time BETWEEN auction.date_time AND auction.expires
    GROUP BY auction.id, auction.category
)
GROUP BY category
