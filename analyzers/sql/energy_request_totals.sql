-- One row: requests with recorded steps, from energy_request and energy_step.
-- requests        count
-- known           whose energy is known
-- energy_j        of these, J
-- not_covered, not_divided, sensor_slower   why it is not known for the others, counts
-- other_j         shares of requests whose own energy is not known, J
-- undivided_j     energy of the steps that is no request's, J; with the two above it sums to the steps' energy
WITH r AS (
    SELECT
        count(*) AS requests, count(*) FILTER (WHERE why IS NULL) AS known, sum(energy_j) FILTER (WHERE why IS NULL) AS energy_j,
        count(*) FILTER (WHERE why = 'not covered') AS not_covered, count(*) FILTER (WHERE why = 'not divided') AS not_divided,
        count(*) FILTER (WHERE why = 'sensor slower') AS sensor_slower, sum(energy_j) FILTER (WHERE why IS NOT NULL) AS other_j,
        sum(energy_j) AS all_j
    FROM energy_request
)
SELECT
    requests, known, energy_j, not_covered, not_divided, sensor_slower, coalesce(other_j, 0) AS other_j,
    (SELECT sum(energy_j) FILTER (WHERE covered) FROM energy_step) - coalesce(all_j, 0) AS undivided_j
FROM r
