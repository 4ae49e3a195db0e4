select * from bid
qualify row_number() over (partition by bidder, auction order by dateTime desc) <= 1
