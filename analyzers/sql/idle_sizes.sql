-- One row per power of ten of the length of idle pieces that last $min_ns or longer; all below a microsecond are one row.
-- low_ns, high_ns   ns; from low_ns on, below high_ns
-- pieces            number
-- ns                ns in all
SELECT
    CASE WHEN digits <= 3 THEN 0 ELSE (10 ** (digits - 1))::BIGINT END AS low_ns, (10 ** greatest(digits, 3))::BIGINT AS high_ns,
    count(*) AS pieces, sum(dur_ns)::BIGINT AS ns
FROM (
    SELECT dur_ns, length(dur_ns::VARCHAR) AS digits
    FROM gaps
    WHERE run_id = $run_id AND cause IS DISTINCT FROM 'unrecorded' AND dur_ns >= $min_ns
)
GROUP BY ALL
ORDER BY low_ns;
