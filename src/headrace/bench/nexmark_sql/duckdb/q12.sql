select bidder, count(*) as bid_count from bid group by bidder
