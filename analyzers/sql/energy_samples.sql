-- One row per sample of a device's sensors, in time order.
-- rank, device     keys, as telemetry has them
-- ts_ns            time, ns
-- energy_j, power_w, power_instant_w   counter (J) and power (W)
-- sm_util, sm_active, tensor_active, dram_active, fp16_active, fp32_active, fp64_active   activity, 0..1
-- pcie_bytes_s, pcie_tx_bytes_s, pcie_rx_bytes_s, nvlink_bytes_s, nvlink_tx_bytes_s, nvlink_rx_bytes_s   bytes/s
-- resident         a program holds memory of the device
SELECT
    rank, device, ts_ns, energy_j, power_w, power_instant_w, sm_util, sm_active, tensor_active, dram_active, fp16_active, fp32_active,
    fp64_active, pcie_bytes_s, pcie_tx_bytes_s, pcie_rx_bytes_s, nvlink_bytes_s, nvlink_tx_bytes_s, nvlink_rx_bytes_s, resident
FROM telemetry
WHERE run_id = $run_id AND ts_ns IS NOT NULL
ORDER BY rank, device, ts_ns
