SELECT bid.bidder, bid.price, bid.channel, bid.url, bid.extra AS bid_extra,
    person.name, person.email_address, person.credit_card, person.city, person.state, person.extra AS person_extra,
    auction.item_name, auction.description, auction.initial_bid, auction.reserve, auction.date_time AS opened,
    auction.expires, auction.category, auction.extra AS auction_extra
FROM bid
JOIN person ON person.id = bid.bidder
JOIN auction ON auction.seller = bid.bidder
