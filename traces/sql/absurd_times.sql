-- Takes out the events of file $src that end or begin beyond $most_ns (the year 2116) on either side of zero, counted as the
-- file does ($base_ns added): no record has such a time, and sums with it would leave 64 bits. Rows: one per event taken out.
DELETE FROM stage.events
WHERE src = $src AND (
    ts NOT BETWEEN -$most_ns AND $most_ns
    OR dur NOT BETWEEN -$most_ns AND $most_ns
    OR ts::HUGEINT + $base_ns NOT BETWEEN -$most_ns AND $most_ns
    OR ts::HUGEINT + greatest(coalesce(dur, 0), 0) + $base_ns NOT BETWEEN -$most_ns AND $most_ns
)
RETURNING seq;
