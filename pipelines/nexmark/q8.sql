SELECT DISTINCT person.id, person.name,
    time_bucket(INTERVAL 10 SECONDS, person.ts) AS window_start,
    time_bucket(INTERVAL 10 SECONDS, person.ts) + INTERVAL 10 SECONDS AS window_end
FROM person
JOIN auction ON person.id = auction.seller
    AND time_bucket(INTERVAL 10 SECONDS, person.ts) = time_bucket(INTERVAL 10 SECONDS, auction.ts)
