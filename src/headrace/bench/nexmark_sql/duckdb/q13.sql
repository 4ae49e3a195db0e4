select b.auction, b.bidder, b.price, b.dateTime, s.value
from bid b join side_input s on b.auction % 10000 = s.key
