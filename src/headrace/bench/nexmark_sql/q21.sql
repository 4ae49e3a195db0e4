-- Channel id: of its name, or of the address.
CREATE APPLICATION q21;

CREATE INPUT TABLE bid(auction, bidder, price, channel, url, dateTime, extra)
FROM SCRIBE("bid") TIME dateTime;

CREATE STREAM channels AS
SELECT auction, bidder, price, channel,
       CASE
           WHEN lower(channel) = 'apple' THEN '0'
           WHEN lower(channel) = 'google' THEN '1'
           WHEN lower(channel) = 'facebook' THEN '2'
           WHEN lower(channel) = 'baidu' THEN '3'
           ELSE regexp_extract(url, '(&|^)channel_id=([^&]*)', 2)
       END AS channel_id
FROM bid
WHERE regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) <> ''
   OR lower(channel) IN ('apple', 'google', 'facebook', 'baidu');
