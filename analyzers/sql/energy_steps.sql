-- energy_step: one row per step with activities, from energy_work (its energy and covered time) and energy_period.
-- step_id          key
-- rank, kind       as in steps
-- busy_ns, covered_ns   device time, and that of it with known energy, ns
-- energy_j, prefill_j, decode_j, unsplit_j   J by interpolation, however slow the sensor; the rest is 'other'
-- span_ns          first activity to last, ns
-- period_ns        of the rank's slowest sensor, ns
-- covered          its energy is known to a thousandth of its time
-- resolved         and the sensor is no slower than the step
CREATE OR REPLACE TEMP TABLE energy_step AS
WITH work AS (
    SELECT
        step_id, sum(busy_ns)::BIGINT AS busy_ns, sum(covered_ns) AS covered_ns, sum(energy_j) AS energy_j, sum(prefill_j) AS prefill_j,
        sum(decode_j) AS decode_j, sum(unsplit_j) AS unsplit_j
    FROM energy_work
    WHERE step_id IS NOT NULL
    GROUP BY step_id
),
period AS (SELECT rank, max(period_ns) AS period_ns FROM energy_period GROUP BY rank)
SELECT
    s.step_id, s.rank, s.kind, s.busy_ns, w.covered_ns, w.energy_j, w.prefill_j, w.decode_j, w.unsplit_j,
    s.device_end_ns - s.device_start_ns AS span_ns, p.period_ns, w.busy_ns > 0 AND w.covered_ns >= 0.999 * s.busy_ns AS covered,
    w.busy_ns > 0 AND w.covered_ns >= 0.999 * s.busy_ns AND s.device_end_ns - s.device_start_ns >= p.period_ns AS resolved
FROM steps AS s
JOIN work AS w ON w.step_id = s.step_id
LEFT JOIN period AS p ON p.rank = s.rank
WHERE s.run_id = getvariable('run_id');
