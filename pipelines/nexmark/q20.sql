SELECT bid.auction, bid.bidder, bid.price, bid.channel, bid.url, bid.date_time,
    auction.initial_bid, auction.reserve, auction.date_time AS opened, auction.expires,
    auction.seller, auction.category
FROM bid
JOIN auction ON bid.auction = auction.id
WHERE auction.category = 10
