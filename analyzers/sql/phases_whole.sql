-- Steps of one phase belong to it whole: prefill_ns + decode_ns + other_ns = busy_ns (ns). Mixed steps come later.
UPDATE steps
SET prefill_ns = CASE kind WHEN 'prefill' THEN busy_ns ELSE 0 END,
    decode_ns = CASE kind WHEN 'decode' THEN busy_ns ELSE 0 END,
    other_ns = CASE kind WHEN 'other' THEN busy_ns ELSE 0 END,
    split_low_ns = CASE kind WHEN 'prefill' THEN busy_ns ELSE 0 END,
    split_high_ns = CASE kind WHEN 'prefill' THEN busy_ns ELSE 0 END,
    split_method = 'whole',
    interference_ns = CASE kind WHEN 'decode' THEN 0 END
WHERE run_id = getvariable('run_id') AND kind <> 'mixed' AND busy_ns IS NOT NULL;
