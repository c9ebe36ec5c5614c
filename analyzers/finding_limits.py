"""From where on a cause is worth a person's time: the thresholds of all findings, and the assumptions of their gains.

What is below LEAST_GAIN (analyzers/finding.py) is never shown. Shares are of 1, times in ns.
"""

from __future__ import annotations

# How much of its whole a cause must take before anything is predicted for it.
LEAST_WAIT = 0.05  # waits for the host, the frontend, the network: share of the time they are a part of
LEAST_CLASS = 0.05  # a class of kernels: share of the devices' busy time
LEAST_PHASE = 0.30  # a phase that everything is asked of: share of the step time
LEAST_LARGER_BATCH = 0.10  # every batch could be larger: only a gain from here on is told
LEAST_INTERFERENCE = 0.25  # of the time between two tokens, over the steps in which a prefill rode along
LEAST_IDLE_TIME = 0.10  # execution-idle: share of the time that sensors saw

# Queues and caches.
FULL_CACHE = 0.90  # a cache is full where one more request would use this share of its blocks
MOST_SEATS = 4  # times the seats there are: more is another deployment
MOST_CHUNK_TOKENS = 8_192
LEAST_CHUNK_TOKENS = 64
LATE_CLIENT_NS = 50_000_000  # a client later than that (95th percentile) sends another load than was planned
LEAST_PLANNED = 5  # requests with a time to be sent at, before that is said
LATE_OUTPUT_NS = 50_000_000  # median time that a request's last token takes from the engine to its client
FRONTEND_FLOOR_NS = 5_000_000  # what HTTP, the tokenizer and the hand-over take when nothing is wrong

# What stays of a gap between two kernels inside a graph: seen up to 0.9 µs in recordings of four devices.
GRAPH_GAP_NS, MOST_GRAPH_GAP_NS = 300, 1_000
# Shares of the roof that a kernel could reach; the lowest is bounds.GOOD_ROOF_FRACTION, which nobody complains about.
USUAL_ROOF_FRACTION, BEST_ROOF_FRACTION = 0.65, 0.80
# Speculation: tokens drafted per request, and shares of them that a model takes (lowest, middle, highest assumed).
DRAFTED = 3
ACCEPTED = (0.3, 0.5, 0.8)
FEWER_PROMPT_TOKENS = 0.10  # what a finding on prompts is priced for
FIXED_INTERFERENCE = 0.30  # share of a prefill's delay that may stay however small its chunks are
