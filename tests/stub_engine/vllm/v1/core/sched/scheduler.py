"""A scheduler that does what a script says: `outputs` and `results` are handed out in order."""

from types import SimpleNamespace


class Scheduler:
    def __init__(self, outputs=(), results=()):
        hf = SimpleNamespace(model_type="llama", hidden_size=8, num_hidden_layers=2)
        self.vllm_config = SimpleNamespace(
            model_config=SimpleNamespace(hf_config=hf, model="m", dtype="torch.bfloat16", max_model_len=64),
            cache_config=SimpleNamespace(enable_prefix_caching=True),
            scheduler_config=SimpleNamespace(max_num_batched_tokens=32, max_num_seqs=4),
        )
        self.block_size = 16
        self.running, self.waiting = [1], []
        self.kv_cache_manager = SimpleNamespace(usage=0.25)
        self.outputs, self.results = iter(outputs), iter(results)

    def add_request(self, request):
        return "added"

    def finish_requests(self, request_ids, finished_status):
        return []

    def _preempt_request(self, request, timestamp):
        return None

    def schedule(self):
        return next(self.outputs)

    def update_from_output(self, scheduler_output, model_runner_output):
        result = next(self.results)
        if isinstance(result, Exception):
            raise result
        return result
