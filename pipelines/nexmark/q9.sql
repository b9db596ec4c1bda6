SELECT bid.auction, bid.bidder, bid.price, bid.date_time, bid.extra AS bid_extra,
    auction.item_name, auction.description, auction.initial_bid, auction.reserve, auction.date_time AS opened,
    auction.expires, auction.seller, auction.category, auction.extra AS auction_extra,
    row_number() OVER (PARTITION BY bid.auction ORDER BY bid.price DESC, bid.date_time) AS rank
FROM bid
JOIN auction ON bid.auction = auction.id AND bid.date_time BETWEEN auction.date_time AND auction.expires
QUALIFY rank = 1
