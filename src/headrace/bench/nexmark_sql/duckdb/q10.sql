select auction, bidder, price, dateTime, extra, dateTime::date::text as dt,
    printf('%02d:%02d', hour(dateTime), minute(dateTime)) as hm from bid
