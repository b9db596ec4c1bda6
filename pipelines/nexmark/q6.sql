WITH closing AS (
    SELECT auction.seller, auction.id, auction.expires, max(bid.price) AS final
    FROM bid
    JOIN auction ON bid.auction = auction.id AND bid.date_time BETWEEN auction.date_time AND auction.expires
    GROUP BY auction.seller, auction.id, auction.expires
)
SELECT seller, avg(final) AS price
FROM (FROM closing QUALIFY row_number() OVER (PARTITION BY seller ORDER BY expires DESC, id DESC) <= 10)
GROUP BY seller
