SELECT bid.auction, bid.bidder, bid.price, bid.channel, bid.url, bid.date_time,
    auction.reserve, auction.expires, auction.seller, auction.category,
    person.name, person.city, person.state
FROM bid
JOIN auction ON bid.auction = auction.id
JOIN person ON auction.seller = person.id
